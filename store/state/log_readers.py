"""Readers of the log for which retention waits, by name: a projection of the log. Applying a change has no clock."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from store.log.index import Index
from store.state.changes import ReaderAdvanced, ReaderForgotten, ReaderLost, WhenBehind

KEY_PREFIX = b"h"
KEY_END = b"i"
MOST_READERS = 100


class LogReaderState(msgspec.Struct, array_like=True, frozen=True):
    """One reader; see store.state.changes.ReaderAdvanced."""

    name: str
    log_offset: int
    most_behind_bytes: int = 0
    when_behind: WhenBehind = "drop"
    advanced_ms: int = 0  # when it said so last, Unix time
    lost_to: int = 0  # retention has dropped from log_offset up to here what it had not read; 0: nothing
    lost_bytes: int = 0  # of the log, in all, that it never read


class LogReaderStates:
    """Owner of all LogReaderState."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._dirty: set[str] = set()
        decode = msgspec.msgpack.Decoder(LogReaderState).decode
        self._encode = msgspec.msgpack.Encoder().encode
        found = (decode(value) for _, value in index.scan(KEY_PREFIX, KEY_END))
        self._states = {state.name: state for state in found}

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[LogReaderState]:
        return iter(list(self._states.values()))

    def lost(self) -> dict[str, int]:
        """Bytes of the log that retention dropped before a reader had read them, by its name."""
        return {state.name: state.lost_bytes for state in self._states.values()}

    def get(self, name: str) -> LogReaderState | None:
        return self._states.get(name)

    def apply(self, change: ReaderAdvanced | ReaderForgotten | ReaderLost, timestamp_ms: int) -> None:
        """Apply one change that the log has since `timestamp_ms`."""
        name = change.name
        before = self._states.get(name)
        self._dirty.add(name)
        if isinstance(change, ReaderForgotten):
            self._states.pop(name, None)
        elif isinstance(change, ReaderAdvanced):
            lost_bytes = before.lost_bytes if before is not None else 0
            lost_to = before.lost_to if before is not None and before.lost_to > change.log_offset else 0
            self._states[name] = LogReaderState(
                name,
                change.log_offset,
                change.most_behind_bytes,
                change.when_behind,
                timestamp_ms,
                lost_to,
                lost_bytes,
            )
        elif before is not None:
            lost_bytes = before.lost_bytes + max(0, change.end - max(before.log_offset, before.lost_to))
            self._states[name] = msgspec.structs.replace(before, lost_to=change.end, lost_bytes=lost_bytes)

    def stage(self) -> None:
        """Give what changed to the index, for its next write; once that has succeeded, call written()."""
        for name in self._dirty:
            key = KEY_PREFIX + name.encode()
            state = self._states.get(name)
            if state is None:
                self._index.delete(key)
            else:
                self._index.put(key, self._encode(state))

    def written(self) -> None:
        self._dirty.clear()
