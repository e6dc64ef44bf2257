"""Flows from an MQTT broker: its messages, and the session that keeps them until they are stored."""
