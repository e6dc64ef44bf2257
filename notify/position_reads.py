"""Records by their log_offset that have to be fetched: from the store of a gateway, or from the tier of a store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from notify.api import RecordsAt

FOUND_KEPT: Final = 16  # answers, of about 1 MiB at most
Came = Callable[[RecordsAt | None], None]


class PositionReads:
    """Owner of the newest answers, and of who waits for those to come."""

    def __init__(self, ask: Callable[[list[int], Came], object]) -> None:
        """`ask` for records; None: they cannot be read now, so they are asked for again."""
        self._ask = ask
        self._found: dict[tuple[int, ...], RecordsAt] = {}
        self._finding: dict[tuple[int, ...], list[Callable[[], None]]] = {}

    def read_at(self, log_offsets: list[int], then: Callable[[], None]) -> RecordsAt | None:
        """See notify.api.Store."""
        key = tuple(log_offsets)
        if key in self._found:
            return self._found[key]
        if key not in self._finding:
            self._finding[key] = []
            self._ask(log_offsets, partial(self._came, key))
        self._finding[key].append(then)
        return None

    def _came(self, key: tuple[int, ...], found: RecordsAt | None) -> None:
        if key not in self._finding:
            return
        if found is None:
            self._ask(list(key), partial(self._came, key))
            return
        while len(self._found) >= FOUND_KEPT:
            del self._found[next(iter(self._found))]
        self._found[key] = found
        for then in self._finding.pop(key):
            then()

    def clear(self) -> None:
        """Forget all requests: their answers will not come."""
        self._found.clear()
        self._finding.clear()
