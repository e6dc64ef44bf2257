"""What was read from storage last, in memory, up to so many bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar


class Sized(Protocol):
    """Something in memory that says how much it takes."""

    @property
    def nbytes(self) -> int: ...


S = TypeVar("S", bound=Sized)


class ReadCache:
    """Owner of what was read, by its name. For several threads: those that want the same wait for the one that reads
    it. What was not used for the longest time goes first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self.used_bytes = 0

    def __contains__(self, name: Hashable) -> bool:
        """Whether it is here or on its way."""
        return name in self._found

    def seen(self, name: Hashable) -> Any:
        """What is here by this name; None: nothing, or it is on its way."""
        found = self._found.get(name)
        return found.result() if found is not None and found.done() and found.exception() is None else None

    def get(self, name: Hashable, read: Callable[[], S]) -> S:
        """What `read` returned, now or earlier. Raises what `read` raises; the next call then reads it again."""
        with self._lock:
            found = self._found.get(name)
            if found is None:
                ours = self._found[name] = Future()
            else:
                self._found.move_to_end(name)
        if found is not None:
            came: S = found.result()
            return came
        try:
            made = read()
        except BaseException as error:
            with self._lock:
                self._found.pop(name, None)
            ours.set_exception(error)
            raise
        with self._lock:
            if self._found.get(name) is ours:
                self._sizes[name] = made.nbytes
                self.used_bytes += made.nbytes
                self._make_room(name)
        ours.set_result(made)
        return made

    def _make_room(self, newest: Hashable) -> None:
        for name in list(self._found):
            if self.used_bytes <= self._most_bytes:
                return
            if name != newest and name in self._sizes:
                self._drop(name)

    def _drop(self, name: Hashable) -> None:
        del self._found[name]
        self.used_bytes -= self._sizes.pop(name)
