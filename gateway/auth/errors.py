"""Errors of authentication and permissions, for operators."""

from __future__ import annotations

from gateway.mqtt.errors import GatewayError


class AuthError(GatewayError):
    """A file or setting of authentication or permissions is wrong. The message says where, and what to do."""
