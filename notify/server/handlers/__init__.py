"""Handlers of each kind of request to a store: a class for each role, and a table of the kinds that it handles."""
