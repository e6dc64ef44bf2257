"""The console: HTTP API and pages of a store, which it uses through the SDK and the wire."""
