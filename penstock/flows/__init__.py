"""Flows: messages of a topic filter, on to something that people have. A flow is a consumer group with a sink."""

GROUP_PREFIX = "flow."
"""The group of a flow is called so, with the flow's name behind it."""
