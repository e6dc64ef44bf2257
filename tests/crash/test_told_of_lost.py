"""Messages that stood in a damaged part of the log: their receivers are told how many, with the next one."""

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, Publish, QoS
from gateway.mqtt.properties import Properties
from loadtest.chaos.mqtt_client import MqttConnection
from penstock import Client
from store.files.segment import HEADER_BYTES, segment_paths
from store.records._records import verify
from store.records.records import RecordType, read_records
from tests.conftest import ServerFactory
from tests.support.apart_server import ApartServer
from tests.support.server_process import PenstockServer
from tests.support.stores import flip

pytestmark = pytest.mark.asyncio

TOPIC = "plant/7/temp"
LONG_S = 3_600


def places(data: Path) -> dict[bytes, tuple[Path, int]]:
    """The file of each message, and its position there, by its payload."""
    found: dict[bytes, tuple[Path, int]] = {}
    for path in segment_paths(data / "log"):
        content = memoryview(path.read_bytes())[HEADER_BYTES:]
        base = int(path.stem)
        for record in read_records(content[: verify(content, base + HEADER_BYTES)[0]]):
            if record.type == RecordType.MESSAGE:
                found[record.payload] = path, record.log_offset - base
    return found


def damage(data: Path, *payloads: bytes) -> None:
    """Change a byte in each of these messages."""
    known = places(data)
    for payload in payloads:
        path, position = known[payload]
        flip(path, position + 60)


def payload(number: int) -> bytes:
    return b"%04d " % number + b"x" * 200


async def publish(server: PenstockServer, first: int, end: int, topic: str = TOPIC) -> None:
    connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True, client_id="publisher"))
    async with connection:
        for number in range(first, end):
            await connection.publish(Publish(topic, payload(number), QoS.AT_LEAST_ONCE, packet_id=number + 1))


def durable(client_id: str, version: int) -> Connect:
    properties = Properties(session_expiry_interval=LONG_S) if version == 5 else Properties()
    return Connect(client_id=client_id, clean_start=False, protocol_version=version, properties=properties)


async def subscribe(server: PenstockServer, client_id: str, version: int, topic_filter: str = "plant/#") -> None:
    """A session is there, and its client is away."""
    connection, _ = await MqttConnection.open(server.port, durable(client_id, version))
    async with connection:
        await connection.subscribe(1, topic_filter, QoS.AT_LEAST_ONCE)


def said(message: Publish) -> str | None:
    return dict(message.properties.user_properties).get("penstock-lost")


async def take(server: PenstockServer, client_id: str, version: int, number: int) -> list[tuple[bytes, str | None]]:
    """What a client is sent first: payloads, and how many messages each says are lost."""
    connection, _ = await MqttConnection.open(server.port, durable(client_id, version))
    async with connection:
        found = [await connection.take() for _ in range(number)]
    return [(message.payload, said(message)) for message in found]


def lines(server: PenstockServer, client_id: str) -> list[str]:
    return re.findall(rf"client {client_id} misses (\d+) messages", server.log_text())


def dropped_as_lost(server: PenstockServer) -> int:
    url = re.findall(r"^admin (http://\S+)$", server.log_text(), re.MULTILINE)[-1]
    with urllib.request.urlopen(url + "/metrics", timeout=20) as answer:
        found = re.search(
            r'^penstock_messages_dropped_total{reason="lost"} (\d+)', answer.read().decode(), re.MULTILINE
        )
    assert found is not None
    return int(found[1])


@pytest.mark.topologies("one process", "two gateways")
async def test_clients_are_told_of_lost_messages(penstock_server: ServerFactory, small: dict[str, object]) -> None:
    """Of some in the middle with the next one, of the last one with the first that is published later."""
    is_one = penstock_server.topology == "one process"
    flags = {"admin": "127.0.0.1:0"} if is_one else {}
    server = penstock_server(None, small, flush="sync", **flags)
    for client_id, version, topic_filter in (
        ("five", 5, "plant/#"),
        ("three", 4, "plant/#"),
        ("own", 5, TOPIC),
        ("plus", 5, "plant/+/temp"),
    ):
        await subscribe(server, client_id, version, topic_filter)
    await publish(server, 0, 20)
    server.terminate()
    damage(server.data, *map(payload, (3, 9, 10, 11, 19)))
    server.restart()
    left = [number for number in range(19) if number not in (3, 9, 10, 11)]
    expected = [(payload(number), {4: "1", 12: "3"}.get(number)) for number in left]
    for client_id in ("five", "own", "plus"):
        assert await take(server, client_id, 5, len(left)) == expected, client_id
        assert lines(server, client_id) == ["1", "3"], client_id
    assert await take(server, "three", 4, len(left)) == [(each, None) for each, _ in expected]
    assert lines(server, "three") == ["1", "3"]
    assert not is_one or dropped_as_lost(server) == 16
    await publish(server, 20, 22)
    assert await take(server, "five", 5, 2) == [(payload(20), "1"), (payload(21), None)]
    assert await take(server, "three", 4, 2) == [(payload(20), None), (payload(21), None)]
    assert sorted(lines(server, "five")) == sorted(lines(server, "three")) == ["1", "1", "3"]


@pytest.mark.topologies("two gateways")
async def test_a_group_and_readers_are_told(penstock_server: ServerFactory, small: dict[str, object]) -> None:
    """SDK: a consumer of a group, readers of a topic, a level and the whole log; a shared subscription of MQTT."""
    server = penstock_server(flush="sync", settings=small)
    assert isinstance(server, ApartServer)
    url = server.store_url.replace("tcp://", "penstock://")
    shared = "$share/g/plant/#"
    await subscribe(server, "share", 5, shared)
    async with Client(url) as client, client.subscribe(TOPIC, group="work"):
        pass
    await publish(server, 0, 20)
    server.terminate()
    damage(server.data, *map(payload, (3, 9, 10, 11)))
    server.restart()
    expected = [(payload(number), {4: 1, 12: 3}.get(number, 0)) for number in range(20) if number not in (3, 9, 10, 11)]
    connection, _ = await MqttConnection.open(server.port, durable("share", 5))
    async with connection:
        await connection.subscribe(2, shared, QoS.AT_LEAST_ONCE)
        messages = [await connection.take() for _ in expected]
    assert [(each.payload, int(said(each) or 0)) for each in messages] == expected
    async with Client(url) as client:
        for topic_filter in (TOPIC, "plant/#"):
            assert [(each.payload, each.lost) async for each in client.read(topic_filter)] == expected, topic_filter
        # Where no queue has all matches, each lost part of the log counts as one.
        found = [(each.payload, each.lost) async for each in client.read("+/7/temp")]
        assert [each for each, _ in found] == [each for each, _ in expected]
        assert [number for number, (_, lost) in enumerate(found) if lost] == [3, 8]
        async with asyncio.timeout(60), client.subscribe(TOPIC, group="work") as subscription:
            taken = [await anext(aiter(subscription)) for _ in range(4)]
            assert [(each.payload, each.lost) for each in taken] == expected[:4]
