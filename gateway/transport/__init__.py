"""Listeners, and the layers below a connection: TLS, WebSocket, the PROXY protocol."""
