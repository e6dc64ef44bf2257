"""A client publishes and reads on while the store is killed again and again: each message is stored once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock import Client
from penstock.sdk.message import Receipt
from store.wire.messages import Published
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_relay import FrameWire

pytestmark = pytest.mark.asyncio

PUBLISHERS = 10
KILLS = 4
PER_ROUND = 300  # messages with a receipt between two kills


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path, settings={"store.segment_bytes": 2 << 20})
    yield store
    store.close()


@pytest.mark.parametrize("autobatch", [False, True])
@pytest.mark.catalogue("D14")
async def test_publishing_and_reading_through_kills(store: StoreProcess, autobatch: bool) -> None:
    url = store.url.replace("tcp://", "penstock://")
    receipts: dict[bytes, Receipt] = {}
    progress = asyncio.Event()
    is_over = False

    async def publish(client: Client, publisher: int) -> None:
        number = 0
        while not is_over:
            payload = b"%d-%d" % (publisher, number)
            receipts[payload] = await client.publish(f"k/{publisher % 3}", payload)
            number += 1
            progress.set()

    async def follow(client: Client, found: list[bytes]) -> None:
        async for message in client.read("k/#", stop=None):
            found.append(message.payload)
            progress.set()

    async def until(count: int, found: dict[bytes, Receipt] | list[bytes]) -> None:
        while len(found) < count:
            progress.clear()
            await progress.wait()

    seen: list[bytes] = []
    async with Client(url, autobatch=autobatch) as client, Client(url) as reader:
        following = asyncio.create_task(follow(reader, seen))
        publishing = [asyncio.create_task(publish(client, number)) for number in range(PUBLISHERS)]
        for _ in range(KILLS):
            await until(len(receipts) + PER_ROUND, receipts)
            await asyncio.to_thread(store.restart)
        await until(len(receipts) + PER_ROUND, receipts)
        is_over = True
        await asyncio.gather(*publishing)
        await until(len(receipts), seen)
        following.cancel()

        stored = [message async for message in client.read("#")]
        assert [message.payload for message in stored] == seen
        assert len(seen) == len(set(seen)) == len(receipts)
        for message in stored:
            assert receipts[message.payload].log_offset == message.log_offset
        for topic in ("k/0", "k/1", "k/2"):
            for message in [message async for message in client.read(topic)]:
                assert receipts[message.payload].queue_offset == message.queue_offset
        for publisher in range(PUBLISHERS):
            mine = [int(payload.split(b"-")[1]) for payload in seen if payload.startswith(b"%d-" % publisher)]
            assert mine == list(range(len(mine)))


@pytest.mark.catalogue("D12")
async def test_a_batch_whose_answer_is_lost_is_stored_once_and_whole(store: StoreProcess) -> None:
    url = store.url.replace("tcp://", "penstock://")
    async with Client(url) as client:
        for attempt in range(5):
            batch = client.batch()
            for number in range(1_000):
                batch.publish("b", b"%d-%d" % (attempt, number))
            sending = asyncio.create_task(batch.__aexit__(None, None, None))
            await asyncio.sleep(0)  # it is on its way, and the store is killed somewhere in between
            await asyncio.to_thread(store.restart)
            await sending
            assert [receipt.queue_offset for receipt in batch.receipts] == list(
                range(attempt * 1_000, attempt * 1_000 + 1_000)
            )
        found = [message.payload async for message in client.read("b")]
        assert found == [b"%d-%d" % (attempt, number) for attempt in range(5) for number in range(1_000)]


async def test_many_messages_are_stored_once_through_kills(store: StoreProcess) -> None:
    url = store.url.replace("tcp://", "penstock://")
    sent: list[tuple[str, bytes]] = []
    async with Client(url) as client:
        for attempt in range(5):
            messages = [(f"m/{number % 7}", b"%d-%d" % (attempt, number)) for number in range(5_000)]
            sending = asyncio.create_task(client.publish_many(messages))
            await asyncio.sleep(0)  # they are on their way, and the store is killed somewhere in between
            await asyncio.to_thread(store.restart)
            receipts = await sending
            sent += messages
            found = [message async for message in client.read("#")]
            assert [(message.topic, message.payload) for message in found] == sent
            assert [message.log_offset for message in found[-5_000:]] == [receipt.log_offset for receipt in receipts]


@pytest.mark.parametrize("autobatch", [False, True])
async def test_a_store_killed_between_storing_and_answering(store: StoreProcess, autobatch: bool) -> None:
    """The answers are lost and the store is killed, twice; its log knows what it has of this client."""
    port = urlsplit(store.url).port
    assert port is not None
    wire = FrameWire(port)
    direct_url = store.url.replace("tcp://", "penstock://")
    try:
        async with Client(f"penstock://127.0.0.1:{wire.port}", autobatch=autobatch) as client:
            await client.publish("before", b"x")
            wire.loses = (Published,)
            sent = [client.send(f"k/{number % 3}", b"%d" % number, key=f"{number}") for number in range(30)]
            for attempt in range(2):
                async with Client(direct_url) as direct:
                    await until_stored(direct, 30)
                    await direct.publish("k/0", b"another client's %d" % attempt)
                if attempt:
                    wire.loses = ()
                await asyncio.to_thread(store.restart)
            receipts = await asyncio.gather(*sent)
            found = [message async for message in client.read("k/#")]
        ours = {message.payload: message.log_offset for message in found if message.payload.isdigit()}
        assert len(found) == 32
        assert ours == {b"%d" % number: receipt.log_offset for number, receipt in enumerate(receipts)}
        assert [receipt.queue_offset for receipt in receipts[::3]] == list(range(10))
    finally:
        wire.close()


async def until_stored(client: Client, count: int) -> None:
    """Wait for so many messages."""
    found = 0
    async for message in client.read("k/#", stop=None):
        found += message.payload.isdigit()
        if found == count:
            return
