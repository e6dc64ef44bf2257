"""What a gateway hands to the process that replaces it: the state of connections and sessions, as versioned msgpack."""
