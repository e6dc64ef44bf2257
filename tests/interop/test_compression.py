"""A payload that the client compressed reaches every reader as it was published: MQTT, client, Spark's columns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from loadtest.chaos.part import Part
from penstock import Client
from penstock.columns import COLUMNS
from penstock.sdk.compression import Compression
from penstock.sdk.errors import StoreRefused, Unreadable
from penstock.sdk.outgoing import Outgoing, outgoing
from penstock.sdk.publishing import Entry
from penstock.spark.columns import record_batch
from penstock.spark.folder import LogFolder
from store.records.records import RecordFlag
from tests.interop.conftest import StartStore
from tests.interop.programs import PahoClient, penstock, run
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess

pytestmark = pytest.mark.asyncio

TEXT = b"the same again and again, " * 20_000  # 520 KB, of which zstd leaves some 70 bytes; decompressed in steps
SENT = [b"short", TEXT, b"x" * 4_097, b"tail"]


@pytest.fixture
def port(running: StoreProcess, tmp_path: Path) -> Iterator[int]:
    """Of a gateway of the store."""
    port = free_port()
    part = Part(
        tmp_path / "gateway.log", ["gateway", "--store", running.url, "--listen", f"mqtt://127.0.0.1:{port}"], {}
    )
    yield port
    part.kill()


async def publish(client: Client, topic: str = "m/sdk", **options: bool) -> None:
    for payload in SENT:
        await client.publish(topic, payload, qos=2, **options)  # type: ignore[arg-type]


@pytest.mark.catalogue("D13")
async def test_every_kind_of_subscriber(url: str, port: int) -> None:
    async with Client(url) as client:
        subscribers = [
            PahoClient(port, version).connect().subscribe("m/#", qos) for version in (4, 5) for qos in range(3)
        ]
        alone = PahoClient(port, 5).connect().subscribe("m/sdk", 1)  # of the topic's own queue
        alone.subscribe("+/sdk", 2)  # and of a filter's: two queues merged
        await publish(client)
        await publish(client, "live/sdk")
        for each in subscribers:
            assert await asyncio.to_thread(each.messages, len(SENT)) == [("m/sdk", payload) for payload in SENT]
        assert await asyncio.to_thread(alone.distinct, len(SENT)) == SENT
        await asyncio.to_thread(alone.leave)


async def test_live_topics_and_many_subscribers(url: str, port: int) -> None:
    async with Client(url) as client:
        subscribers = [PahoClient(port).connect().subscribe("live/#", 0) for _ in range(10)]
        await publish(client, "live/sdk")
        for each in subscribers:
            assert await asyncio.to_thread(each.messages, len(SENT)) == [("live/sdk", payload) for payload in SENT]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_retained_ones(url: str, port: int, qos: int) -> None:
    retained = [TEXT, b"short", TEXT]
    async with Client(url) as client:
        for i, payload in enumerate(retained):
            await client.publish(f"m/kept-{i}", payload, qos=2, retain=True)
    stock = ["mosquitto_sub", "-p", str(port), "-t", "m/+", "-q", str(qos), "-C", "3"]
    ours = penstock("sub", "m/+", "-q", str(qos), "-C", "3", "--url", f"mqtt://127.0.0.1:{port}")
    for command in (stock, ours):
        assert (await asyncio.to_thread(run, *command)).rstrip(b"\n") == b"\n".join(retained)


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_session_that_was_away(url: str, port: int, qos: int) -> None:
    away = PahoClient(port, 5, "away", 3_600).connect().subscribe("m/#", qos)
    await asyncio.to_thread(away.leave)
    async with Client(url) as client:
        await publish(client)
    back = PahoClient(port, 5, "away", 3_600, clean=False).connect()
    assert await asyncio.to_thread(back.messages, len(SENT)) == [("m/sdk", payload) for payload in SENT]


@pytest.mark.catalogue("D13", "N56")
async def test_the_client_itself_and_sparks_columns(url: str, running: StoreProcess) -> None:
    async with Client(url, compress=Compression(100, 19)) as client:
        await publish(client)
        receipt = await client.publish("m/key", TEXT, key="k", compress=False)
        assert [message.payload async for message in client.read("m/sdk")] == SENT
        async for batch in client.read("m/#").batches():
            assert list(batch.payloads()) == [*SENT, TEXT]
            assert len(batch.records) < len(TEXT) + 1_000  # that one alone is not compressed
        assert [message.payload for message in await client.find("k")] == [TEXT]
        assert (await client.get(receipt.message_id)).payload == TEXT
    folder = LogFolder(str(running.data))
    schema = pa.schema([("payload", COLUMNS["payload"].type), ("topic", COLUMNS["topic"].type)])
    found = [
        each
        for messages in folder.messages(0, folder.end())
        for some in messages.batches()
        for each in record_batch(some, schema).to_pylist()
    ]
    assert found == [{"payload": payload, "topic": "m/sdk"} for payload in SENT] + [{"payload": TEXT, "topic": "m/key"}]


async def test_a_payload_that_states_too_much_is_refused(start_client_store: StartStore) -> None:
    store = start_client_store(store__max_plain_bytes=1 << 20)
    async with Client(store.url.replace("tcp://", "penstock://")) as client:
        await client.publish("m", bytes(1 << 20))
        with pytest.raises(StoreRefused, match=r"states more than store\.max_plain_bytes"):
            await client.publish("m", bytes((1 << 20) + 1))
        await client.publish("m", bytes((1 << 20) + 1), compress=False)
        assert [len(message.payload) async for message in client.read("m")] == [1 << 20, (1 << 20) + 1]


async def test_a_damaged_one_is_passed_over(url: str, port: int) -> None:
    """What no client of ours sends: the store takes it, and whoever cannot read it goes on behind it."""
    whole = outgoing("m/sdk", TEXT, False, compress=True)
    record = bytearray(whole.record)
    at = record.rindex(b"\x28\xb5\x2f\xfd")
    record[at + 12 : at + 16] = b"\xff\xff\xff\xff"
    bad = Outgoing(whole.topic, bytes(record), whole.wait)
    assert record[25] & RecordFlag.COMPRESSED
    async with Client(url) as client:
        subscribers = [PahoClient(port).connect().subscribe("m/#", qos) for qos in range(3)]
        done = asyncio.Event()
        assert client._outbox is not None
        client._outbox.add(Entry(bad, lambda _: done.set()))
        await done.wait()
        await client.publish("m/sdk", TEXT)
        for each in subscribers:
            assert await asyncio.to_thread(each.messages, 1) == [("m/sdk", TEXT)]
        messages = [message async for message in client.read("m/sdk")]
        assert len(messages) == 2
        with pytest.raises(Unreadable):
            _ = messages[0].payload
        assert messages[1].payload == TEXT
