"""SIGKILL at chosen system calls: in the first start, in a recovery, and where segments and the index change hands."""

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, Publish, QoS
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.mqtt_client import MqttConnection
from store.files.folder import INDEX
from store.settings import StoreSettings
from tests.conftest import KILLED_WITH_EITHER_FLUSH, ServerFactory
from tests.crash import strace
from tests.crash.replayed import assert_index_equals_replay
from tests.support.server_process import PenstockServer

# Calls that change what is on the disk, and how many of each a start makes at most.
CALLS_OF_A_START = {
    "mkdir": 10,
    "ftruncate": 3,
    "fallocate": 1,
    "pwrite64": 2,
    "write": 35,
    "fsync": 6,
    "fdatasync": 5,
    "rename": 4,
    "unlink": 2,
}
# The same under load, and how far apart the interesting ones may be.
CALLS_UNDER_LOAD = {
    "pwrite64": 300,
    "fdatasync": 60,
    "ftruncate": 6,
    "fallocate": 6,
    "fsync": 20,
    "rename": 4,
    "unlink": 8,
    "write": 60,
    "sendto": 400,
}
POINTS = 10
FEWEST_HITS = 3  # of the points; fewer would mean that the killing does not work


@pytest.mark.asyncio
async def test_kills_in_the_first_start(penstock_server: ServerFactory, seed: int, tmp_path: Path) -> None:
    """Each start finds what the one before left of an empty folder."""
    server = penstock_server(flush="async")
    server.kill()
    shutil.rmtree(server.data)
    starts = [start_until_killed(server, *point, tmp_path) for point in points(random.Random(seed), CALLS_OF_A_START)]
    assert starts.count(False) >= FEWEST_HITS
    server.prefix = ()
    await asyncio.to_thread(server.restart)
    connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with connection:
        await connection.publish(Publish("works", b"", QoS.AT_LEAST_ONCE, packet_id=1))


@pytest.mark.asyncio
@pytest.mark.parametrize("keeps_index", [True, False])
async def test_kills_while_recovering(
    keeps_index: bool, penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    """A server that is killed again while it replays, and again, and again."""
    server = penstock_server(flush="async", settings=small)
    load = ChaosLoad(server, seed)
    load.publisher("p", ("recover/a", 1), ("recover/b", 2))
    load.subscriber("s-online", {"recover/#": 2})
    load.subscriber("s-away", {"+/b": 2, "recover/a": 1})
    async with load.running():
        load.subscribers[1].go_offline()
        load.allow(800)
        await load.all_acknowledged()
        server.kill()
        starts = []
        for point in points(load.rng, CALLS_OF_A_START):
            if not keeps_index:
                shutil.rmtree(server.data / INDEX, ignore_errors=True)
            starts.append(await asyncio.to_thread(start_until_killed, server, *point, tmp_path))
        assert starts.count(False) >= FEWEST_HITS
        server.prefix = ()
        await load.restart()
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
    server.kill()
    assert_index_equals_replay(server.data, StoreSettings(segment_bytes=262_144), tmp_path)


@pytest.mark.asyncio
@KILLED_WITH_EITHER_FLUSH
async def test_kills_at_system_calls_under_load(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    server = penstock_server(flush=flush, settings=small)
    load = ChaosLoad(server, seed)
    load.publisher("p5", ("calls/a", 1), ("calls/b", 2))
    load.publisher("p3", ("calls/b", 2), version=4)
    load.subscriber("s-all", {"#": 2})
    load.subscriber("s-some", {"calls/+": 1, "calls/b": 2}, version=4)
    async with load.running():
        deaths = 0
        for call, number in points(load.rng, CALLS_UNDER_LOAD):
            server.prefix = strace.kill_at(call, number, tmp_path / "strace")
            await restart_if_it_lives(load)
            load.allow(400)
            await load.ledger.wait(lambda: is_dead(server) or load.ledger.nothing_to_do, f"death at {call} {number}")
            deaths += is_dead(server)
        assert deaths >= FEWEST_HITS
        server.prefix = ()
        await load.restart()
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
    server.kill()
    assert_index_equals_replay(server.data, StoreSettings(segment_bytes=262_144), tmp_path)


def points(rng: random.Random, calls: dict[str, int]) -> Iterator[tuple[str, int]]:
    """System calls to be killed at: (name, the how-manieth)."""
    for _ in range(POINTS):
        call = rng.choice(list(calls))
        yield call, rng.randint(1, calls[call])


def start_until_killed(server: PenstockServer, call: str, number: int, scratch: Path) -> bool:
    """Start, to be killed on the way. True if it got as far as ready; then it is killed there."""
    server.prefix = strace.kill_at(call, number, scratch / "strace")
    try:
        server.restart()
    except RuntimeError as error:
        if "exited with -9" not in str(error):
            raise
        return False
    server.kill()
    return True


async def restart_if_it_lives(load: ChaosLoad) -> None:
    """Some of the calls come in the start already."""
    try:
        await load.restart()
    except RuntimeError as error:
        if "exited with -9" not in str(error):
            raise


def is_dead(server: PenstockServer) -> bool:
    return server.process.poll() is not None
