"""The MQTT side of Penstock: codec, protocol state, sessions, listeners and delivery."""
