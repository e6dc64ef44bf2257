"""Threads for work that takes milliseconds of CPU, which would delay the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from gateway.auth.fair_queue import FairQueue, Job
from gateway.auth.identity import Credentials

T = TypeVar("T")


class Workers:
    """A pool of threads. The callers bound the number of waiting jobs; see AuthSettings.max_waiting."""

    def __init__(self, threads: int, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = ThreadPoolExecutor(threads, "auth")
        self._loop = loop

    def do(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run `work` in a thread, and call `then` with its result in the loop."""

        def done(future: Future[T]) -> None:
            if not future.cancelled() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(lambda: then(future.result()))

        self._pool.submit(work).add_done_callback(done)

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class FairWorkers:
    """Runs clients' authentication in the same threads, after a turn in the fair queue."""

    def __init__(self, workers: Workers, queue: FairQueue, is_slow: Callable[[str], bool]) -> None:
        """`is_slow` says whether the attempts of an address wait after those of others."""
        self._workers = workers
        self._queue = queue
        self._is_slow = is_slow

    def do(self, credentials: Credentials, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Like Workers.do(), unless the client leaves before its turn: then neither is called."""
        slow = self._is_slow(credentials.source)

        def begin() -> None:
            if not slow and self._is_slow(credentials.source):  # others at its address failed meanwhile
                self.do(credentials, work, then)
                self._queue.done(slow)
            else:
                self._workers.do(work, done)

        def done(found: T) -> None:
            self._queue.done(slow)
            then(found)

        job = Job(credentials.source, credentials.username or "", begin)
        credentials.attempt.waits(job.cancel)
        self._queue.put(job, slow)
