"""What `pub` and `sub` share: an MQTT 5 client (paho) with errors in one line."""
