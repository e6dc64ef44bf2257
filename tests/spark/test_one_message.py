"""One message has one id and one place for all readers: MQTT clients, the native client, Spark."""

from __future__ import annotations

import asyncio
import threading
from typing import NamedTuple

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from pyspark.sql import SparkSession

from loadtest.chaos.cluster import Cluster
from penstock import Client
from penstock.sdk.message import Message
from tests.interop.programs import PahoClient, mark_ready, mosquitto_sub, run
from tests.spark.fleet import TIMEOUT_S, connected, leave

TOKEN = "s3cret"
EACH = 12  # messages of each kind of publisher


class Place(NamedTuple):
    """Where a message is, as somebody says."""

    topic: str
    queue_offset: int
    log_offset: int


def publish_by_paho(port: int, topic: str, payloads: list[bytes]) -> dict[bytes, Place]:
    """The receipts that PUBACKs bring. (Those in PUBREC paho does not show.)"""
    client = connected(port, "paho")
    is_answered = threading.Event()
    said: list[dict[str, str]] = []

    def on_publish(_client: object, _userdata: object, _mid: int, _code: object, properties: Properties) -> None:
        said.append(dict(getattr(properties, "UserProperty", [])))
        is_answered.set()

    client.on_publish = on_publish
    wanted = Properties(PacketTypes.PUBLISH)
    wanted.UserProperty = [("penstock-receipt", "1")]
    found = {}
    for payload in payloads:  # one after the other, so that it is known which answer is whose
        is_answered.clear()
        client.publish(topic, payload, 1, properties=wanted)
        assert is_answered.wait(TIMEOUT_S)
        receipt = said[-1]
        queue_offset, log_offset = int(receipt["penstock-queue-offset"]), int(receipt["penstock-log-offset"])
        found[payload] = Place(receipt["penstock-queue"], queue_offset, log_offset)
    leave(client)
    return found


def from_place(port: int, topic: str, queue_offset: int) -> bytes:
    """What a subscriber gets first who asks for a topic from a place on."""
    client = PahoClient(port).connect()
    wanted = Properties(PacketTypes.SUBSCRIBE)
    wanted.UserProperty = [("penstock-from", str(queue_offset))]
    client.client.subscribe([(topic, SubscribeOptions(qos=1))], properties=wanted)
    payload = bytes(client.raw_messages(1)[0].payload)
    client.kill()
    return payload


def place_of(message: Message) -> Place:
    assert message.queue_offset is not None
    return Place(message.topic, message.queue_offset, message.log_offset)


async def both_ways(cluster: Cluster, topics: list[str], payloads: dict[str, list[bytes]]) -> dict[bytes, Place]:
    """Messages from mosquitto_pub, paho and the native client: MQTT subscribers get all; the receipts, and the ids."""
    port, url = cluster.port, cluster.store_url.replace("tcp://", "penstock://")
    by_mosquitto, by_paho, by_client = topics
    await asyncio.to_thread(mark_ready, port)
    subscribers = [await asyncio.to_thread(mosquitto_sub, port, "one/#", 1, version=version) for version in (4, 5)]
    lines = b"".join(payload + b"\n" for payload in payloads[by_mosquitto])
    async with Client(url, token=TOKEN) as client:
        _, by_mqtt, receipts = await asyncio.gather(
            asyncio.to_thread(run, "mosquitto_pub", "-p", str(port), "-t", by_mosquitto, "-q", "2", "-l", stdin=lines),
            asyncio.to_thread(publish_by_paho, port, by_paho, payloads[by_paho]),
            asyncio.gather(*(client.publish(by_client, each, key=each.decode()) for each in payloads[by_client])),
        )
        delivered = [await asyncio.to_thread(each.messages, len(topics) * EACH) for each in subscribers]
        read = [message async for message in client.read("one/#")]
        assert delivered == [[(message.topic, message.payload) for message in read]] * 2
        found: dict[bytes, Place] = {}
        ids: dict[bytes, str] = {}
        for topic in topics:
            async for message in client.read(topic):
                found[message.payload] = place_of(message)
                ids[message.payload] = message.message_id
                assert place_of(await client.get(message.message_id)) == place_of(message)
        assert ids == {message.payload: message.message_id for message in read}
        for payload, receipt in zip(payloads[by_client], receipts, strict=True):
            assert receipt.message_id == ids[payload]
            assert Place(receipt.queue, receipt.queue_offset or 0, receipt.log_offset) == found[payload]
            (by_key,) = await client.find(payload.decode())
            assert (by_key.message_id, by_key.log_offset) == (receipt.message_id, receipt.log_offset)
    assert by_mqtt == {payload: found[payload] for payload in payloads[by_paho]}
    return found


@pytest.mark.catalogue("E18", "I32")
def test_an_id_and_a_place_are_the_same_for_everybody(spark: SparkSession, apart: Cluster) -> None:
    topics = ["one/mosquitto", "one/paho", "one/sdk"]
    payloads = {topic: [f"{topic} {number}".encode() for number in range(EACH)] for topic in topics}
    found = asyncio.run(both_ways(apart, topics, payloads))
    assert sorted(found) == sorted(payload for each in payloads.values() for payload in each)
    for topic in topics:
        for number, payload in enumerate(payloads[topic]):
            assert found[payload][:2] == (topic, number)
        assert from_place(apart.port, topic, 5) == payloads[topic][5]

    url = apart.store_url.replace("tcp://", "penstock://")
    for path in (url, str(apart.data)):
        frame = (
            spark.read.format("penstock").options(token=TOKEN if path == url else "", topicFilter="one/#").load(path)
        )
        rows = frame.select("payload", "topic", "queue_offset", "log_offset", "key").collect()
        assert len(rows) == len(found)
        assert {bytes(row.payload): Place(row.topic, row.queue_offset, row.log_offset) for row in rows} == found
        keys = {bytes(row.payload): row.key for row in rows}
        assert keys == {each: each.decode() if found[each].topic == "one/sdk" else None for each in found}
