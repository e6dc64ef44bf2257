"""How many bytes of messages may be sent and not answered. One event loop uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MOST_UNANSWERED_BYTES = 64 << 20


class Room:
    """Whether one more message may be sent, and the waiting until it may."""

    def __init__(self, unanswered_bytes: Callable[[], int]) -> None:
        self._unanswered_bytes = unanswered_bytes
        self._changed = asyncio.Event()

    def has(self, size_bytes: int) -> bool:
        """One message alone may be as large as it likes."""
        unanswered_bytes = self._unanswered_bytes()
        return not unanswered_bytes or unanswered_bytes + size_bytes <= MOST_UNANSWERED_BYTES

    async def wait_for(self, size_bytes: int) -> None:
        """Until there is room."""
        await self._until(lambda: self.has(size_bytes))

    async def wait_until_answered(self) -> None:
        """Until everything is."""
        await self._until(lambda: not self._unanswered_bytes())

    def changed(self) -> None:
        """To be called once something is answered."""
        self._changed.set()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()
