"""MQTT itself: packets, their codec, topic rules, reason codes, and the compiled parser and encoder."""
