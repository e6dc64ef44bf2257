"""Log lines that clients could cause by the million: a few per second of each kind, and how many were left out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

LINES_PER_SECOND = 10
VALUE_CHARACTERS = 200


@dataclass(slots=True)
class _Second:
    """The lines of one kind within a second: written and suppressed."""

    since_s: float
    level: int
    lines: int = 0


class RateLimitedLog:
    """Kinds are a fixed few words, never something that a client chose; each becomes the line's `event`.

    Values are often what a client chose, so long ones are cut.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._seconds: dict[str, _Second] = {}

    def info(self, kind: str, message: str, *values: object) -> None:
        self._emit(logging.INFO, kind, message, *values)

    def warning(self, kind: str, message: str, *values: object) -> None:
        self._emit(logging.WARNING, kind, message, *values)

    def error(self, kind: str, message: str, *values: object) -> None:
        self._emit(logging.ERROR, kind, message, *values)

    def tell_left_out(self) -> None:
        """Say of each kind whose second is over how many lines were left out. Call this once a second."""
        now_s = self._clock()
        for kind in [kind for kind, second in self._seconds.items() if now_s - second.since_s >= 1]:
            self._close(kind)

    def close(self) -> None:
        """Say it now of all kinds: nothing more is to come."""
        for kind in list(self._seconds):
            self._close(kind)

    def _close(self, kind: str) -> None:
        second = self._seconds.pop(kind)
        left_out = second.lines - LINES_PER_SECOND
        if left_out > 0:
            self._log.log(
                second.level, "%d more lines of the kind %s were left out", left_out, kind, extra={"event": kind}
            )

    def _emit(self, level: int, kind: str, message: str, *values: object) -> None:
        if not self._log.isEnabledFor(level):
            return
        now_s = self._clock()
        second = self._seconds.get(kind)
        if second is not None and now_s - second.since_s >= 1:
            self._close(kind)
            second = None
        if second is None:
            second = self._seconds[kind] = _Second(now_s, level)
        second.lines += 1
        if second.lines <= LINES_PER_SECOND:
            self._log.log(level, message, *map(_shortened, values), extra={"event": kind})


def _shortened(value: object) -> object:
    if isinstance(value, str) and len(value) > VALUE_CHARACTERS:
        return value[:VALUE_CHARACTERS] + "…"
    return value
