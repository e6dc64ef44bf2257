"""How far those are that read the log under a name, as they said: for people to see, in memory, for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

MOST_READERS = 100
REMEMBERED_S = 600.0  # after a reader was last heard of


class _Reader(NamedTuple):
    log_offset: int
    heard_s: float


class LogReaders:
    """Owner of what readers said. Of too many the one that was not heard of for the longest time is forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._readers: dict[str, _Reader] = {}  # who was heard of last stands last

    def note(self, name: str, log_offset: int) -> None:
        self._readers.pop(name, None)
        self._readers[name] = _Reader(log_offset, self._clock())
        if len(self._readers) > MOST_READERS:
            del self._readers[next(iter(self._readers))]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """(name, log_offset) of those that were heard of lately."""
        since_s = self._clock() - REMEMBERED_S
        for name, reader in list(self._readers.items()):
            if reader.heard_s < since_s:
                del self._readers[name]
            else:
                yield name, reader.log_offset
