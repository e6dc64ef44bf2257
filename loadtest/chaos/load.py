"""All clients of one deployment; their random choices come from one seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from loadtest.chaos.clients import ChaosClient, ChaosPublisher, ChaosSession, ChaosSubscriber, Server
from loadtest.chaos.ledger import Ledger, until


class ChaosLoad:
    """All clients of a test; their random choices come from one seed."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.ledger = Ledger()
        self.rng = random.Random(seed)
        self.publishers: list[ChaosPublisher] = []
        self.subscribers: list[ChaosSubscriber] = []

    @property
    def clients(self) -> list[ChaosClient]:
        return [*self.publishers, *self.subscribers]

    def publisher(self, client_id: str, *topics: tuple[str, int], version: int = 5) -> ChaosPublisher:
        self.publishers.append(ChaosPublisher(self._session(client_id, version), topics))
        return self.publishers[-1]

    def subscriber(self, client_id: str, filters: Mapping[str, int], version: int = 5) -> ChaosSubscriber:
        self.subscribers.append(ChaosSubscriber(self._session(client_id, version), filters))
        return self.subscribers[-1]

    def _session(self, client_id: str, version: int) -> ChaosSession:
        return ChaosSession(client_id, self.server, self.ledger, random.Random(self.rng.random()), version)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the clients inside the block; at its start all subscriptions are granted."""
        tasks = [asyncio.create_task(client.run()) for client in self.clients]
        try:
            await until(lambda: all(subscriber.subscribed for subscriber in self.subscribers), "all SUBACKs")
            yield
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            for client in self.clients:
                client.close_abandoned()
        for end in ends:
            if not isinstance(end, asyncio.CancelledError):
                raise AssertionError("a client of the test failed") from end

    def allow(self, messages: int) -> None:
        """Let every publisher publish so many more messages."""
        for publisher in self.publishers:
            publisher.allow(messages)

    async def restart(self) -> None:
        """Kill with SIGKILL, and start again."""
        await asyncio.to_thread(self.server.restart)

    async def upset(self, kills: int, most_events: int = 400) -> None:
        """Kill the server several times at random moments; cut single connections in between."""
        for _ in range(kills):
            self.allow(2_000)
            for _ in range(self.rng.randrange(8)):
                await self.ledger.progress(self.rng.randrange(most_events // 4))
                client = self.rng.choice(self.clients)
                self.rng.choice((client.cut, client.move))()
            await self.ledger.progress(self.rng.randrange(1, most_events))
            await self.restart()

    async def settle(self) -> None:
        """Wait until everything sent is acknowledged and everything due is delivered, also after one more restart."""
        for subscriber in self.subscribers:
            subscriber.settle()
            subscriber.online.set()
        for publisher in self.publishers:
            publisher.budget = 0
        for restart in (True, False):
            self.allow(4)  # the last of each topic: all others come before it
            await self.all_acknowledged()
            await self.ledger.wait(lambda: self.ledger.all_delivered, "all deliveries")
            if restart:
                await self.restart()

    async def all_acknowledged(self) -> None:
        """Wait until the publishers have sent their budget, and all of it is acknowledged."""
        await self.ledger.wait(lambda: all(publisher.idle for publisher in self.publishers), "all acknowledgements")
