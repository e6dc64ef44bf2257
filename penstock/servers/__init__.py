"""The processes that serve: starting, listening, reloading, metrics, stopping."""
