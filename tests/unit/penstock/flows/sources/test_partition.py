"""Records of a partition, and a store that loses connections: each is stored once, in order, whoever stores it."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.flows.counts import FlowCounts
from penstock.flows.definition import Flow, read_flows
from penstock.flows.sources.partition import PartitionFeed
from penstock.flows.sources.records import KafkaRecord
from tests.unit.penstock.flows.sources.store_model import AppendsModel, StoreModel, make

FLOW = """
[flow.orders]
from = "kafka://127.0.0.1:9092/orders"
to = "penstock:"
where = "!string(payload).startsWith('left')"
map = { topic = "{json.to}" }
"""
START = 7

pytestmark = pytest.mark.asyncio


def records(chance: random.Random) -> list[KafkaRecord]:
    """Some offsets are missing, as Kafka leaves out what was compacted, and where transactions end."""
    kinds = [
        b'{"to": "in/a", "n": %d}',
        b'{"to": "in/b", "n": %d}',
        b'{"to": "refused/c", "n": %d}',
        b"bad %d",
        b"left %d",
    ]
    offsets = [offset for offset in range(START, 400) if chance.random() < 0.9]
    return [
        KafkaRecord("orders", 0, offset, None, chance.choices(kinds, (60, 20, 2, 5, 20))[0] % offset)
        for offset in offsets
    ]


def expected(found: list[KafkaRecord]) -> list[tuple[str, bytes]]:
    topics = {b'{"to": "in/a"': "in/a", b'{"to": "in/b"': "in/b"}
    return [
        (topics.get(record.payload.partition(b",")[0], "$flows/orders/dead/orders"), record.payload)
        for record in found
        if not record.payload.startswith(b"left")
    ]


class Process:
    """A feed, and the consumer that feeds it."""

    def __init__(self, flow: Flow, store: StoreModel, found: list[KafkaRecord]) -> None:
        self.counts = FlowCounts()
        self.in_hand = 0
        self._found, self._chance = found, store.chance
        self._feed = PartitionFeed(flow, 0, make, AppendsModel(store), self.counts, self)
        self._tasks = [asyncio.create_task(self._feed.run()), asyncio.create_task(self._read())]

    async def start_of(self, _: int) -> int:
        return START

    def settled(self, count: int, _: int) -> None:
        self.in_hand -= count

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(0)
            if self._feed.begun.is_set() and self._feed.fetch_from is not None:
                self._feed.fetched, self._feed.fetch_from = self._feed.fetch_from, None
            elif self._feed.begun.is_set():
                behind = [record for record in self._found if record.offset >= self._feed.fetched]
                if taken := behind[: self._chance.randrange(40)]:
                    self.in_hand += len(taken)
                    self._feed.add(taken)
                if self._chance.random() < 0.1:
                    self._feed.cut(self._chance.randrange(40), self._chance.randrange(800))
                    assert self.in_hand == self._feed.in_hand

    async def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    (tmp_path / "flows.toml").write_text(FLOW)
    (found,) = read_flows(tmp_path / "flows.toml")
    return found


@pytest.mark.parametrize("seed", range(20))
async def test_each_record_is_stored_once_whatever_is_lost(flow: Flow, seed: int) -> None:
    chance = random.Random(seed)
    store, found = StoreModel(chance), records(chance)
    processes = [Process(flow, store, found) for _ in range(2)]
    wanted = expected(found)
    async with asyncio.timeout(60):
        while len(store.stored) < len(wanted):
            await asyncio.sleep(0)
            if chance.random() < 0.01:
                which = chance.randrange(2)
                await processes[which].kill()
                if store.line is not None:
                    store.line = None
                processes[which] = Process(flow, store, found)
    for process in processes:
        await process.kill()
    assert store.stored == wanted


async def test_partition_releases_all_records_and_counts_them(flow: Flow) -> None:
    chance = random.Random(1)
    store, found = StoreModel(chance), records(chance)
    store.chance = random.Random(1)
    process = Process(flow, store, found)
    async with asyncio.timeout(60):
        while process.counts.taken < len(found):  # noqa: ASYNC110
            await asyncio.sleep(0)
    await process.kill()
    assert process.in_hand == 0
    wanted = expected(found)
    assert len(store.stored) == len(wanted)
    assert process.counts.passed == len(wanted)
