"""The common part of `pub` and `sub`: an MQTT 5 client (paho) with errors in one line."""
