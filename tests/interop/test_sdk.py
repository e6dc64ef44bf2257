"""The native client against a real `penstock store`, and beside MQTT clients of a gateway."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from loadtest.chaos.part import Part
from penstock import Client
from penstock.sdk import message_id
from penstock.sdk.errors import (
    BadMessageId,
    BadPosition,
    BatchRefused,
    NotFound,
    Overloaded,
    StoreRefused,
)
from penstock.sdk.message import Message, Receipt
from tests.crash import strace
from tests.interop.conftest import StartStore
from tests.interop.programs import PahoClient, mark_ready, mosquitto_sub, run
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url) as client:
        yield client


LARGE = random.Random(3).randbytes(3 << 20)  # which cannot be compressed


async def payloads(reading: AsyncIterator[Message]) -> list[bytes]:
    return [message.payload async for message in reading]


# --- publishing


async def test_a_receipt_says_where_the_message_is(client: Client) -> None:
    options = {"key": "m-7", "tag": "C", "headers": {"unit": "C"}, "content_type": "text/plain"}
    receipt = await client.publish("line/7/temp", b"21.5", **options)  # type: ignore[arg-type]
    assert (receipt.queue, receipt.queue_offset) == ("line/7/temp", 0)
    message = await client.get(receipt.message_id)
    assert (message.topic, message.payload, message.log_offset) == ("line/7/temp", b"21.5", receipt.log_offset)
    assert (message.key, message.tag, message.headers) == ("m-7", "C", {"unit": "C"})
    assert (message.content_type, message.expires_after) == ("text/plain", None)
    assert (message.message_id, message.queue_offset) == (receipt.message_id, 0)
    (read,) = [each async for each in client.read("line/7/temp")]
    assert (read.message_id, read.queue_offset, read.stored_at) == (receipt.message_id, 0, message.stored_at)
    live = await client.publish("live/7", b"x")
    assert live.queue_offset is None


async def test_single_messages_are_sent_once_a_turn(client: Client) -> None:
    requests, turns = client._opened.requests, 0
    outgoing = requests.outgoing

    def counted() -> list[bytes]:
        nonlocal turns
        turns += 1
        return outgoing()

    requests.outgoing = counted  # type: ignore[method-assign]
    for _ in range(20):
        await client.publish("line/7/temp", b"21.5")
    assert turns <= 21  # the last answer's turn finds nothing to send


@pytest.mark.parametrize("flush", ["async", "sync", "buffered"])
@pytest.mark.catalogue("A2")
async def test_every_wish_is_answered(start_client_store: StartStore, flush: str) -> None:
    store = start_client_store(store__flush=flush)
    async with Client(store.url.replace("tcp://", "penstock://")) as client:
        sent = [client.send("t", wait=wait) for wait in ("flushed", None, "stored") for _ in range(3)]
        found = await asyncio.gather(*sent)
        assert sorted(receipt.queue_offset or 0 for receipt in found) == list(range(9))


@pytest.mark.parametrize(
    ("flush", "waiting"),
    [("async", {"flushed"}), ("buffered", {"flushed"}), ("sync", {"flushed", None})],
)
@pytest.mark.catalogue("A2")
async def test_receipts_by_wait_while_the_disk_stalls(
    start_client_store: StartStore, flush: str, waiting: set[str | None]
) -> None:
    """`stored` is answered without the disk, `flushed` by it alone; without a wish it is as the policy says."""
    store = start_client_store(store__flush=flush, store__flush_timeout_ms=60_000)
    async with Client(store.url.replace("tcp://", "penstock://")) as client:
        await client.publish("t", wait="flushed")
        with strace.delayed(store.process.pid, "fdatasync", store.data / "log" / f"{0:020}.log", 60_000):
            sent = {wait: asyncio.ensure_future(client.send("t", wait=wait)) for wait in ("flushed", None, "stored")}
            answered = [future for wait, future in sent.items() if wait not in waiting]
            await asyncio.wait_for(asyncio.gather(*answered), 20)
            await asyncio.sleep(0.5)
            assert {wait for wait, future in sent.items() if not future.done()} == waiting
        receipts = await asyncio.gather(*sent.values())
        assert sorted(receipt.queue_offset or 0 for receipt in receipts) == [1, 2, 3]


@pytest.mark.catalogue("D12")
async def test_batch_is_stored_as_one_and_each_message_is_found(client: Client) -> None:
    sizes = (4, 1, 3)
    receipts: list[Receipt] = []
    for size in sizes:
        async with client.batch() as batch:
            for number in range(size):
                batch.publish("b", b"%d" % len(receipts) + b"-%d" % number, tag=f"tag-{number}")
        receipts += batch.receipts
    assert [receipt.queue_offset for receipt in receipts] == list(range(8))
    assert len({receipt.message_id for receipt in receipts}) == 8
    read = [message async for message in client.read("b")]
    assert [message.message_id for message in read] == [receipt.message_id for receipt in receipts]
    assert [message.tag for message in read] == [f"tag-{number}" for size in sizes for number in range(size)]


@pytest.mark.catalogue("D13")
async def test_a_place_in_the_middle_of_a_batch_and_its_compressed_payload(client: Client) -> None:
    payloads_ = [b"%d" % number * 5_000 for number in range(5)]  # more than 4 KB
    for numbers in (range(3), range(3, 5)):
        async with client.batch() as batch:
            for number in numbers:
                batch.publish("b", payloads_[number])
    assert [receipt.queue_offset for receipt in batch.receipts] == [3, 4]
    (fifth,) = [message async for message in client.read("b", start="@4")]
    assert (fifth.queue_offset, fifth.payload) == (4, payloads_[4])
    assert (await client.get(fifth.message_id)).payload == payloads_[4]
    assert await payloads(aiter(client.read("b", start="@2"))) == payloads_[2:]


@pytest.mark.catalogue("D12")
async def test_invalid_batches_are_refused(client: Client) -> None:
    async with client.batch() as batch:
        batch.publish("a", b"1", wait="stored")
        with pytest.raises(BatchRefused, match="a batch has one topic: 'a', and not 'b' as well"):
            batch.publish("b", b"2", wait="stored")
        with pytest.raises(BatchRefused, match="need the same `wait`"):
            batch.publish("a", b"2")
        batch.publish("a", LARGE, wait="stored")
        with pytest.raises(BatchRefused, match="send it as several"):
            batch.publish("a", LARGE, wait="stored")
    with pytest.raises(BatchRefused, match="begin another one"):
        batch.publish("a", b"3")
    given_up = client.batch()
    await given_up.__aenter__()
    given_up.publish("c", b"1")
    await given_up.__aexit__(KeyError, KeyError(), None)
    assert await payloads(aiter(client.read("c"))) == []


@pytest.mark.catalogue("D14")
async def test_autobatch_gives_each_its_own_receipt(url: str, client: Client) -> None:
    async with Client(url, autobatch=True) as gathering:
        lone = await gathering.publish("lone", b"x")
        assert lone.queue_offset == 0
        sent = [gathering.send(f"t/{number % 3}", b"%d" % number) for number in range(3_000)]
        receipts = await asyncio.gather(*sent)
        unanswered = [gathering.send("end", b"x") for _ in range(3)]
    assert [future.result().queue_offset for future in unanswered] == [0, 1, 2]  # closing sends what is held back
    assert len({receipt.log_offset for receipt in receipts}) == 3_000
    for number in range(3):
        read = [(message.payload, message.log_offset) async for message in client.read(f"t/{number}")]
        mine = range(number, 3_000, 3)
        assert read == [(b"%d" % each, receipts[each].log_offset) for each in mine]


async def test_more_new_retained_topics_at_once_than_one_publish_may_have(url: str, client: Client) -> None:
    sent = [client.send(f"many/{number}", b"%d" % number, retain=True) for number in range(5_000)]
    receipts = await asyncio.gather(*sent)
    assert [receipt.queue_offset for receipt in receipts] == [0] * 5_000
    assert len({receipt.log_offset for receipt in receipts}) == 5_000
    retained = client.batch()
    for number in range(5_000):
        retained.publish("one", b"%d" % number, retain=True)
    with pytest.raises(StoreRefused, match=r"wire.max_changes_per_publish.*publish fewer at a time \(bad_request\)"):
        await retained.__aexit__(None, None, None)
    async with client.batch() as batch:
        for number in range(5_000):
            batch.publish("one", b"%d" % number)
    assert len(batch.receipts) == 5_000


async def test_messages_that_the_store_cannot_take(client: Client, running: StoreProcess) -> None:
    with pytest.raises(StoreRefused, match=r"raise wire.max_frame_bytes \(record_too_large\)"):
        await client.publish("t", bytes(5 << 20), compress=False)
    assert (await client.publish("t", LARGE)).queue_offset == 0
    running.pause()
    for _ in range(63):
        client.send("t", bytes(1 << 20), compress=False)
    with pytest.raises(Overloaded, match="await some of their receipts"):
        client.send("t", bytes(1 << 20), compress=False)
    running.resume()
    assert (await client.publish("t", b"x")).queue_offset == 64


# --- reading


async def test_reading_from_any_place(client: Client) -> None:
    receipts = [await client.publish(f"r/{number % 2}/x", b"%d" % number) for number in range(10)]
    everything = [b"%d" % number for number in range(10)]
    for topic_filter in ("r/#", "r/+/x", "#", "+/+/x"):
        assert await payloads(aiter(client.read(topic_filter))) == everything
        for start in (receipts[4].log_offset, receipts[3].log_offset + 1):
            assert await payloads(aiter(client.read(topic_filter, start=start))) == everything[4:]
        assert await payloads(aiter(client.read(topic_filter, stop=receipts[4].log_offset))) == everything[:4]
        assert await payloads(aiter(client.read(topic_filter, start="-1h", stop="now"))) == everything
        assert await payloads(aiter(client.read(topic_filter, start="now"))) == []
    assert await payloads(aiter(client.read("r/1/x", start="@2"))) == everything[5::2]
    with pytest.raises(StoreRefused, match="is not a position"):
        await payloads(aiter(client.read("#", start="@2")))
    with pytest.raises(BadPosition):
        client.read("#", start="yesterday")
    with pytest.raises(StoreRefused, match="has a wildcard where none may be"):
        await payloads(aiter(client.read("a/#/b")))


async def test_reading_the_messages_with_a_tag(client: Client) -> None:
    for number in range(100):
        async with client.batch() as batch:
            for each in range(100):
                batch.publish("r/tagged", b"%d" % (100 * number + each), tag="rare" if each == 7 else "common")
    for topic_filter in ("r/tagged", "r/#", "+/tagged", "#"):
        found = [message async for message in client.read(topic_filter, tag="rare")]
        assert [int(message.payload) for message in found] == list(range(7, 10_000, 100))
        assert {(message.tag, message.queue_offset) for message in found} == {("rare", None)}
    assert await payloads(aiter(client.read("r/tagged", tag="nobody's"))) == []


async def test_reading_on_with_what_comes(client: Client, url: str) -> None:
    await client.publish("on/1", b"before")
    found: asyncio.Queue[bytes] = asyncio.Queue()

    async def follow(topic_filter: str) -> None:
        async for message in client.read(topic_filter, stop=None):
            await found.put(message.payload)

    readers = [asyncio.create_task(follow(topic_filter)) for topic_filter in ("on/1", "on/#", "+/1", "#")]
    assert [await found.get() for _ in readers] == [b"before"] * 4
    for number in range(200):
        await client.publish("on/1", b"%d" % number)
    got = [await found.get() for _ in range(800)]
    assert sorted(got) == sorted(b"%d" % number for number in range(200) for _ in range(4))
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


async def test_a_reader_that_stops_early_and_many_at_a_time(client: Client) -> None:
    async with client.batch() as batch:
        for number in range(20_000):
            batch.publish("many", b"%d" % number + bytes(100))
    batches = client.read("many").batches()
    first = await anext(batches)
    assert 0 < len(first) == len(list(first)) == len(list(first.payloads())) < 20_000
    await batches.aclose()
    counts = await asyncio.gather(*[_count(client, "many") for _ in range(5)])
    assert counts == [20_000] * 5


async def _count(client: Client, topic_filter: str) -> int:
    return sum([len(batch) async for batch in client.read(topic_filter).batches()])


@pytest.mark.catalogue("B9")
async def test_ids_that_are_not_good_here(client: Client, start_client_store: StartStore) -> None:
    receipt = await client.publish("t", b"x")
    place, _ = message_id.parse_message_id(receipt.message_id)
    forged = place.message_id(receipt.log_offset + 8)
    with pytest.raises(NotFound, match="no message begins at log_offset"):
        await client.get(forged)
    foreign = message_id.StorePlace.of("192.0.2.1", 7700).message_id(receipt.log_offset)
    with pytest.raises(BadMessageId, match=r"is of the store at 192.0.2.1:7700, and this client is connected to 127"):
        await client.get(foreign)
    with pytest.raises(BadMessageId, match="it was changed"):
        await client.get(receipt.message_id[:-1] + ("0" if receipt.message_id[-1] != "0" else "1"))
    named = start_client_store(wire__advertise="[2001:db8::7]:7700")
    async with Client(named.url.replace("tcp://", "penstock://")) as other:
        receipt = await other.publish("t", b"y")
        assert len(receipt.message_id) == 56
        assert (await other.get(receipt.message_id)).payload == b"y"
        with pytest.raises(BadMessageId, match=r"is of the store at \[2001:db8::7\]:7700"):
            await client.get(receipt.message_id)


@pytest.mark.catalogue("B7")
async def test_messages_are_found_by_key(client: Client, running: StoreProcess) -> None:
    async with client.batch() as batch:
        for number in range(500):
            batch.publish("line/7/temp", b"%d" % number, key="m-7" if number % 2 else "m-8")
    await client.publish("line/8/temp", b"last", key="m-7")
    newest = [message.payload for message in await client.find("m-7", limit=3)]
    assert newest == [b"last", b"499", b"497"]
    for _ in range(2):
        found = await client.find("m-7", topic="line/7/#", since="-1d", limit=1_000)
        assert [message.payload for message in found] == [b"%d" % number for number in range(499, 0, -2)]
        assert {message.key for message in found} == {"m-7"}
        assert [message.log_offset for message in found[-2:]] == [
            batch.receipts[3].log_offset,
            batch.receipts[1].log_offset,
        ]
        await asyncio.to_thread(running.restart)
    assert await client.find("m-7", until="-1h") == []
    assert await client.find("m-9") == []
    with pytest.raises(BadPosition, match="is no time"):
        await client.find("m-7", since="@5")
    with pytest.raises(StoreRefused, match="has a wildcard where none may be"):
        await client.find("m-7", topic="#/a")


@pytest.mark.catalogue("B8")
async def test_keys_and_topics_with_one_hash_in_java(client: Client, running: StoreProcess) -> None:
    """Where an index compares the hash of topic and key alone, the last two queries find what they should not."""
    await client.publish("AaTopic", b"mine", key="Aa")
    await client.publish("BBTopic", b"yours", key="BB")
    for _ in range(2):
        for topic, key, expected in (
            ("AaTopic", "Aa", [b"mine"]),
            ("BBTopic", "BB", [b"yours"]),
            ("AaTopic", "BB", []),
            ("BBTopic", "Aa", []),
        ):
            assert [message.payload for message in await client.find(key, topic=topic)] == expected
        await asyncio.to_thread(running.restart)


# --- beside MQTT


@pytest.mark.catalogue("E18")
async def test_message_is_the_same_for_mqtt_and_the_client(
    client: Client, running: StoreProcess, tmp_path: Path
) -> None:
    """MQTT shows no log_offset, but a subscriber can ask to be given what stands from one on."""
    port = free_port()
    gateway = ["gateway", "--store", running.url, "--listen", f"mqtt://127.0.0.1:{port}"]
    part = Part(tmp_path / "gateway.log", gateway, {})
    try:
        mark_ready(port)
        subscriber = mosquitto_sub(port, "m/#", 1, "-F", "%t %p %C %P", version=5)
        headers = [("unit", "C"), ("seen", "a"), ("seen", "b")]
        receipt = await client.publish("m/sdk", b"21.5", headers=headers, key="k", content_type="text/plain")
        line = await asyncio.to_thread(subscriber.messages, 1)
        assert line == [("m/sdk", b"21.5 text/plain unit:C seen:a seen:b")]
        done = [
            "-V",
            "mqttv5",
            "-q",
            "1",
            "-t",
            "m/mqtt",
            "-m",
            "22.0",
            "-D",
            "publish",
            "user-property",
            "from",
            "mqtt",
            *("-D", "publish", "user-property", "from", "device"),
            *("-D", "publish", "content-type", "application/json"),
            *("-D", "publish", "message-expiry-interval", "3600"),
        ]
        await asyncio.to_thread(run, "mosquitto_pub", "-p", str(port), "-i", "device", *done)
        first, second = [message async for message in client.read("m/#")]
        assert (first.message_id, first.user_properties) == (receipt.message_id, headers)
        assert first.headers == {"unit": "C", "seen": "b"}
        assert (second.payload, second.headers, second.client_id) == (b"22.0", {"from": "device"}, "device")
        assert second.user_properties == [("from", "mqtt"), ("from", "device")]
        assert (second.content_type, second.expires_after) == ("application/json", timedelta(hours=1))
        assert (await client.get(second.message_id)).queue_offset == 0
        for queue_offset, payload in ((0, b"21.5"), (1, b"22.0")):
            assert await asyncio.to_thread(first_from, port, "m/#", queue_offset) == payload
    finally:
        part.kill()


def first_from(port: int, topic_filter: str, queue_offset: int) -> bytes:
    """The first message that a stock MQTT 5 client gets which asks for them from a place on."""
    client = PahoClient(port)
    client.connect()
    properties = Properties(PacketTypes.SUBSCRIBE)
    properties.UserProperty = ("penstock-from", str(queue_offset))
    client.client.subscribe([(topic_filter, SubscribeOptions(qos=1))], properties=properties)
    payload = bytes(client.raw_messages(1)[0].payload)
    client.kill()
    return payload
