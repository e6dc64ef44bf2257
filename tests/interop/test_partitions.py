"""Six partitions of an ordered group, shared out among three, six and eight consumers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from penstock import Client
from store.wire.group_messages import GroupList, GroupsListed

pytestmark = pytest.mark.asyncio

PARTITIONS = 6
KEYS = 60
EACH = 5  # messages of a key in each round
TIMEOUT_S = 60


class Workers:
    """Consumers that come one after another, and what each got of which key."""

    def __init__(self, url: str, clients: AsyncExitStack) -> None:
        self._url = url
        self._clients = clients
        self._tasks: list[asyncio.Task[None]] = []
        self._got = asyncio.Event()
        self.found: dict[str, list[int]] = {f"k{key}": [] for key in range(KEYS)}
        self.keys_of: list[set[str]] = []

    async def add(self) -> None:
        client = await self._clients.enter_async_context(Client(self._url))
        self.keys_of.append(set())
        self._tasks.append(asyncio.create_task(self._work(client, len(self._tasks))))

    async def _work(self, client: Client, number: int) -> None:
        async for message in client.subscribe("orders", group="g", ordered=True, partitions=PARTITIONS):
            assert message.key is not None
            self.found[message.key].append(int(message.payload))
            self.keys_of[number].add(message.key)
            assert await message.ack()
            self._got.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while sum(map(len, self.found.values())) < count:
                self._got.clear()
                await self._got.wait()

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()


async def partitions(client: Client) -> list[int]:
    """How many each consumer has."""
    answer, _ = await client._ask(GroupList("", 0))
    assert isinstance(answer, GroupsListed)
    return sorted(len(consumer.partitions) for group in answer.groups for consumer in group.some)


@pytest.mark.catalogue("B6")
async def test_six_partitions_over_three_six_and_eight_consumers(url: str) -> None:
    shares = {3: [2, 2, 2], 6: [1] * 6, 8: [0, 0, 1, 1, 1, 1, 1, 1]}
    async with AsyncExitStack() as clients:
        client = await clients.enter_async_context(Client(url))
        workers = Workers(url, clients)
        sent = 0
        for count, share in shares.items():
            while len(workers.keys_of) < count:
                await workers.add()
            async with asyncio.timeout(TIMEOUT_S):
                while await partitions(client) != share:  # noqa: ASYNC110 it is another process's state
                    await asyncio.sleep(0.01)
            for keys in workers.keys_of:
                keys.clear()
            for number in range(sent, sent + EACH):
                await asyncio.gather(*(client.send("orders", b"%d" % number, key=f"k{key}") for key in range(KEYS)))
            sent += EACH
            await workers.until(sent * KEYS)
            assert sorted(bool(keys) for keys in workers.keys_of) == [each > 0 for each in share]
            assert sum(map(len, workers.keys_of)) == KEYS, "each key is one consumer's"
        workers.end()
    assert set(map(tuple, workers.found.values())) == {tuple(range(sent))}
