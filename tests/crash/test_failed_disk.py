"""A disk that fails: nothing that it did not confirm is acknowledged, and the process says so, ends, and can start."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, PubAck, Publish, QoS
from loadtest.chaos.cluster import Cluster, ClusterOptions
from loadtest.chaos.mqtt_client import MqttConnection
from loadtest.errors import LoadTestError
from loadtest.power.recording import Recorder, Syncs
from store.settings import StoreSettings
from tests.conftest import ServerFactory
from tests.crash import strace
from tests.crash.replayed import payloads
from tests.support.server_process import PenstockServer

ENDED_WITHIN_S = 60
REWRITE = {"store.on_failed_sync": "rewrite"}


async def publish_until_it_ends(server: PenstockServer) -> list[bytes]:
    """The payloads that were acknowledged."""
    acknowledged: list[bytes] = []
    connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with connection:
        for number in range(1, 1000):
            payload = b"%d" % number
            try:
                await connection.publish(Publish("disk/a", payload, QoS.AT_LEAST_ONCE, packet_id=number))
            except (ConnectionError, LoadTestError):
                break
            acknowledged.append(payload)
    return acknowledged


@pytest.mark.asyncio
async def test_a_failed_sync_ends_the_process(
    penstock_server: ServerFactory, small: dict[str, object], tmp_path: Path
) -> None:
    server = penstock_server(flush="sync", settings=small)
    with strace.failing(server.process.pid, "fdatasync", server.data / "log" / f"{0:020}.log", "EIO", 20):
        acknowledged = await publish_until_it_ends(server)
        assert await asyncio.to_thread(server.process.wait, ENDED_WITHIN_S) == 74
    assert 5 < len(acknowledged) < 100
    assert "flush failed: [Errno 5]" in server.log_text()
    assert set(acknowledged) <= set(payloads(server.data, StoreSettings(segment_bytes=262_144), tmp_path))
    server.restart()
    assert len(await publish_until_it_ends(server)) == 999


@pytest.mark.asyncio
async def test_a_failed_sync_may_leave_the_process(penstock_server: ServerFactory, small: dict[str, object]) -> None:
    server = penstock_server(flush="sync", settings=small | {"store.on_failed_sync": "refuse"})
    with strace.failing(server.process.pid, "fdatasync", server.data / "log" / f"{0:020}.log", "EIO", 20):
        assert len(await publish_until_it_ends(server)) < 100
    assert server.process.poll() is None
    assert await publish_until_it_ends(server) == []


async def publish_on(server: PenstockServer, first: int, end: int) -> tuple[list[bytes], int]:
    """The payloads that were acknowledged, and how many were refused."""
    acknowledged, refused = [], 0
    connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with connection:
        for number in range(first, end):
            payload = b"%d" % number
            connection.send(Publish("disk/a", payload, QoS.AT_LEAST_ONCE, packet_id=number))
            if (await connection.receive(PubAck, 60)).reason_code < 0x80:
                acknowledged.append(payload)
            else:
                refused += 1
                await asyncio.sleep(0.01)  # it is busy
    return acknowledged, refused


@pytest.mark.asyncio
async def test_a_failed_sync_may_be_made_good(
    penstock_server: ServerFactory, small: dict[str, object], tmp_path: Path
) -> None:
    """What is in doubt is written anew: the process goes on, acknowledges it and what follows; a kill loses nothing."""
    server = penstock_server(flush="sync", settings=small | REWRITE)
    first = server.data / "log" / f"{0:020}.log"
    with first.open("rb") as old:  # open, so that no later file gets its inode
        with strace.failing(server.process.pid, "fdatasync", first, "EIO", 20, once=True):
            acknowledged, refused = await publish_on(server, 1, 300)
        assert not os.path.samestat(os.fstat(old.fileno()), first.stat())
    assert server.process.poll() is None
    assert len(acknowledged) + refused == 299
    assert len(acknowledged) > 200
    assert "written anew up to log_offset" in server.log_text()
    server.kill()
    stored = payloads(server.data, StoreSettings(segment_bytes=262_144), tmp_path)
    assert [each for each in stored if each in set(acknowledged)] == acknowledged
    server.restart()
    assert (await publish_on(server, 300, 310))[1] == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("call", ["rename", "ftruncate"])
async def test_a_kill_while_it_is_written_anew_loses_nothing(
    penstock_server: ServerFactory, small: dict[str, object], tmp_path: Path, call: str
) -> None:
    """As the new file is begun, and as it takes the old one's place."""
    server = penstock_server(flush="sync", settings=small | REWRITE)
    first = server.data / "log" / f"{0:020}.log"
    new = first.with_name(first.name + ".new")
    acknowledged: list[bytes] = []

    async def publish() -> None:
        connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
        async with connection:
            for number in range(1, 1000):
                payload = b"%d" % number
                await connection.publish(Publish("disk/a", payload, QoS.AT_LEAST_ONCE, packet_id=number))
                acknowledged.append(payload)

    with strace.failing_then_killed(server.process.pid, first, 20, call, new):
        with suppress(ConnectionError, LoadTestError):
            await publish()
        await asyncio.to_thread(server.process.wait, ENDED_WITHIN_S)
    assert 5 < len(acknowledged) < 100
    assert set(acknowledged) <= set(payloads(server.data, StoreSettings(segment_bytes=262_144), tmp_path))
    server.restart()
    assert not new.exists()
    assert (await publish_on(server, 300, 310))[1] == 0


