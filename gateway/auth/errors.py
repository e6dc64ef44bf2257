"""The errors of authentication and permissions, which operators read."""

from __future__ import annotations

from gateway.mqtt.errors import GatewayError


class AuthError(GatewayError):
    """A file or setting by which clients are judged is wrong; says where and what to do."""
