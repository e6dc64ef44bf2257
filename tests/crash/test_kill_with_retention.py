"""SIGKILL while the oldest segments are dropped: the index can still be built again, from its checkpoint on."""

from pathlib import Path

import pytest

from loadtest.chaos.ledger import until
from loadtest.chaos.load import ChaosLoad
from store.files.segment import segment_paths
from store.settings import StoreSettings
from tests.conftest import ServerFactory
from tests.crash.replayed import assert_index_equals_replay
from tests.support.server_process import PenstockServer

KILLS = 5
RETENTION = {"store.retention_bytes": 600_000, "store.retention_check_s": 1}
SETTINGS = StoreSettings(segment_bytes=262_144)


@pytest.mark.asyncio
@pytest.mark.catalogue("E16")
async def test_kills_while_the_log_is_trimmed(
    penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    """Dropped messages may be lost to those who had not read them; nothing comes twice, and nothing out of order."""
    server = penstock_server(flush="async", settings=small | RETENTION)
    load = ChaosLoad(server, seed)
    load.publisher("p5", ("trim/a", 2), ("trim/b", 1))
    load.publisher("p3", ("trim/b", 1), ("trim/c", 2), version=4)
    load.subscriber("s-all", {"#": 2})
    load.subscriber("s-wild", {"+/b": 1, "+/c": 2})
    async with load.running():
        for _ in range(KILLS):
            load.allow(100_000)
            await until_dropped(server, oldest_segment(server))
            await load.ledger.progress(load.rng.choice((0, load.rng.randrange(1, 1_000))))
            server.kill()
            assert_index_equals_replay(server.data, SETTINGS, tmp_path)
            await load.restart()
        for publisher in load.publishers:
            publisher.budget = 0
        await load.all_acknowledged()
    lost = "acknowledged, but not delivered"
    assert not (complaints := [line for line in load.ledger.complaints() if lost not in line]), "\n".join(complaints)


async def until_dropped(server: PenstockServer, segment: str) -> None:
    await until(lambda: oldest_segment(server) != segment, "the end of a segment")


def oldest_segment(server: PenstockServer) -> str:
    return min(segment.name for segment in segment_paths(server.data / "log"))
