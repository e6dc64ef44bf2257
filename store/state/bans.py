"""Bans, by what they are of: a projection of the log. Applying a change has no clock: a record's time is the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from store.log.index import Index
from store.state.changes import BanKind, BanLifted, BanSet

KEY_PREFIX = b"b"
KEY_END = b"c"
MOST_BANS = 10_000
"""As many as a gateway keeps (gateway.auth.bans)."""

BanKey = tuple[BanKind, str]  # kind, value


class BanState(msgspec.Struct, array_like=True, frozen=True):
    """One ban; see store.state.changes.BanSet. `set_ms`: when it was set."""

    kind: BanKind
    value: str
    until_ms: int = 0
    reason: str = ""
    set_by: str = ""
    automatic: bool = False
    set_ms: int = 0

    @property
    def key(self) -> BanKey:
        return self.kind, self.value

    def holds(self, now_ms: int) -> bool:
        return not self.until_ms or now_ms < self.until_ms


class BanListener(Protocol):
    """A listener for the bans that records change."""

    def ban_changed(self, key: BanKey) -> None:
        """A ban was set, lifted or dropped. Called while a record is applied: nothing may be stored now."""


class BanStates:
    """Owner of all BanState, MOST_BANS at most."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._dirty: set[BanKey] = set()
        self._listener: BanListener | None = None
        decode = msgspec.msgpack.Decoder(BanState).decode
        self._encode = msgspec.msgpack.Encoder().encode
        found = (decode(value) for _, value in index.scan(KEY_PREFIX, KEY_END))
        self._states = {state.key: state for state in sorted(found, key=lambda state: state.set_ms)}  # oldest first

    def listen(self, listener: BanListener) -> None:
        """`listener` is told of each change from now on."""
        self._listener = listener

    def _changed(self, key: BanKey) -> None:
        if self._listener is not None:
            self._listener.ban_changed(key)

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[BanState]:
        return iter(self._states.values())

    def get(self, key: BanKey) -> BanState | None:
        return self._states.get(key)

    def apply(self, change: BanSet | BanLifted, timestamp_ms: int) -> None:
        """Apply one change that the log has since `timestamp_ms`."""
        key = (change.kind, change.value)
        self._remove(key)
        if isinstance(change, BanSet):
            if len(self._states) >= MOST_BANS:
                self._make_room(timestamp_ms)
            until_ms, reason = change.until_ms, change.reason
            state = BanState(*key, until_ms, reason, change.set_by, change.automatic, timestamp_ms)
            self._states[key] = state
        self._dirty.add(key)
        self._changed(key)

    def _make_room(self, now_ms: int) -> None:
        """Delete bans that have ended; if there are none, the oldest automatic ban, otherwise the oldest ban."""
        gone = [key for key, state in self._states.items() if not state.holds(now_ms)]
        if not gone:
            gone = [next((key for key, state in self._states.items() if state.automatic), next(iter(self._states)))]
        for key in gone:
            self._remove(key)
            self._changed(key)

    def _remove(self, key: BanKey) -> None:
        if self._states.pop(key, None) is not None:
            self._dirty.add(key)

    def stage(self) -> None:
        """Give what changed to the index, for its next write; once that has succeeded, call written()."""
        for key in self._dirty:
            state = self._states.get(key)
            if state is None:
                self._index.delete(index_key(key))
            else:
                self._index.put(index_key(key), self._encode(state))

    def written(self) -> None:
        self._dirty.clear()


def index_key(key: BanKey) -> bytes:
    """The key of a ban in RocksDB. A kind has no zero byte."""
    return KEY_PREFIX + key[0].encode() + b"\0" + key[1].encode()
