"""Output of a store in a cluster: what tells of records goes out once they are accepted.

State is applied when a record is appended, so an answer, an event or a push may tell of what is not accepted yet, and
never will be if another store takes over. All of it waits until the log is accepted up to where it ended then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from notify.server.line import UNSENT_BYTES, WireCounters, WireOutput


class AcceptedLog(Protocol):
    """The properties of a log that WithheldOutput needs."""

    @property
    def end(self) -> int: ...

    @property
    def safe(self) -> int: ...


class WithheldOutput(WireOutput):
    """A WireOutput that waits for the log."""

    def __init__(
        self, figures: WireCounters, wake: Callable[[], None], clock: Callable[[], float], log: AcceptedLog
    ) -> None:
        super().__init__(figures, wake, clock)
        self._log = log
        self._held: deque[tuple[int, int, list[bytes]]] = deque()  # (log_offset, bytes, chunks)
        self._held_bytes = 0
        self._ready: list[bytes] = []  # acknowledgements, which tell of what is accepted

    @property
    def has_room(self) -> bool:
        return self.size_bytes + self._held_bytes < UNSENT_BYTES

    @property
    def is_withholding(self) -> bool:
        return bool(self._held)

    def hold(self) -> None:
        """Let the output so far wait until the log is accepted up to its present end."""
        chunks = super().collect()
        if chunks:
            size = sum(map(len, chunks))
            self._held.append((self._log.end, size, chunks))
            self._held_bytes += size

    def let_go(self) -> None:
        """Let the output since hold() go at once."""
        self._ready += super().collect()

    def collect(self) -> list[bytes]:
        self.hold()
        chunks, self._ready = self._ready, []
        while self._held and self._held[0][0] <= self._log.safe:
            _, size, held = self._held.popleft()
            self._held_bytes -= size
            chunks += held
        return chunks
