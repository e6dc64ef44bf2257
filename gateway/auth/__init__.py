"""Who may come in and what clients may do: rules without sockets, and the few parts that ask another server."""
