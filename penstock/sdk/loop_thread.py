"""A thread with an event loop, for programs without one. After a fork it is the parent's: the child needs another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from penstock.sdk.bell import HAS_EVENTS, EventBell
from penstock.sdk.errors import ClientClosed, OfParentProcess

T = TypeVar("T")

CLOSING_S = 0.01  # for a connection that was aborted to be closed


class RingListener(Protocol):
    """Told by the loop of a LoopThread that another thread rang."""

    def rung(self) -> None:
        """It may have been rung more than once."""


class LoopThread:
    """Runs once constructed, until stop(). Its methods may be called from any thread but its own."""

    def __init__(self) -> None:
        self.is_of_parent = False  # it did not come along when this process was forked
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-client", daemon=True)
        self._is_stopped = False
        self._listener: RingListener | None = None
        self._is_rung = False
        self._bell = EventBell(os.EFD_NONBLOCK) if HAS_EVENTS else None
        if self._bell is not None:
            self._loop.add_reader(self._bell, self._rung)
        self._thread.start()
        _running.add(self)

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Raises ClientClosed, OfParentProcess."""
        if self._is_stopped or self.is_of_parent:
            work.close()
        self._check()
        if self._is_rung:  # what that is about comes first
            self._loop.call_soon_threadsafe(self._tell)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for what it gives, or raises. Raises ClientClosed, OfParentProcess."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:  # Ctrl-C, for one: the program does not wait any more
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of a generator of this loop, one at a time. It is closed when the program leaves them."""
        try:
            while (item := self.call(_following(items))) is not None:
                yield item
        finally:
            with suppress(ClientClosed, OfParentProcess):
                self.call(_closed(items))

    def soon(self, do: Callable[[], object]) -> None:
        """Without waiting for it. Raises ClientClosed, OfParentProcess."""
        self._check()
        self._loop.call_soon_threadsafe(do)

    def listen(self, listener: RingListener) -> None:
        """Tell the listener of each ring()."""
        self._listener = listener

    def ring(self) -> None:
        """Have the listener's rung() called, before whatever is started later. Raises ClientClosed, OfParentProcess."""
        self._check()
        self._is_rung = True
        if self._bell is None:
            self._loop.call_soon_threadsafe(self._rung)
        else:
            self._bell.ring()

    def _rung(self) -> None:
        self._is_rung = False
        if self._bell is not None:
            self._bell.wait()
        self._tell()

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener.rung()

    def stop(self) -> None:
        """Wait until the thread has ended."""
        self._is_stopped = True
        if not self.is_of_parent:
            self._loop.call_soon_threadsafe(self._loop.call_later, CLOSING_S, self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _check(self) -> None:
        if self._is_stopped:
            raise ClientClosed
        if self.is_of_parent:
            raise OfParentProcess


async def _following(items: AsyncGenerator[T, None]) -> T | None:
    return await anext(items, None)


async def _closed(items: AsyncGenerator[T, None]) -> None:
    await items.aclose()


_running: weakref.WeakSet[LoopThread] = weakref.WeakSet()
one_at_a_time = threading.RLock()  # makes a connection; again, as a signal's handler may publish
_left_to_parent: list[LoopThread] = []  # never collected here: closing what is shared would disturb the parent


def _leave_to_parent() -> None:
    global one_at_a_time
    one_at_a_time = threading.RLock()  # the other one may be held, by a thread that is not here
    for each in _running:
        each.is_of_parent = True
        _left_to_parent.append(each)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
