"""The progress of processes that append over the wire: a projection of the log."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from store.log.index import Index
from store.state.changes import PeerAppended, PeerGone, PeerOwner

KEY_PREFIX = b"p"
KEY_END = b"q"
MOST_UNANSWERED = 1_024  # Appends of a peer under way at once, more than there are
NOTHING_LOST = (1, 0)
PLACES_KEPT = 64  # of a client's newest Publishes; it has no more without an answer


class PeerState(msgspec.Struct, array_like=True):
    """The progress of one peer; see store.state.changes.PeerAppended.

    The fields after `is_client` are for clients alone.
    """

    sequence: int
    refused: tuple[tuple[int, int], ...]
    is_client: bool = False
    appended_ms: int = 0  # when it did so last
    places: list[tuple[int, int]] = []  # (sequence, log_offset after its records), oldest first
    lost: tuple[int, int] = (1, 0)  # first and last sequence of those that may not be in the log; a gap of it was there
    owner: PeerOwner | None = None  # as in PeerAppended

    def place(self, sequence: int) -> int | None:
        """log_offset after the records of a Publish; None if that is not remembered."""
        return next((log_offset for each, log_offset in reversed(self.places) if each == sequence), None)


class PeerStates:
    """Owner of what is remembered of peers, by their names. There are few of them."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._dirty: set[str] = set()
        self._has_gap = False
        self._unsure: set[str] = set()  # those of whose Appends in a gap it is not known yet which they were
        decode = msgspec.msgpack.Decoder(PeerState).decode
        found = index.scan(KEY_PREFIX, KEY_END)
        self._states = {key[len(KEY_PREFIX) :].decode(): decode(value) for key, value in found}
        self._encode = msgspec.msgpack.Encoder().encode

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def get(self, name: str) -> PeerState | None:
        return self._states.get(name)

    def clients(self) -> list[tuple[str, PeerState]]:
        """Clients, those first that have not appended for the longest time."""
        found = [(name, state) for name, state in self._states.items() if state.is_client]
        return sorted(found, key=lambda each: each[1].appended_ms)

    def apply(self, change: PeerAppended | PeerGone, log_offset: int = 0, timestamp_ms: int = 0) -> None:
        """`log_offset`: where the record of the change stands."""
        self._dirty.add(change.name)
        if isinstance(change, PeerGone):
            self._states.pop(change.name, None)
            return
        before = self._states.get(change.name)
        lost = self._lost(change, before)
        if change.is_client:
            state = before if before is not None else self._states.setdefault(change.name, PeerState(0, (), True))
            state.sequence, state.refused, state.appended_ms = change.sequence, change.refused, timestamp_ms
            state.places.append((change.sequence, log_offset))
            del state.places[:-PLACES_KEPT]
            state.lost = lost
            state.owner = change.owner if change.owner is not None else state.owner
        else:
            self._states[change.name] = PeerState(change.sequence, change.refused, lost=lost)

    def cross_gap(self) -> None:
        """Records are lost: what a peer appended between those of which it is known may be among them."""
        self._has_gap = True
        self._unsure.update(self._states)

    def all_applied(self) -> None:
        """All of the log is applied."""
        self._has_gap = False
        self._unsure.clear()

    def _lost(self, change: PeerAppended, before: PeerState | None) -> tuple[int, int]:
        """The lost ranges of PeerState after this change."""
        if change.name in self._unsure or (before is None and self._has_gap):
            self._unsure.discard(change.name)
            return (before.sequence if before is not None else 0) + 1, change.sequence
        if before is not None and (change.is_client or change.sequence <= before.lost[1] + MOST_UNANSWERED):
            return before.lost
        return NOTHING_LOST

    def stage(self) -> None:
        """Give what changed to the index, for its next write; once that has succeeded, call written()."""
        for name in self._dirty:
            state = self._states.get(name)
            key = KEY_PREFIX + name.encode()
            if state is None:
                self._index.delete(key)
            else:
                self._index.put(key, self._encode(state))

    def written(self) -> None:
        self._dirty.clear()
