"""The life of a client's connection (admission, session, review, end), and the rules of each packet."""
