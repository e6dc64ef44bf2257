"""The progress of a store's start, for the log and the admin endpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("penstock")

REPORT_S = 2.0


class Starting:
    """The loop's thread, which is busy with the start, writes it; any thread may read `text`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.text = "starting"
        """Empty once the start is over."""
        self._clock = clock
        self._reported_s = clock()

    def replayed(self, done_bytes: int, of_bytes: int) -> None:
        """Report how much of the log that the index lacks was replayed."""
        percent = 100 * done_bytes // max(of_bytes, 1)
        self.text = f"starting: replaying {of_bytes >> 20} MiB of the log into the index, {percent} % done"
        now_s = self._clock()
        if now_s - self._reported_s >= REPORT_S:
            self._reported_s = now_s
            log.info("%s", self.text)

    def is_over(self) -> None:
        self.text = ""
