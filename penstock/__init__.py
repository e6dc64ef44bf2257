"""Penstock: an MQTT gateway over a message store."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.sdk.client import Client as Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    """The client is imported when somebody asks for it, so that the command starts without it."""
    if name == "Client":
        from penstock.sdk.client import Client

        return Client
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
