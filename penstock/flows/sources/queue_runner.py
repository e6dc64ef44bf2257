"""A flow from a broker that keeps messages until they are settled: a queue of AMQP, a session of MQTT."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

from penstock.flows.sources.known_ids import KnownIds, Noted
from penstock.flows.sources.numbered import NumberedAppends
from penstock.flows.sources.queue_feed import Queued, QueueFeed
from penstock.flows.sources.runner import SourceRunner, until_one_ends
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
            await until_one_ends(self._brought(), self.group.paused.wait())  # what is in hand is the broker's again

    async def _brought(self) -> None:
        """Until cancelled. Raises StoreRefused."""
        name = self.flow.name
        appends = NumberedAppends(self._client.another_link(f"{PRODUCER}{self.kind}:{name}:{self.source}"))
        known = KnownIds(f"$flows/{name}/ids/{self.source}", self._client.message, self._find)
        feed = self._feed(appends, known)
        try:
            await until_one_ends(feed.run(), self._take(feed))
        finally:
            await appends.close()

    async def _find(self, key: str, topic: str, limit: int) -> list[Noted]:
        return [*await self._client.find(key, topic=topic, limit=limit)]
