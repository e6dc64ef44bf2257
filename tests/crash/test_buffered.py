"""With flush buffered a SIGKILL loses what was not committed: some of the newest, and nothing in between."""

import asyncio
import random
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, PubAck, Publish, QoS
from loadtest.chaos.ledger import until
from loadtest.chaos.mqtt_client import MqttConnection
from store.log.commitlog import BUFFERED_COMMIT_BYTES
from store.settings import StoreSettings
from tests.conftest import ServerFactory
from tests.crash.replayed import assert_index_equals_replay, payloads
from tests.support.server_process import PenstockServer

KILLS = 10
SETTINGS = StoreSettings(segment_bytes=262_144)


@pytest.mark.asyncio
@pytest.mark.catalogue("A4")
async def test_only_the_newest_are_lost(
    penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    server = penstock_server(flush="buffered", settings=small)
    kept: list[bytes] = []
    for round_number in range(KILLS):
        acked = await publish_and_kill(server, b"round-%d" % round_number, rng)
        found = payloads(server.data, SETTINGS, tmp_path)
        assert found[: len(kept)] == kept
        new = found[len(kept) :]
        assert new == acked[: len(new)], "a gap"
        assert sum(map(len, acked[len(new) :])) < BUFFERED_COMMIT_BYTES
        kept = found
        assert_index_equals_replay(server.data, SETTINGS, tmp_path)
        await asyncio.to_thread(server.restart)


@pytest.mark.asyncio
async def test_buffered_messages_are_committed_after_a_while(
    penstock_server: ServerFactory, small: dict[str, object], tmp_path: Path
) -> None:
    """What is older than buffered_commit_ms is in the file, however little it is."""
    server = penstock_server(flush="buffered", settings=small | {"store.buffered_commit_ms": 20})
    connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with connection:
        await connection.publish(Publish("buffered/a", b"little", QoS.AT_LEAST_ONCE, packet_id=1))
        segment = server.data / "log" / f"{0:020}.log"
        await until(lambda: b"little" in segment.read_bytes(), "the commit")
        server.kill()
    assert payloads(server.data, SETTINGS, tmp_path) == [b"little"]


async def publish_and_kill(server: PenstockServer, name: bytes, rng: random.Random) -> list[bytes]:
    """The payloads in the order of publishing, all acknowledged or possibly stored."""
    connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with connection:
        payloads: list[bytes] = []
        for number in range(1, rng.randrange(2, 400)):
            payloads.append(name + b" %d" % number + bytes(rng.choice((0, 50, 500))))
            connection.send(Publish("buffered/a", payloads[-1], QoS.AT_LEAST_ONCE, packet_id=number))
            if rng.random() < 0.2:
                await connection.receive(PubAck)
        last = len(payloads)
        while (await connection.receive(PubAck)).packet_id != last:
            pass
        server.kill()
    return payloads
