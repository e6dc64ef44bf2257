"""Shared parts of a gateway: the store, the settings, the turn, the journal, the logs, and the event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.mqtt._mqtt import Turn
from gateway.sessions.journal import Journal
from gateway.settings import GatewaySettings
from notify.api import Store
from store.audit import Audit
from store.ratelimit import RateLimitedLog
from store.state.deadlines import Deadlines


class Loop(Protocol):
    """An event loop, as a gateway uses it."""

    def call_soon(self, callback: Callable[[], object]) -> object: ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> object: ...

    def time(self) -> float: ...


class Scheduler:
    """The event loop, as a gateway uses it: nothing that was scheduled runs once the gateway is closed."""

    __slots__ = ("_loop", "is_closed")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.is_closed = False

    def soon(self, callback: Callable[[], object]) -> None:
        """Call this in the loop's next turn, unless the gateway is closed by then."""
        self._loop.call_soon(partial(self._call, callback))

    def later(self, delay_s: float, callback: Callable[[], object]) -> None:
        """Like soon(), after so many seconds."""
        self._loop.call_later(delay_s, partial(self._call, callback))

    def _call(self, callback: Callable[[], object]) -> None:
        if not self.is_closed:
            callback()

    def close(self) -> None:
        """Call nothing from now on."""
        self.is_closed = True

    def now_s(self) -> float:
        """Seconds of the loop's clock, which never goes back."""
        return self._loop.time()


@dataclass(frozen=True, slots=True)
class Core:
    """Objects that any part of a gateway may need. An object that only some need is handed to those by itself."""

    store: Store
    settings: GatewaySettings
    turn: Turn
    journal: Journal
    events: RateLimitedLog
    audit: Audit
    deadlines: Deadlines
    scheduler: Scheduler
    store_batch: Callable[[], object]
    """Stores what the turn has gathered so far, delivers what grew, and sends the acknowledgements of what is safe."""

    def set_clock(self) -> None:
        """Set the turn's clock."""
        self.turn.now_s = self.scheduler.now_s()
        self.turn.now_ms = self.store.now_ms()
