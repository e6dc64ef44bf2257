"""Tracing for a server process, or the same parts without it. OpenTelemetry is imported only where it is on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from lightqueue.message_store import MessageStore
from lightqueue.opening import OpenStore
from notify.local.hub import Hub
from notify.local.store import LocalStore
from notify.remote.store import RemoteStore, StoreSender
from penstock.config.settings_tree import Settings
from penstock.errors import SettingsError
from store.settings import StoreSettings

if TYPE_CHECKING:
    from penstock.tracing.spans import Tracing

GATEWAY = "gateway"


class TracingParts:
    """Makes the parts of a server that messages pass: the plain ones, or those with spans."""

    def __init__(self, tracing: Tracing | None) -> None:
        self._tracing = tracing

    def message_store(
        self,
        settings: StoreSettings,
        on_safe: Callable[[], None],
        on_replayed: Callable[[int, int], None],
        opened: OpenStore | None = None,
    ) -> MessageStore:
        """`opened`: by a store that followed its cluster."""
        if self._tracing is None:
            return MessageStore(settings, on_safe, on_replayed, opened=opened)
        from penstock.tracing.message_store import TracedMessageStore

        return TracedMessageStore(self._tracing, settings, on_safe, on_replayed, opened)

    def local_store(self, hub: Hub) -> LocalStore:
        """The store in this process, as its gateway has it."""
        if self._tracing is None:
            return LocalStore.join(hub, GATEWAY)
        from penstock.tracing.gateway_store import GatewaySpans, TracedLocalStore

        store = TracedLocalStore.join(hub, GATEWAY)
        store.trace(GatewaySpans(self._tracing))
        return store

    def remote_store(
        self, patience_s: float, cache_bytes: int, sender: StoreSender, clock: Callable[[], float]
    ) -> RemoteStore:
        """The store in another process; arguments as RemoteStore has them."""
        if self._tracing is None:
            return RemoteStore(patience_s, cache_bytes, sender, clock)
        from penstock.tracing.gateway_store import GatewaySpans, TracedRemoteStore

        store = TracedRemoteStore(patience_s, cache_bytes, sender, clock)
        store.trace(GatewaySpans(self._tracing))
        return store


def check_tracing(settings: Settings) -> None:
    """Raises SettingsError where tracing is on, and OpenTelemetry is not installed."""
    if settings.tracing.endpoint is not None:
        try:
            import penstock.tracing.spans  # noqa: F401
        except ImportError as error:
            raise SettingsError(
                f"tracing.endpoint is set, but OpenTelemetry is not installed ({error}); "
                "pip install 'penstock[tracing]', or unset tracing.endpoint"
            ) from None


def open_tracing(settings: Settings, role: str, closing: AsyncExitStack) -> TracingParts:
    """The parts for a process, whose tracing is closed with `closing`. `role`: `serve`, `store` or `gateway`."""
    if settings.tracing.endpoint is None:
        return TracingParts(None)
    from penstock.tracing.spans import Tracing

    tracing = Tracing(settings.tracing, role)
    closing.callback(tracing.close)
    return TracingParts(tracing)
