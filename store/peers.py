"""Which of their appends the store has, of the processes that append over the wire: a projection of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from store.changes import PeerAppended, PeerGone
from store.index import Index

KEY_PREFIX = b"p"
KEY_END = b"q"


class PeerState(NamedTuple):
    """How far a peer has come; see store.changes.PeerAppended."""

    sequence: int
    refused: tuple[tuple[int, int], ...]


class Peers:
    """Owner of what is remembered of peers, by their names. There are few of them."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._dirty: set[str] = set()
        decode = msgspec.msgpack.Decoder(PeerState).decode
        found = index.scan(KEY_PREFIX, KEY_END)
        self._states = {key[len(KEY_PREFIX) :].decode(): decode(value) for key, value in found}
        self._encode = msgspec.msgpack.Encoder().encode

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def get(self, name: str) -> PeerState | None:
        return self._states.get(name)

    def apply(self, change: PeerAppended | PeerGone) -> None:
        self._dirty.add(change.name)
        if isinstance(change, PeerAppended):
            self._states[change.name] = PeerState(change.sequence, change.refused)
        else:
            self._states.pop(change.name, None)

    def stage(self) -> None:
        """Hand what changed to the index, for its next write; once that succeeded, written() is to be called."""
        for name in self._dirty:
            state = self._states.get(name)
            key = KEY_PREFIX + name.encode()
            if state is None:
                self._index.delete(key)
            else:
                self._index.put(key, self._encode(state))

    def written(self) -> None:
        self._dirty.clear()
