"""The index is written late: what RocksDB does not have is there all the same, and after SIGKILL, once and in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock import Client
from penstock.sdk.message import Message
from store.settings import StoreSettings
from tests.crash.replayed import assert_index_equals_replay
from tests.support.store_process import StoreProcess

pytestmark = pytest.mark.asyncio

PAUSED = {"store.index_flush_ms": 3_600_000, "store.index_flush_entries": 100_000_000}
RUNNING = {"store.index_flush_ms": 1, "store.index_write_buffer_bytes": 65_536}
SMALL = {"store.segment_bytes": 262_144, "gateway.maximum_packet_size_bytes": 65_536, "wire.lease_ms": 60_000}
PER_ROUND = 1_000
KILLS = 5


@pytest.fixture
def started() -> Iterator[list[StoreProcess]]:
    started: list[StoreProcess] = []
    yield started
    for each in started:
        each.close()


def start(folder: Path, started: list[StoreProcess], settings: dict[str, int]) -> StoreProcess:
    """A store on what the last one left, which is killed."""
    for each in started:
        each.kill()
    started.append(StoreProcess(folder, settings=SMALL | settings))
    return started[-1]


def client_of(store: StoreProcess) -> Client:
    return Client(store.url.replace("tcp://", "penstock://"))


async def publish(client: Client, first: int, count: int) -> None:
    await asyncio.gather(
        *(
            client.publish(f"line/{number % 3}", b"%d" % number, key=f"k{number % 7}")
            for number in range(first, first + count)
        )
    )


async def numbers(reading: AsyncIterator[Message]) -> list[int]:
    return [int(message.payload) async for message in reading]


async def check(client: Client, wanted: set[int], group: str) -> None:
    """The queues of topics, of their first level and of a filter, and the index of keys, have each of them once."""
    found = await numbers(aiter(client.read("line/#")))
    assert sorted(found) == sorted(wanted)
    for each in range(3):
        messages = [message async for message in client.read(f"line/{each}")]
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        assert [int(message.payload) for message in messages] == [number for number in found if number % 3 == each]
    for each in range(7):
        by_key = [int(message.payload) for message in await client.find(f"k{each}", limit=100_000)]
        assert by_key == [number for number in reversed(found) if number % 7 == each]
    of_filter = [number for number in found if number % 3 == 0]
    handed: list[int] = []
    async with client.subscribe("+/0", group=group) as messages_:
        async for delivery in messages_:
            handed.append(int(delivery.payload))
            if len(handed) == len(of_filter):
                break
    assert handed == of_filter


@pytest.mark.catalogue("C10")
async def test_paused_resumed_and_killed_midway(tmp_path: Path, started: list[StoreProcess]) -> None:
    rng = random.Random(10)
    store = start(tmp_path, started, PAUSED)
    async with client_of(store) as client:
        async with client.subscribe("+/0", group="holds"):
            pass
        await publish(client, 0, PER_ROUND)
        await check(client, set(range(PER_ROUND)), "g0")  # what is acknowledged is seen, and RocksDB has none of it
        assert store.metric("penstock_index_pending_entries") >= 2 * PER_ROUND
    for kill in range(1, KILLS):
        store = start(tmp_path, started, RUNNING if kill % 2 else PAUSED)
        assert store.metric("penstock_log_replayed_bytes") > 0
        async with client_of(store) as client:
            publishing = asyncio.create_task(publish(client, kill * PER_ROUND, PER_ROUND))
            await asyncio.sleep(rng.uniform(0, 0.1))  # it is killed anywhere
            await asyncio.to_thread(store.restart)
            await publishing
            await check(client, set(range((kill + 1) * PER_ROUND)), f"g{kill}")
    store.kill()
    (tmp_path / "scratch").mkdir()
    assert_index_equals_replay(store.data, StoreSettings(data=store.data), tmp_path / "scratch")
