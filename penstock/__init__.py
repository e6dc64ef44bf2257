"""Penstock: an MQTT gateway over a message store."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.sdk.autobatch import AutoBatch as AutoBatch
    from penstock.sdk.batch import BatchOfOneTopic as BatchOfOneTopic
    from penstock.sdk.client import Client as Client
    from penstock.sdk.compression import Compression as Compression
    from penstock.sdk.delivery import Deliveries as Deliveries
    from penstock.sdk.delivery import Delivery as Delivery
    from penstock.sdk.errors import AddressError as AddressError
    from penstock.sdk.errors import AlreadySettled as AlreadySettled
    from penstock.sdk.errors import BadMessage as BadMessage
    from penstock.sdk.errors import BadMessageId as BadMessageId
    from penstock.sdk.errors import BadOption as BadOption
    from penstock.sdk.errors import BadPosition as BadPosition
    from penstock.sdk.errors import BatchRefused as BatchRefused
    from penstock.sdk.errors import CannotConnect as CannotConnect
    from penstock.sdk.errors import ClientClosed as ClientClosed
    from penstock.sdk.errors import ClientError as ClientError
    from penstock.sdk.errors import ConnectionLost as ConnectionLost
    from penstock.sdk.errors import NotAllStored as NotAllStored
    from penstock.sdk.errors import NotFound as NotFound
    from penstock.sdk.errors import NotPermitted as NotPermitted
    from penstock.sdk.errors import OfParentProcess as OfParentProcess
    from penstock.sdk.errors import Overloaded as Overloaded
    from penstock.sdk.errors import StoreRefused as StoreRefused
    from penstock.sdk.errors import TimedOut as TimedOut
    from penstock.sdk.errors import Unreadable as Unreadable
    from penstock.sdk.message import Batch as Batch
    from penstock.sdk.message import DelayedReceipt as DelayedReceipt
    from penstock.sdk.message import Message as Message
    from penstock.sdk.message import Pending as Pending
    from penstock.sdk.message import Receipt as Receipt
    from penstock.sdk.reading import Reading as Reading
    from penstock.sdk.rights import UserRights as UserRights
    from penstock.sdk.stopping import stop_on_signals as stop_on_signals
    from penstock.sdk.subscription import Subscription as Subscription

_MODULES = {
    "autobatch": ("AutoBatch",),
    "batch": ("BatchOfOneTopic",),
    "client": ("Client",),
    "compression": ("Compression",),
    "delivery": ("Deliveries", "Delivery"),
    "errors": (
        *("AddressError", "AlreadySettled", "BadMessage", "BadMessageId", "BadOption", "BadPosition", "BatchRefused"),
        *(
            "CannotConnect",
            "ClientClosed",
            "ClientError",
            "ConnectionLost",
            "NotAllStored",
            "NotFound",
            "NotPermitted",
            "OfParentProcess",
        ),
        *("Overloaded", "StoreRefused", "TimedOut", "Unreadable"),
    ),
    "message": ("Batch", "DelayedReceipt", "Message", "Pending", "Receipt"),
    "reading": ("Reading",),
    "rights": ("UserRights",),
    "stopping": ("stop_on_signals",),
    "subscription": ("Subscription",),
}
_PLACES = {name: f"penstock.sdk.{module}" for module, names in _MODULES.items() for name in names}

__all__ = sorted(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """What the client consists of is imported when it is asked for, so that the command starts without it."""
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]
