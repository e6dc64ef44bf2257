"""Hand-over of connections and sessions to the process that replaces a gateway, as versioned msgpack."""
