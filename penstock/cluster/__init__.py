"""A store's replicated log in Kafka: its topic, its partition, and the store that leads or follows."""
