"""What OpenTelemetry logs of failed exports, as lines of the server's log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("penstock.tracing")

SDK_LOGGER = "opentelemetry"
AGAIN_S = 60.0
MOST_TEXT = 300  # characters of the SDK's words


class ExportLog(logging.Handler):
    """Says once in AGAIN_S that spans cannot be exported, and why. The SDK's threads call it."""

    def __init__(self, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._endpoint = endpoint
        self._clock = clock
        self._next_s = 0.0
        self._unsaid = 0

    def emit(self, record: logging.LogRecord) -> None:
        now_s = self._clock()
        if now_s < self._next_s:
            self._unsaid += 1
            return
        text = " ".join(record.getMessage().split())[:MOST_TEXT]
        before = f" ({self._unsaid} such events before)" if self._unsaid else ""
        self._next_s, self._unsaid = now_s + AGAIN_S, 0
        log.warning("spans are not exported to %s: %s%s; check tracing.endpoint", self._endpoint, text, before)


def take_over(endpoint: str) -> None:
    """Have the SDK's lines go to the server's log."""
    sdk = logging.getLogger(SDK_LOGGER)
    sdk.handlers = [ExportLog(endpoint)]
    sdk.propagate = False
