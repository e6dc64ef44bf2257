"""Log lines that bad input could cause by the million: a few per second of each kind, and how many were left out."""

from __future__ import annotations

import logging
import time

LINES_PER_SECOND = 10


class RateLimitedLog:
    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._second: dict[str, int] = {}
        self._lines: dict[str, int] = {}

    def info(self, kind: str, message: str, *values: object) -> None:
        self._emit(logging.INFO, kind, message, *values)

    def warning(self, kind: str, message: str, *values: object) -> None:
        self._emit(logging.WARNING, kind, message, *values)

    def error(self, kind: str, message: str, *values: object) -> None:
        self._emit(logging.ERROR, kind, message, *values)

    def _emit(self, level: int, kind: str, message: str, *values: object) -> None:
        second = int(time.monotonic())
        if self._second.get(kind) != second:
            left_out = self._lines.get(kind, 0) - LINES_PER_SECOND
            if left_out > 0:
                self._log.log(level, "%d more lines of the kind '%s' were left out", left_out, kind)
            self._second[kind] = second
            self._lines[kind] = 0
        self._lines[kind] += 1
        if self._lines[kind] <= LINES_PER_SECOND:
            self._log.log(level, message, *values)
