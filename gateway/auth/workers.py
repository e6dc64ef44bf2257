"""Threads for what takes milliseconds of CPU, so that the loop has none of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Workers:
    """How many wait here is bounded by who asks; see AuthSettings.max_waiting."""

    def __init__(self, threads: int, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = ThreadPoolExecutor(threads, "auth")
        self._loop = loop

    def do(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Have `work` done in a thread, and its result handed to `then` in the loop."""

        def done(future: Future[T]) -> None:
            if not future.cancelled() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(lambda: then(future.result()))

        self._pool.submit(work).add_done_callback(done)

    def close(self) -> None:
        """What has not begun is not done any more."""
        self._pool.shutdown(wait=True, cancel_futures=True)
