"""The console: HTTP API and pages, a process of its own that is a user of the store (docs/http.md)."""
