"""SIGKILL at random moments under load: nothing acknowledged is lost, QoS 2 comes once, order is kept."""

import asyncio
from pathlib import Path

import pytest

from loadtest.chaos.load import ChaosLoad
from store.settings import StoreSettings
from tests.conftest import ServerFactory
from tests.crash.replayed import assert_index_equals_replay
from tests.support.server_process import PenstockServer

KILLS = 12
BY_DAY = pytest.mark.topologies("one process", nightly=("unix socket", "two gateways"))  # the fault matrix kills those
TOPICS = (("load/a", 1), ("load/b", 2), ("load/shared", 2), ("other/shared", 1))


def load_on(server: PenstockServer, seed: int) -> ChaosLoad:
    """Publishers and subscribers of both versions; filters of every kind of queue, and overlapping ones."""
    load = ChaosLoad(server, seed)
    load.publisher("p5", *TOPICS)
    load.publisher("p5-exact", ("load/b", 2), ("load/b", 2), ("load/c", 2), ("load/c", 2))
    load.publisher("p3", *TOPICS, version=4)
    load.subscriber("s-exact", {"load/b": 2})
    load.subscriber("s-wild", {"+/shared": 2})
    load.subscriber("s-level", {"load/#": 1})
    load.subscriber("s-all", {"#": 2}, version=4)
    load.subscriber("s-overlap", {"load/+": 1, "load/b": 2, "load/#": 1, "other/shared": 2})
    return load


@pytest.mark.asyncio
@BY_DAY
@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.catalogue("A3")
async def test_kills_under_load(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    server = penstock_server(flush=flush, settings=small)
    load = load_on(server, seed)
    async with load.running():
        await load.upset(KILLS)
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
    server.kill()
    assert_index_equals_replay(server.data, StoreSettings(segment_bytes=262_144), tmp_path)


@pytest.mark.asyncio
async def test_kills_with_other_settings_each_time(
    penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    """Segments of another size, another flush policy: what a killed server left is the same."""
    server = penstock_server(flush="sync", settings=small)
    load = load_on(server, seed)
    async with load.running():
        for _ in range(KILLS):
            load.allow(2_000)
            await load.ledger.progress(load.rng.randrange(1, 300))
            segment_bytes = load.rng.choice((131_072, 262_144, 1_048_576))
            flush = load.rng.choice(("sync", "async"))
            await asyncio.to_thread(server.restart, {"store.segment_bytes": segment_bytes}, flush=flush)
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
    server.kill()
    assert_index_equals_replay(server.data, StoreSettings(segment_bytes=262_144), tmp_path)
