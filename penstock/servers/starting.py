"""How far a store's start is: told in the log, and to whoever asks the admin endpoint meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("penstock")

REPORT_S = 2.0


class Starting:
    """Written by the loop's thread, which is busy with the start; `text` may be read from any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.text = "starting"
        """Empty once the start is over."""
        self._clock = clock
        self._reported_s = clock()

    def replayed(self, done_bytes: int, of_bytes: int) -> None:
        """So much of the log that the index does not have was replayed."""
        percent = 100 * done_bytes // max(of_bytes, 1)
        self.text = f"starting: the index takes in {of_bytes >> 20} MiB of the log, {percent} % are done"
        now_s = self._clock()
        if now_s - self._reported_s >= REPORT_S:
            self._reported_s = now_s
            log.info("%s", self.text)

    def is_over(self) -> None:
        self.text = ""
