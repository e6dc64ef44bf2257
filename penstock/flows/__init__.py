"""Flows: messages of a topic filter, on to something that people have. A flow is a consumer group with a sink."""
