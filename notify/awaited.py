"""Counting the answers that something waits for."""

from __future__ import annotations

from collections.abc import Callable


class Awaited:
    """Calls back once as many answers came as were awaited."""

    __slots__ = ("_then", "number")

    def __init__(self, number: int, then: Callable[[], object]) -> None:
        self.number = number  # answers that are still to come
        self._then = then

    def came(self) -> None:
        """One of the answers is here."""
        self.number -= 1
        if not self.number:
            then, self._then = self._then, _nothing  # which may refer to this object
            then()


def _nothing() -> None: ...
