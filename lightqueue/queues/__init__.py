"""Light queues: their entries, the filters that match a topic, and the compiled part."""
