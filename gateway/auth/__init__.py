"""Authentication and authorization: rules without sockets, and the few parts that ask another server."""
