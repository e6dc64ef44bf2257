"""Penstock: an MQTT gateway over a message store."""
