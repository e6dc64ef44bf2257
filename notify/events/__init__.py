"""Which gateway watches which queue."""
