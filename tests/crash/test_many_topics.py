"""SIGKILL while thousands of topics get messages in turn, so that their entries share keys of the index."""

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from penstock import Client
from store.log.index import Index
from store.settings import StoreSettings
from tests.crash.replayed import assert_index_equals_replay
from tests.support.index_entries import neighbours_keys
from tests.support.store_process import StoreProcess
from tests.support.stores import SOCKETS

pytestmark = pytest.mark.asyncio

TOPICS = 2_500
ROUNDS = 3  # between two kills
KILLS = 4
SETTINGS = {
    "store.segment_bytes": 1 << 20,
    "store.index_flush_ms": 20,
    "store.index_write_buffer_bytes": 65_536,
    "gateway.maximum_packet_size_bytes": 65_536,
    "wire.lease_ms": 60_000,
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path, settings=SETTINGS)
    yield store
    store.close()


async def publish(client: Client, number: int) -> None:
    await asyncio.gather(*(client.publish(f"many/{topic}", b"%d" % number) for topic in range(TOPICS)))


async def publish_rounds(client: Client, first: int) -> None:
    for number in range(first, first + ROUNDS):
        await publish(client, number)


def keys_of_neighbours(data: Path, scratch: Path) -> int:
    """As the next start has them: how many of them a kill leaves on the disk depends on when RocksDB last flushed."""
    shutil.copytree(data, scratch, ignore=SOCKETS)
    MessageStore(StoreSettings(data=scratch)).close()
    index = Index(scratch / "index", 1 << 20)
    try:
        return neighbours_keys(index)
    finally:
        index.close()


@pytest.mark.catalogue("C10")
async def test_kills_while_many_topics_share_keys(tmp_path: Path, store: StoreProcess) -> None:
    rng = random.Random(27)
    async with Client(store.url.replace("tcp://", "penstock://")) as client:
        for kill in range(KILLS):
            publishing = asyncio.create_task(publish_rounds(client, kill * ROUNDS))
            await asyncio.sleep(rng.uniform(0, 0.5))  # it is killed anywhere
            await asyncio.to_thread(store.restart)
            await publishing
        for topic in rng.sample(range(TOPICS), 50):
            found = [message async for message in client.read(f"many/{topic}")]
            assert [int(message.payload) for message in found] == list(range(KILLS * ROUNDS))
            assert [message.queue_offset for message in found] == list(range(KILLS * ROUNDS))
    store.kill()
    # How many of them there are depends on how many topics a write of the index has: on a busy machine a few.
    assert keys_of_neighbours(store.data, tmp_path / "started-again") > 0
    (tmp_path / "scratch").mkdir()
    assert_index_equals_replay(store.data, StoreSettings(data=store.data), tmp_path / "scratch")
