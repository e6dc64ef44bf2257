"""SIGKILL while subscribers with sessions are away and their messages pile up, and while they catch up."""

from pathlib import Path

import pytest

from loadtest.chaos.load import ChaosLoad
from store.settings import StoreSettings
from tests.conftest import ServerFactory
from tests.crash.replayed import assert_index_equals_replay

KILLS_AWAY = 5
KILLS_DRAINING = 8
BACKLOG_MESSAGES = 120
DRAIN_EVENTS = 250


@pytest.mark.asyncio
@pytest.mark.parametrize("flush", ["async", pytest.param("sync", marks=pytest.mark.nightly)])
@pytest.mark.catalogue("E16")
async def test_kills_with_a_backlog(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    server = penstock_server(flush=flush, settings=small)
    load = ChaosLoad(server, seed)
    load.publisher("p1", ("deep/a", 1), ("deep/b", 2), ("deep/c", 2))
    load.publisher("p2", ("deep/b", 2), ("deep/a", 1), version=4)
    load.subscriber("s-exact", {"deep/b": 2, "deep/a": 1})
    load.subscriber("s-wild", {"+/b": 2, "deep/+": 2})
    load.subscriber("s-level", {"deep/#": 2}, version=4)
    async with load.running():
        await pile_up(load)
        await drain(load)
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
    server.kill()
    assert_index_equals_replay(server.data, StoreSettings(segment_bytes=262_144), tmp_path)


async def pile_up(load: ChaosLoad) -> None:
    """Publish with nobody there to receive, and kill in between."""
    for subscriber in load.subscribers:
        subscriber.go_offline()
    for _ in range(KILLS_AWAY):
        load.allow(BACKLOG_MESSAGES)
        await load.ledger.progress(load.rng.randrange(1, BACKLOG_MESSAGES))
        await load.restart()
    await load.all_acknowledged()


async def drain(load: ChaosLoad) -> None:
    """Let the subscribers have it, but cut and kill again and again."""
    for subscriber in load.subscribers:
        subscriber.online.set()
    for _ in range(KILLS_DRAINING):
        for _ in range(load.rng.randrange(4)):
            load.allow(1)  # something comes even if the backlog is gone
            await load.ledger.progress(load.rng.randrange(1, DRAIN_EVENTS) // 4)
            load.rng.choice(load.subscribers).cut()
        load.allow(10)
        await load.ledger.progress(load.rng.randrange(1, DRAIN_EVENTS))
        await load.restart()
