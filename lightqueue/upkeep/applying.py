"""Applies records that are in the log and not all in their queues, some at a time, oldest first.

The log has them as one append, so a kill in between loses nothing: recovery applies the records that the index lacks.
"""

from __future__ import annotations

from collections.abc import Callable

from lightqueue.queues._queues import Dispatcher
from store.errors import StoreError
from store.records._records import LogMemory

ALL_WORK = (1 << 64) - 1
FIRST_WORK = 16_384  # units of lightqueue/queues/parts/_work.pxi, some 40 ns each: 0.7 ms
NEXT_WORK = 8_192


class Applying:
    """Owner of the rest of the last append. Nothing else is appended before it is applied."""

    def __init__(self, memory: LogMemory, dispatcher: Dispatcher, applied: Callable[[int], None]) -> None:
        """`applied` is called after each step with the log_offset up to which all records are in their queues."""
        self._memory = memory
        self._dispatcher = dispatcher
        self._applied = applied
        self._then: dict[Callable[[], None], None] = {}
        self.position = 0  # log_offset of the oldest record not applied
        self.left_bytes = 0
        self.has_failed = False  # the last step failed; the next one repeats it

    def begin(self, position: int, left_bytes: int) -> None:
        """Take on the rest of an append: `left_bytes` from log_offset `position` on."""
        self.position, self.left_bytes = position, left_bytes

    def fails(self, position: int, left_bytes: int) -> None:
        """Note that a step failed that began at `position`: it is repeated from the record that failed."""
        self.has_failed = True
        self.begin(position, left_bytes)
        self._goes_to(position + self._dispatcher.done)

    def _goes_to(self, position: int) -> None:
        self.left_bytes -= position - self.position
        self.position = position
        self._applied(position)

    def then(self, action: Callable[[], None]) -> None:
        """Call a short action once, when nothing is left. It must not append."""
        self._then[action] = None

    def step(self, most_work: int = NEXT_WORK) -> bool:
        """Apply some more records. True if there are more. Raises a StoreError; then the step may be repeated."""
        if not self.left_bytes:
            return False
        try:
            done = self._dispatcher.apply_appended(self._memory, self.position, self.left_bytes, most_work)
        except StoreError:
            self.fails(self.position, self.left_bytes)
            raise
        self.has_failed = False
        self._goes_to(self.position + done)
        if self.left_bytes:
            return True
        then, self._then = self._then, {}
        for action in then:
            action()
        return False

    def finish(self) -> None:
        """Apply the rest now. Raises a StoreError."""
        self.step(ALL_WORK)
