"""Queues of entries, the filters that match a topic, and the compiled part."""
