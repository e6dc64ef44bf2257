"""What the console sees of its server all the time: samples of a day, gateways, and what is wrong."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from penstock.console.observe.gateways import Gateways, GatewayState
from penstock.console.observe.history import ALL, FigureHistory, sample_of_all
from penstock.console.observe.look import ServerLook, look_at
from penstock.console.observe.samples import SamplePoint
from penstock.console.observe.troubles import Trouble, troubles
from penstock.console.observe.watch import Watch
from penstock.console.store.errors import OperatorError
from penstock.console.store.operator import OperatorConnection

FRESH_S = 1.0


class Overview:
    """Asks the server once for all who look within a second. Make it in the loop that calls it."""

    def __init__(self, stuck_s: float, sample_s: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.history = FigureHistory(self._loop.time, sample_s)
        self.gateways = Gateways(self.history.time_ms)
        self.watch = Watch(stuck_s)
        self._last: ServerLook | None = None
        self._lock = asyncio.Lock()

    async def run(self, operator: OperatorConnection) -> None:
        """Look again and again, until cancelled. While the store is away nothing is seen."""
        await asyncio.gather(self._sample(operator), self._watch(operator))

    async def _sample(self, operator: OperatorConnection) -> None:
        """The second look is soon, so that there is a sample before anybody opens a page."""
        pause_s: float = 1.5 * FRESH_S
        while True:
            begun_s = self._loop.time()
            with suppress(OperatorError):
                self.history.add(await self.look(operator))
                await asyncio.sleep(pause_s - (self._loop.time() - begun_s))
                pause_s = self.history.sample_s
                continue
            await asyncio.sleep(FRESH_S)

    async def _watch(self, operator: OperatorConnection) -> None:
        while True:
            with suppress(OperatorError):
                await self.watch.look(operator, await self.look(operator))
            await asyncio.sleep(self.watch.period_s)

    async def look(self, operator: OperatorConnection) -> ServerLook:
        """Raises an OperatorError."""
        async with self._lock:
            if self._last is None or self._loop.time() - self._last.at_s >= FRESH_S:
                self._last = await look_at(operator)
                self.gateways.seen(self._last, self.history.recent(self._last))
            return self._last

    def now(self, look: ServerLook) -> SamplePoint:
        """What is the case: rates of the last seconds, and times of the last minutes."""
        of_minutes = self.history.last_minutes(ALL, look, look.at_s)
        return sample_of_all(of_minutes.time_ms, look, self.history.recent(look))._replace(times=of_minutes.times)

    def minutes_of(self, gateway: GatewayState) -> SamplePoint:
        """The times of a gateway in the last minutes, up to its last report."""
        return self.history.last_minutes(gateway.name, self._last, gateway.seen_s)

    def troubles(self, look: ServerLook) -> list[Trouble]:
        return troubles(look) + self.watch.troubles()
