"""Whether a sink takes messages. While it is away one request at a time tries it, and all others wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from penstock.flows.errors import SinkAway

log = logging.getLogger("penstock.flows")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0
SAY_AGAIN_S: Final = 600.0


class SinkGate:
    """Owner of what is known of one flow's sink."""

    def __init__(
        self,
        flow: str,
        chance: Callable[[], float],
        noted: Callable[[str], object],
        again: str = "the sink takes messages again",
    ) -> None:
        """`chance`: between 0 and 1, for a part of each pause. `noted` hears why the sink is away, each time that it is
        tried. `again`: what is said once an outage is over."""
        self.away = ""
        """Why the sink takes nothing; empty: it does."""
        self.outages = 0
        """So far."""
        self._flow, self._again, self._noted = flow, again, noted
        self._chance = chance
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._stopping = asyncio.Event()
        self._prober: asyncio.Task[Any] | None = None  # the one that tries whether the sink is there again
        self._tries = 0  # in this one
        self._said_s = 0.0

    def stop(self) -> None:
        """Have nobody wait any more."""
        self._stopping.set()
        self._is_open.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def passed(self) -> int:
        """Wait until a request may go out. Returns what answered() wants to know."""
        if asyncio.current_task() is not self._prober:
            await self._is_open.wait()
        return self.outages

    async def shut(self, error: SinkAway) -> None:
        """A request found the sink away. The first one that did tries again: for it this takes as long as the pause."""
        task = asyncio.current_task()
        if self._prober is None:
            self._prober = task
            self.outages += 1
            self._is_open.clear()
        if task is not self._prober:
            return
        self.away = str(error)
        self._noted(self.away)
        now_s = time.monotonic()
        if not self._said_s or now_s - self._said_s > SAY_AGAIN_S:
            self._said_s = now_s
            log.warning("flow %s: %s; it waits for it", self._flow, error)
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self._tries, 30), LONGEST_PAUSE_S) * (0.5 + self._chance() / 2)
        self._tries += 1
        await self.pause(max(error.after_s or 0.0, pause_s))

    async def pause(self, seconds: float) -> None:
        """Wait for so long, or until stop()."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def answered(self, outages: int) -> None:
        """A request was answered, for which passed() said `outages`. One from before an outage does not count."""
        if outages != self.outages:
            return
        if self.away:
            log.info("flow %s: %s", self._flow, self._again)
        self._prober = None
        self._is_open.set()
        self._tries, self.away, self._said_s = 0, "", 0.0

    def troubled(self, reason: str) -> None:
        """What reads from there, or writes to it, tries again by itself: nobody has to wait here."""
        if not self.away:
            self.outages += 1
            log.warning("flow %s: %s; it waits for it", self._flow, reason)
        self.away = reason
        self._noted(reason)

    def left(self, task: asyncio.Task[Any]) -> None:
        """A request has ended. If it was the one that tried, another one has to."""
        if task is self._prober:
            self._prober = None
            self._is_open.set()
