"""A client's connection and session, and what a turn writes to the log of them."""
