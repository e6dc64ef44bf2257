"""What a store does with each kind of request: a class for each role, and a table of the kinds that it handles."""
