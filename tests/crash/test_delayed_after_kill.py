"""Delayed messages across SIGKILLs while they are stored, pending and dispatched: each once, none early, none lost."""

import asyncio
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, PubAck, Publish, QoS
from lightqueue.message_store import MessageStore
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from store.records.records import Attribute, Record, RecordFlag, RecordType, decode_attributes, read_records
from store.settings import StoreSettings
from tests.conftest import KILLED_WITH_EITHER_FLUSH, SHARED_PORT_BY_NIGHT, ServerFactory
from tests.crash.replayed import assert_index_equals_replay
from tests.support.server_process import PenstockServer
from tests.support.stores import SOCKETS

KILLS = 6
MESSAGES = 150
LONGEST_S = 3
IN_FLIGHT = 20
LAST = b"last"


class Delays:
    """Publishes delayed messages, and knows when each may come at the earliest."""

    def __init__(self, rng: random.Random) -> None:
        self.earliest_ms: dict[bytes, int] = {}
        self.acknowledged: set[bytes] = set()
        self._rng = rng

    async def publish_and_kill(self, server: PenstockServer) -> None:
        """Some of them are not acknowledged when the server is killed; they may be stored or not."""
        connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
        async with connection:
            inflight: dict[int, bytes] = {}
            for packet_id in range(1, MESSAGES + 1):
                payload = b"%d" % len(self.earliest_ms)
                inflight[packet_id] = payload
                self.send(connection, packet_id, payload, self._rng.randrange(LONGEST_S + 1))
                while len(inflight) > IN_FLIGHT:
                    ack = await connection.receive(PubAck)
                    self.acknowledged.add(inflight.pop(ack.packet_id))
            server.kill()

    def send(self, connection: MqttConnection, packet_id: int, payload: bytes, delay_s: int) -> None:
        self.earliest_ms[payload] = time.time_ns() // 1_000_000 + 1_000 * delay_s
        name = f"$delayed/{delay_s}/later/{packet_id % 7}"
        connection.send(Publish(name, payload, QoS.AT_LEAST_ONCE, packet_id=packet_id))


@SHARED_PORT_BY_NIGHT
@pytest.mark.asyncio
@KILLED_WITH_EITHER_FLUSH
@pytest.mark.catalogue("J37", "J38")
async def test_each_comes_once_and_none_early(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    server = penstock_server(flush=flush, settings=small)
    delays = Delays(rng)
    subscriber, _ = await MqttConnection.open(server.port, persistent("subscriber"))
    async with subscriber:
        await subscriber.subscribe(1, "later/#", QoS.EXACTLY_ONCE)
    for _ in range(KILLS):
        await delays.publish_and_kill(server)
        await asyncio.to_thread(server.restart)
        await asyncio.sleep(rng.uniform(0, 0.5))  # it dispatches meanwhile
        await asyncio.to_thread(server.restart)
    publisher, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with publisher:
        delays.send(publisher, 1, LAST, LONGEST_S + 1)  # due after all others
        await publisher.receive(PubAck)
    received = await receive_all(server)
    assert len(received) == len(set(received))
    assert delays.acknowledged <= set(received) <= set(delays.earliest_ms)
    server.kill()
    check_log(server.data, flush, delays, set(received), tmp_path)


async def receive_all(server: PenstockServer) -> list[bytes]:
    """What the subscriber gets at QoS 1, up to the last message."""
    connection, _ = await MqttConnection.open(server.port, persistent("subscriber"))
    received: list[bytes] = []
    async with connection:
        while LAST not in received:
            for packet in await connection.packets():
                if isinstance(packet, Publish):
                    received.append(packet.payload)
                    assert packet.packet_id is not None
                    connection.send(PubAck(packet.packet_id))
    return received


def check_log(data: Path, flush: str, delays: Delays, received: set[bytes], scratch: Path) -> None:
    """Each pending record has one dispatch, at its time; and the index is what a replay makes of the log."""
    settings = StoreSettings(data=data, flush=flush)  # type: ignore[arg-type]
    assert_index_equals_replay(data, settings, scratch)
    store = MessageStore(replace(settings, data=shutil.copytree(data, scratch / "copy", ignore=SOCKETS)))
    records = [record for _, part in store.log.ranges(0, 1 << 30) for record in read_records(part)]
    assert store.delayed.page(0, 0, 1) == []
    store.close()
    messages = [record for record in records if record.type == RecordType.MESSAGE]
    pending = {each.log_offset: each for each in messages if each.flags & RecordFlag.DELAYED}
    dispatched = [each for each in messages if not each.flags & RecordFlag.DELAYED]
    assert sorted(_first_offset(each) for each in dispatched) == sorted(pending)
    for each in dispatched:
        due_ms = int.from_bytes(decode_attributes(each.attributes)[Attribute.DUE_MS], "little")
        assert delays.earliest_ms[each.payload] <= due_ms <= each.timestamp_ms
        assert each.payload == pending[_first_offset(each)].payload
        assert each.payload in received


def _first_offset(record: Record) -> int:
    return int.from_bytes(decode_attributes(record.attributes)[Attribute.FIRST_OFFSET], "little")
