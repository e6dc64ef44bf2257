"""Queue events: which gateway watches which queue."""
