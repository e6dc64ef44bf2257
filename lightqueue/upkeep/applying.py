"""Records that are in the log and not all in their queues: they are applied some at a time, oldest first.

The log has them as one append, so a kill in between loses nothing: recovery applies what the index does not have.
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
    """Owner of what is left of the last append. Nothing else is appended before it is applied."""

    def __init__(self, memory: LogMemory, dispatcher: Dispatcher, applied: Callable[[int], None]) -> None:
        """`applied` is told after each step up to which log_offset all records are in their queues."""
        self._memory = memory
        self._dispatcher = dispatcher
        self._applied = applied
        self._then: dict[Callable[[], None], None] = {}
        self.position = 0  # log_offset of the oldest record that is left
        self.left_bytes = 0
        self.has_failed = False  # the last step did; the next one tries it again

    def begin(self, position: int, left_bytes: int) -> None:
        """So much of an append is left, from log_offset `position` on."""
        self.position, self.left_bytes = position, left_bytes

    def fails(self, position: int, left_bytes: int) -> None:
        """A step that began there did: it is tried again from the record at which it did."""
        self.has_failed = True
        self.begin(position, left_bytes)
        self._goes_to(position + self._dispatcher.done)

    def _goes_to(self, position: int) -> None:
        self.left_bytes -= position - self.position
        self.position = position
        self._applied(position)

    def then(self, action: Callable[[], None]) -> None:
        """Do something short once, when nothing is left. It may not append anything."""
        self._then[action] = None

    def step(self, most_work: int = NEXT_WORK) -> bool:
        """Apply some more. True if there is more to do. Raises a StoreError; then the same may be tried again."""
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
        """Apply all that is left, now. Raises a StoreError."""
        self.step(ALL_WORK)
