"""The readers of the log: how far each one is, and which of them retention waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lightqueue.message_store import MessageStore
from store.audit import Audit, AuditEvent
from store.errors import StoreError
from store.figures import Figure, Sections, Value
from store.records._records import RecordBatch
from store.state.changes import Change, ReaderAdvanced, ReaderForgotten, encode_change
from store.state.log_readers import MOST_READERS
from store.wire.log_messages import HoldLog, LogHeld
from store.wire.operator_messages import LogReaderInfo

REMEMBERED_S = 600.0  # after a reader that holds nothing was last heard of


class NotHeld(StoreError):
    """A reader asks for what the log cannot keep for it."""


class _Reader(NamedTuple):
    log_offset: int
    heard_s: float


class LogReaders:
    """Owner of what readers say that hold nothing: for people to see, in memory, for a while; of too many the one that
    was not heard of for the longest time is forgotten. What others hold goes to the log.
    """

    def __init__(self, messages: MessageStore, audit: Audit, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic seconds."""
        self._messages = messages
        self._states = messages.log_readers
        self._audit = audit
        self._clock = clock
        self._seen: dict[str, _Reader] = {}  # who was heard of last stands last
        self._told = self._states.lost()

    def note(self, name: str, log_offset: int) -> None:
        self._seen.pop(name, None)
        self._seen[name] = _Reader(log_offset, self._clock())
        if len(self._seen) > MOST_READERS:
            del self._seen[next(iter(self._seen))]

    def _lately(self) -> Iterator[tuple[str, int]]:
        since_s = self._clock() - REMEMBERED_S
        for name, reader in list(self._seen.items()):
            if reader.heard_s < since_s:
                del self._seen[name]
            elif self._states.get(name) is None:
                yield name, reader.log_offset

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """(name, log_offset) of those that hold the log, and of the others that were heard of lately."""
        yield from ((state.name, state.log_offset) for state in self._states)
        yield from self._lately()

    # --- for which retention waits

    def hold(self, wanted: HoldLog) -> LogHeld:
        """Raises a StoreError: NotHeld, or why nothing can be stored."""
        log, name = self._messages.log, wanted.reader
        state = self._states.get(name)
        if state is None and len(self._states) >= MOST_READERS:
            raise NotHeld(f"{MOST_READERS} readers hold the log already; `penstock store forget-reader NAME` ends one")
        log_offset = wanted.log_offset
        if log_offset is None:
            log_offset = state.log_offset if state is not None else log.base
        elif log_offset > log.on_disk:
            raise NotHeld(f"log_offset {log_offset} is not on the disk yet, only what stands before {log.on_disk} is")
        said = (log_offset, wanted.most_behind_bytes, wanted.when_behind)
        if state is None or said != (state.log_offset, state.most_behind_bytes, state.when_behind):
            self._append(ReaderAdvanced(name, *said))
        log.hurry()  # the reader waits for what is not on the disk
        if state is None:
            self._audit.note(AuditEvent.READER, reason=f"{name} holds the log from log_offset {log_offset} on")
        found = self._states.get(name)
        lost_bytes = found.lost_bytes if found is not None else 0
        return LogHeld(log_offset, log.base, log.on_disk, lost_bytes, list(log.restored_from))

    def forget(self, name: str, by: str) -> bool:
        """False: there is no such reader. Raises a StoreError."""
        was_seen = self._seen.pop(name, None) is not None
        if self._states.get(name) is None:
            return was_seen
        self._append(ReaderForgotten(name, by))
        self._told.pop(name, None)
        self._audit.note(AuditEvent.READER, reason=f"{name} holds the log no longer, by {by}")
        return True

    def _append(self, change: Change) -> None:
        """Append a change. It frees room, so it may use the room that is kept from messages."""
        batch = RecordBatch()
        batch.append(*encode_change(change))
        self._messages.append_upkeep(batch)
        self._messages.upkeep.check_soon()

    def tell_losses(self) -> None:
        """Write to the audit log what retention has dropped since the last call that a reader had not read."""
        for state in self._states:
            lost_bytes = state.lost_bytes - self._told.get(state.name, 0)
            if lost_bytes:
                self._told[state.name] = state.lost_bytes
                self._audit.note(AuditEvent.READER, reason=f"{state.name} lost {lost_bytes} bytes of the log")

    def infos(self) -> list[LogReaderInfo]:
        """The readers of the log, sorted by name."""
        end = self._messages.end
        held = [
            LogReaderInfo(
                state.name,
                state.log_offset,
                max(0, end - state.log_offset),
                True,
                state.most_behind_bytes,
                state.when_behind,
                state.advanced_ms,
                state.lost_bytes,
            )
            for state in self._states
        ]
        seen = [LogReaderInfo(name, log_offset, max(0, end - log_offset)) for name, log_offset in self._lately()]
        return sorted(held + seen, key=lambda info: info.name)


def _lag(readers: LogReaders) -> Value:
    return {info.name: info.behind_bytes for info in readers.infos()}


LOG_READERS: Sections[LogReaders] = {
    "The store": (
        Figure(
            "penstock_reader_lag_bytes",
            "gauge",
            "Bytes of the log that a reader of it (the cold tier, a Spark stream with consumerName) has yet to come "
            "to.",
            _lag,
            "reader",
        ),
    )
}
