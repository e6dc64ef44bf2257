"""A bell that one thread rings and another one waits for.

An eventfd where there is one (Linux): to wake a thread by it takes half the CPU of a threading.Lock. The thread that
rings has let go of the GIL by the time the other one wants it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

EVENT_BYTES = 8  # what a read of an eventfd gives
HAS_EVENTS = hasattr(os, "eventfd")


class Bell(Protocol):
    """Each ring() is for one wait()."""

    def ring(self) -> None: ...

    def wait(self) -> None:
        """A signal's handler may end it by raising an error."""


class EventBell:
    """Closed once no thread has it any more, so that no thread rings another file that has its number."""

    __slots__ = ("_fd",)

    def __init__(self, flags: int = 0) -> None:
        """Raises OSError if no more files may be open."""
        self._fd = -1
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | flags)

    def ring(self) -> None:
        os.eventfd_write(self._fd, 1)

    def wait(self) -> None:
        os.read(self._fd, EVENT_BYTES)

    def fileno(self) -> int:
        return self._fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._fd >= 0:
            close(self._fd)


class LockBell:
    """For systems without eventfd, and processes that cannot open one."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        self._lock.release()

    def wait(self) -> None:
        self._lock.acquire()


class _Idle(threading.local):
    """Bells of this thread, for its next calls; more than one if signal handlers call as well."""

    def __init__(self) -> None:
        self.bells: list[Bell] = []


_idle = _Idle()


def borrow() -> Bell:
    """A bell that only this thread waits for."""
    if _idle.bells:
        return _idle.bells.pop()
    if HAS_EVENTS:
        with suppress(OSError):
            return EventBell()
    return LockBell()


def give_back(bell: Bell) -> None:
    """One that was rung, and waited for."""
    _idle.bells.append(bell)


def _forget() -> None:
    global _idle
    _idle = _Idle()  # those of the parent ring there


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
