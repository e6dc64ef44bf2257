"""With flush sync, nothing is acknowledged before an fdatasync that began after its record was written has ended."""

import asyncio
import random
from pathlib import Path

import pytest

from gateway.mqtt.codec import decode_varint
from gateway.mqtt.packets import PingReq, PingResp, PubAck, Publish, PubRec, PubRel, QoS
from loadtest.chaos.ledger import until
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from store.files.segment import segment_paths
from tests.conftest import ServerFactory
from tests.crash import strace
from tests.crash.strace import SYNCS, WRITES, Call

MESSAGES = 150
WINDOW = 20
MARK = "message-{:05};"


@pytest.mark.asyncio
@pytest.mark.parametrize("qos", [QoS.AT_LEAST_ONCE, pytest.param(QoS.EXACTLY_ONCE, marks=pytest.mark.nightly)])
@pytest.mark.catalogue("A2")
async def test_each_acknowledgement_follows_its_fdatasync(
    qos: QoS, penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    server = penstock_server(flush="sync", settings=small)
    connection, _ = await MqttConnection.open(server.port, persistent("publisher"))
    async with connection:
        with strace.recording(server.process.pid, (*SYNCS, *WRITES), tmp_path / "trace"):
            await until_it_records(connection, tmp_path / "trace")
            await publish_in_bursts(connection, qos, random.Random(seed))
    calls = strace.read_trace(tmp_path / "trace")
    acknowledged = list(acknowledgements(calls, 0x40 if qos == 1 else 0x50))
    assert sorted(packet_id for packet_id, _ in acknowledged) == list(range(1, MESSAGES + 1))
    for packet_id, sent in acknowledged:
        assert synced_before(sent, calls, MARK.format(packet_id).encode()), packet_id


async def until_it_records(connection: MqttConnection, trace: Path) -> None:
    """strace says that it is attached a little before it sees every call."""
    async with asyncio.timeout(20):
        while b"TCP" not in await asyncio.to_thread(trace.read_bytes):
            connection.send(PingReq())
            await connection.receive(PingResp)


async def publish_in_bursts(connection: MqttConnection, qos: QoS, rng: random.Random) -> None:
    """Some at a time, waiting for no particular acknowledgement."""
    unacknowledged: set[int] = set()
    for packet_id in range(1, MESSAGES + 1):
        payload = MARK.format(packet_id).encode() + bytes(rng.choice((0, 3_000)))
        connection.send(Publish("sync/a", payload, qos, packet_id=packet_id))
        unacknowledged.add(packet_id)
        while len(unacknowledged) > (WINDOW if packet_id < MESSAGES else 0):
            if qos == QoS.AT_LEAST_ONCE:
                unacknowledged.remove((await connection.receive(PubAck)).packet_id)
            else:
                unacknowledged.remove((received := await connection.receive(PubRec)).packet_id)
                connection.send(PubRel(received.packet_id))
    connection.send(PingReq())
    await connection.receive(PingResp)  # so that strace has seen the end of what was sent before


def acknowledgements(calls: list[Call], first_byte: int) -> list[tuple[int, Call]]:
    """(packet_id, the call that sent it) of each PUBACK or PUBREC."""
    found = []
    for call in calls:
        if call.name in WRITES and call.target.startswith("TCP"):
            data = call.data[: call.result]
            while data:
                size, body_at = decode_varint(data, 1)
                if data[0] == first_byte:
                    found.append((int.from_bytes(data[body_at : body_at + 2], "big"), call))
                data = data[body_at + size :]
    return found


def synced_before(sent: Call, calls: list[Call], mark: bytes) -> bool:
    """Whether the file with the marked record was synced between its writing and `sent`."""
    written = [call for call in calls if call.name == "pwrite64" and call.target.endswith(".log") and mark in call.data]
    assert len(written) == 1, mark
    return any(
        call.name in SYNCS
        and call.target == written[0].target
        and call.result == 0
        and written[0].ended < call.began
        and call.ended < sent.began
        for call in calls
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("more", [0, 5], ids=["active", "sealed"])
async def test_records_found_at_a_start_are_synced_before_they_count(
    more: int, penstock_server: ServerFactory, small: dict[str, object], tmp_path: Path
) -> None:
    """A record found at the start may be in the page cache only; its publisher hears of it once it is on disk."""
    server = penstock_server(flush="sync", settings=small)
    segment = server.data / "log" / f"{0:020}.log"
    publish = Publish("sync/b", MARK.format(1).encode(), QoS.EXACTLY_ONCE, packet_id=1)
    connection, _ = await MqttConnection.open(server.port, persistent("publisher"))
    async with connection:
        with strace.delayed(server.process.pid, "fdatasync", segment, delay_ms=60_000):
            connection.send(publish)
            for packet_id in range(2, 2 + more):  # enough to begin another segment
                payload = MARK.format(packet_id).encode() + bytes(60_000)
                connection.send(Publish("sync/b", payload, QoS.AT_LEAST_ONCE, packet_id=packet_id))
            await in_file(server.data / "log", MARK.format(1 + more).encode())
            server.process.kill()
    server.prefix = strace.record_from_start((*SYNCS, *WRITES), tmp_path / "trace")
    await asyncio.to_thread(server.restart)
    connection, connack = await MqttConnection.open(server.port, persistent("publisher"))
    async with connection:
        assert connack.session_present
        publish.dup = True
        connection.send(publish)
        await connection.receive(PubRec)
    server.terminate()
    calls = strace.read_trace(tmp_path / "trace")
    ((_, sent),) = acknowledgements(calls, 0x50)
    log = b"".join(path.read_bytes() for path in segment_paths(server.data / "log"))
    assert log.count(publish.payload) == 1  # written anew where it stood, and not stored again
    assert any(
        call.name in SYNCS and call.target == str(segment) and call.result == 0 and call.ended < sent.began
        for call in calls
    )


async def in_file(folder: Path, payload: bytes) -> None:
    """Wait until some segment has it."""
    await until(lambda: any(payload in segment.read_bytes() for segment in segment_paths(folder)), "the record")


def test_a_start_makes_names_durable_before_it_goes_on(
    penstock_server: ServerFactory, small: dict[str, object], tmp_path: Path
) -> None:
    """A kill right behind the creation of a segment leaves a file whose name no sync has made certain."""
    server = penstock_server(flush="sync", settings=small)
    server.kill()
    output = tmp_path / "trace"
    server.prefix = strace.record_from_start(("fsync",), output)
    server.restart()
    server.terminate()
    synced = [call.target for call in strace.read_trace(output)]
    assert str(server.data / "log") in synced[: synced.index(str(server.data / "log" / "marks"))]
