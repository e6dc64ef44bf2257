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
from penstock.sdk.errors import ConnectionLost, StoreRefused
from penstock.sdk.outgoing import Outgoing, PublishLater, outgoing
from store.records.record_bytes import walk
from store.wire.messages import FailureCode, Welcome

FLOW = """
[flow.orders]
from = "kafka://127.0.0.1:9092/orders"
to = "penstock:"
where = "!string(payload).startsWith('left')"
map = { topic = "{json.to}" }
"""
START = 7

pytestmark = pytest.mark.asyncio


class StoreModel:
    """What a store has under one name: at a new connection it tells only the part of it that is safe."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.stored: list[tuple[str, bytes]] = []
        self.number = 0
        self.safe = 0
        self.line: AppendsModel | None = None

    def append(self, number: int, records: bytes) -> bool:
        found = [(topic.decode(), payload) for *_, topic, _, _, _, payload in walk(records)] if records else []
        if any(topic.startswith("refused/") for topic, _ in found):
            raise StoreRefused(FailureCode.BAD_REQUEST, "not such a topic")
        if self.chance.random() < 0.1:
            self.safe = self.number
        if number <= self.number:
            return False
        self.number = number
        self.stored += found
        return True


class AppendsModel:
    """One process's connection, lost now and then, before the store has an Append or behind that."""

    def __init__(self, store: StoreModel) -> None:
        self._store = store

    @property
    def welcome(self) -> Welcome:
        if self._store.line is not self:
            raise ConnectionLost("another one came")
        return Welcome(1, "store", 0, 1 << 20, 1 << 16, 100, [], 0, max_changes=100)

    async def connected(self) -> int:
        while self._store.line is not None:
            await asyncio.sleep(0)
            if self._store.chance.random() < 0.1:
                break
        self._store.line = self
        return self._store.safe

    def append(self, number: int, records: bytes) -> asyncio.Future[bool]:
        _ = self.welcome
        return asyncio.ensure_future(self._append(number, records))

    async def _append(self, number: int, records: bytes) -> bool:
        for _ in range(self._store.chance.randrange(4)):
            await asyncio.sleep(0)
        self._maybe_lost()
        stored = self._store.append(number, records)
        self._maybe_lost()
        self._store.safe = max(self._store.safe, number)  # else there is no answer
        return stored

    def _maybe_lost(self) -> None:
        if self._store.line is self and self._store.chance.random() < 0.03:
            self._store.line = None
        if self._store.line is not self:
            raise ConnectionLost("lost")


def make(topic: str, payload: bytes | str, options: PublishLater) -> Outgoing:
    return outgoing(topic, payload, False, key=options.get("key"), headers=options.get("headers"))


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
        self._feed = PartitionFeed(flow, 0, make, AppendsModel(store), self.counts, self._start, self._settled)
        self._tasks = [asyncio.create_task(self._feed.run()), asyncio.create_task(self._read())]

    async def _start(self, _: int) -> int:
        return START

    def _settled(self, count: int, _: int) -> None:
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


async def test_nothing_stays_in_hand_and_all_is_counted(flow: Flow) -> None:
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
