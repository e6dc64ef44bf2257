"""The audit log's rules: who came in, was refused, cut off; what operators did. No I/O, a few microseconds an event.

No event is left out. Equal events within a window become one line with a count. What anybody can cause by the million
gets so many lines of its own in a window; the rest is counted by address, then by network, then all together.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, Protocol

MOST_KEYS = 16_384
"""Different events of a window; further ones are counted by address."""
LINES_OF_A_SOURCE = 16
"""Refusals of one address, or denials of one client, that have a line of their own in a window."""
LINES_OF_ALL = 256
"""The same of all addresses and clients together."""
MOST_MERGED = 64
"""Addresses, and then networks, by which the rest is counted."""
VALUE_CHARACTERS = 256
IPV4_PREFIX, IPV6_PREFIX = 24, 64
OTHERS = "others: more than have lines of their own"


class AuditEvent(StrEnum):
    """The kinds of events."""

    STARTED = "started"
    STOPPED = "stopped"
    CONNECTED = "connected"
    REFUSED = "refused"  # a client, before it had a session
    DISCONNECTED = "disconnected"  # the client left, or the network did
    CUT_OFF = "cut_off"  # this side ended the connection
    TAKEN_OVER = "taken_over"
    DENIED = "denied"  # a PUBLISH or a subscription that is not allowed
    BANNED = "banned"
    BAN_LIFTED = "ban_lifted"
    OPERATOR = "operator"  # an operator did what `reason` says
    RELOADED = "reloaded"
    RELOAD_FAILED = "reload_failed"
    PEER_CONNECTED = "peer_connected"  # a gateway, client or operator, to the store
    PEER_REFUSED = "peer_refused"
    PEER_LEFT = "peer_left"
    READER = "reader"  # of the log: retention waits for it from now on, or no longer, or dropped what it had not read
    LOST = "lost"  # lines that could not be written


BOUNDED = frozenset((AuditEvent.REFUSED, AuditEvent.PEER_REFUSED, AuditEvent.DENIED))
"""Those that anybody can cause by the million."""


class AuditKey(NamedTuple):
    """The common part of equal events. `address`: without the port; of merged events an address or a network."""

    event: AuditEvent
    user: str
    client_id: str
    address: str
    reason: str


@dataclass(slots=True)
class Tally:
    """The number of times that an event happened in a window, and when: Unix times in ms."""

    first_ms: int
    last_ms: int
    peer: str  # address and port of the last one
    count: int = 0


class AuditSink(Protocol):
    """The receiver of a finished window. It is called on the loop, so it must not block."""

    def take(self, window: Mapping[AuditKey, Tally]) -> None: ...

    @property
    def lost(self) -> int:
        """Events that could not be written."""


class Audit:
    """Owner of the window that is open."""

    def __init__(
        self, sink: AuditSink | None = None, window_s: float = 1.0, clock: Callable[[], float] = time.time
    ) -> None:
        """Without a sink no events are counted."""
        self._sink = sink
        self._window_ms = int(window_s * 1000)
        self._clock = clock
        self._begin()
        self.noted: Counter[str] = Counter(dict.fromkeys((event.value for event in AuditEvent), 0))  # events, by kind

    def _begin(self) -> None:
        self._open: dict[AuditKey, Tally] = {}
        self._closes_ms = 0
        self._lines_of: Counter[str] = Counter()
        self._lines = 0
        self._merged = [0, 0]  # lines for addresses, for networks

    @property
    def lost(self) -> int:
        return self._sink.lost if self._sink is not None else 0

    def note(
        self, event: AuditEvent, *, user: str = "", client_id: str = "", address: str = "", reason: str = ""
    ) -> None:
        """Write one event as a line. `address`: with or without a port; long values are cut."""
        if self._sink is None:
            return
        now_ms = int(self._clock() * 1000)
        if not self._open:
            self._closes_ms = now_ms + self._window_ms
        key = AuditKey(event, _cut(user), _cut(client_id), host_of(address), _cut(reason))
        tally = self._open.get(key)
        if tally is None:
            key = self._key_with_room(key)
            tally = self._open.setdefault(key, Tally(now_ms, now_ms, address))
        tally.count += 1
        tally.last_ms = now_ms
        tally.peer = address
        self.noted[event.value] += 1

    def close_window(self) -> None:
        """Hand a window that is over to the sink. Call this several times a second."""
        if self._open and self._clock() * 1000 >= self._closes_ms:
            self.close()

    def close(self) -> None:
        """Hand the window to the sink now: nothing more is to come, or not soon."""
        if self._open and self._sink is not None:
            self._sink.take(self._open)
        self._begin()

    # --- bounds

    def _key_with_room(self, key: AuditKey) -> AuditKey:
        """The key itself if it may have a line of its own; otherwise the key of the line that counts it."""
        if key.event in BOUNDED:
            source = key.client_id if key.event is AuditEvent.DENIED else key.address
            if self._lines < LINES_OF_ALL and self._lines_of[source] < LINES_OF_A_SOURCE:
                self._lines += 1
                self._lines_of[source] += 1
                return key
        elif len(self._open) < MOST_KEYS:
            return key
        is_denial = key.event is AuditEvent.DENIED
        user, client_id = (key.user, key.client_id) if is_denial else ("", "")
        for at, merged in enumerate(
            (
                AuditKey(key.event, user, client_id, key.address, OTHERS),
                AuditKey(key.event, "", "", network_of(key.address), OTHERS),
            )
        ):
            if merged in self._open:
                return merged
            if self._merged[at] < MOST_MERGED:
                self._merged[at] += 1
                return merged
        return AuditKey(key.event, "", "", "*", OTHERS)


def _cut(value: str) -> str:
    return value if len(value) <= VALUE_CHARACTERS else value[:VALUE_CHARACTERS] + "…"


def host_of(address: str) -> str:
    """The host of HOST:PORT or [HOST]:PORT, without brackets; what is no such thing stays as it is."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else address


@lru_cache(4_096)
def network_of(host: str) -> str:
    """The network of an IP address, /24 or /64; of anything else itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    prefix = IPV4_PREFIX if address.version == 4 else IPV6_PREFIX
    return str(ipaddress.ip_network((address, prefix), strict=False))
