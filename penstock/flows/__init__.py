"""Flows: messages of a topic filter, on to something that people have. A flow is a consumer group with a sink."""

GROUP_PREFIX = "flow."
"""The group of a flow is called so, with the flow's name after it."""
ID_HEADER = "penstock-id"
"""The header, or user property, with the id of the message that a message was made of."""
VIA = "penstock-via"
"""The user property that names a store which a message came through, or came into from a broker; one for each."""
