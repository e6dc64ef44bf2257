"""A flow from a broker that keeps messages until they are settled: a queue of AMQP, a session of MQTT."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Generic, TypeVar

from penstock.flows.sources.known_ids import KnownIds, Noted
from penstock.flows.sources.numbered import NumberedAppends
from penstock.flows.sources.queue_feed import Queued, QueueFeed
from penstock.flows.sources.runner import SourceRunner
from store.wire.base import PRODUCER

M = TypeVar("M", bound=Queued)


class QueueRunner(SourceRunner, Generic[M]):
    """Owner of a flow's feed while the flow is not paused."""

    kind: str
    """As the store's peers are named: amqp, mqtt."""
    source: str
    """Which queue or session, for names."""

    @abstractmethod
    def _feed(self, appends: NumberedAppends, known: KnownIds) -> QueueFeed[M]: ...

    @abstractmethod
    async def _take(self, feed: QueueFeed[M]) -> None:
        """Have a consumer that fills the feed. Until cancelled."""

    async def _bring(self) -> None:
        while not self.gate.is_stopping:
            await self.group.going.wait()
            await self._until(self.group.paused, self._brought())  # what is in hand is the broker's again

    async def _brought(self) -> None:
        """Until cancelled. Raises StoreRefused."""
        name = self.flow.name
        appends = NumberedAppends(self._client.another_link(f"{PRODUCER}{self.kind}:{name}:{self.source}"))
        known = KnownIds(f"$flows/{name}/ids/{self.source}", self._client.message, self._find)
        feed = self._feed(appends, known)
        tasks = [asyncio.create_task(feed.run()), asyncio.create_task(self._take(feed))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await appends.close()

    async def _find(self, key: str, topic: str, limit: int) -> list[Noted]:
        return [*await self._client.find(key, topic=topic, limit=limit)]
