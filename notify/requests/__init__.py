"""Requests of a store's users over the wire, and the answers."""
