"""Records by their position, from a store in another process: several may want the same ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from notify.api import RecordsAt
from store.records._records import records_from
from store.wire import messages as wire
from store.wire.client.requests import Answered, Outcome
from store.wire.frames import Frame
from store.wire.messages import WireMessage

FOUND_KEPT = 16  # answers, of about 1 MiB at most

Ask = Callable[[WireMessage, Answered], object]


class PositionReads:
    """Owner of the newest answers, and of who waits for those to come."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._found: dict[tuple[int, ...], RecordsAt] = {}
        self._finding: dict[tuple[int, ...], list[Callable[[], None]]] = {}

    def read_at(self, log_offsets: list[int], then: Callable[[], None]) -> RecordsAt | None:
        """As in notify.api.Store."""
        key = tuple(log_offsets)
        if key in self._found:
            return self._found[key]
        if key not in self._finding:
            self._finding[key] = []
            self._ask(wire.ReadAt(log_offsets), partial(self._came, key))
        self._finding[key].append(then)
        return None

    def _came(self, key: tuple[int, ...], answer: Outcome, frame: Frame) -> None:
        found: RecordsAt = {}
        if isinstance(answer, wire.RecordsAt):
            records = records_from(frame.records, 0)
            places = iter(range(records.count))
            for log_offset, is_kept in zip(key, answer.found, strict=False):
                found[log_offset] = (records, next(places)) if is_kept else None
        while len(self._found) >= FOUND_KEPT:
            del self._found[next(iter(self._found))]
        self._found[key] = found
        for then in self._finding.pop(key, ()):
            then()

    def clear(self) -> None:
        """Nothing that was asked for will come."""
        self._found.clear()
        self._finding.clear()
