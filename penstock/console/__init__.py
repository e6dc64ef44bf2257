<<<<<<< HEAD
"""The console: HTTP API and pages, a process of its own that is a user of the store (docs/http.md)."""
=======
"""The console: HTTP API and pages of a store, which it uses through the SDK and the wire."""
>>>>>>> wire19
