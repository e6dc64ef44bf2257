"""The server processes: starting, listening, reloading, metrics, stopping."""