@pytest.mark.asyncio
async def test_more_than_memory_has_ends_the_process(penstock_server: ServerFactory, small: dict[str, object]) -> None:
    """With `async` much may be in doubt: here 16 MiB, as a segment is full. The next start writes it anew."""
    patient = {"store.flush_deadline_ms": 600_000, "store.flush_interval_ms": 600_000}
    server = penstock_server(flush="async", settings=small | REWRITE | patient | {"store.segment_bytes": 16 << 20})
    payload, sent = b"x" * 60_000, 0
    with strace.failing(server.process.pid, "fdatasync", server.data / "log" / f"{0:020}.log", "EIO", 1):
        connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
        async with connection:
            with suppress(ConnectionError, LoadTestError):
                for sent in range(1, 1000):
                    await connection.publish(Publish("disk/a", payload, QoS.AT_LEAST_ONCE, packet_id=sent))
        assert await asyncio.to_thread(server.process.wait, ENDED_WITHIN_S) == 74
    assert sent > 250
    assert "is not in the tail" in server.log_text()
    server.restart()


@pytest.mark.asyncio
@pytest.mark.parametrize("with_gateway", [False, True], ids=["serve", "store"])
async def test_a_disk_on_which_nothing_is_synced_any_more(
    with_gateway: bool, small: dict[str, object], tmp_path: Path
) -> None:
    """The index fails as well when it is closed; the exit code is what a supervisor goes by all the same."""
    data = tmp_path / "data"
    data.mkdir()
    recorder = Recorder(tmp_path, data)

    def start() -> Cluster:
        options = ClusterOptions(data=data, environment_of=environment_of)
        return Cluster(tmp_path, int(with_gateway), small, wires=False, options=options)

    def environment_of(name: str) -> dict[str, str]:
        return recorder.environment if name == "store" else {}

    cluster = await asyncio.to_thread(start)
    try:
        connection, _ = await MqttConnection.open(cluster.port, Connect(clean_start=True))
        async with connection:
            await connection.publish(Publish("disk/a", b"1", QoS.AT_LEAST_ONCE, packet_id=1))
            recorder.make_syncs(Syncs.FAIL)
            connection.send(Publish("disk/a", b"2", QoS.AT_LEAST_ONCE, packet_id=2))
            assert await asyncio.to_thread(cluster.store.process.wait, ENDED_WITHIN_S) == 74, cluster.store.log_text()
        recorder.make_syncs(Syncs.AS_THEY_ARE)
        await asyncio.to_thread(cluster.store.start)
    finally:
        cluster.close()
