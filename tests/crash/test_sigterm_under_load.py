"""SIGTERM under load: it exits with 0, loses nothing, and the next start has nothing to replay."""

import asyncio
import re
from itertools import pairwise
from pathlib import Path

import pytest

from loadtest.chaos.load import ChaosLoad
from store.settings import StoreSettings
from tests.conftest import KILLED_WITH_EITHER_FLUSH, ServerFactory
from tests.crash.replayed import assert_index_equals_replay

STOPS = 6


def after_stopped(text: str) -> list[str]:
    """What is said next each time that the server has stopped: its next start, that is, if anything."""
    said = [line.partition("penstock: ")[2] or line for line in text.splitlines()]
    return [follows for line, follows in pairwise(said) if line == "stopped"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "flush",
    ["sync", pytest.param("async", marks=pytest.mark.nightly), pytest.param("buffered", marks=pytest.mark.nightly)],
)
async def test_orderly_stops_under_load(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    server = penstock_server(flush=flush, settings=small)
    load = ChaosLoad(server, seed)
    load.publisher("p5", ("term/a", 2), ("term/b", 1))
    load.publisher("p3", ("term/b", 1), ("term/c", 2), version=4)
    load.subscriber("s-all", {"#": 2})
    load.subscriber("s-some", {"term/+": 1, "term/a": 2}, version=4)
    async with load.running():
        for _ in range(STOPS):
            load.allow(2_000)
            await load.ledger.progress(load.rng.randrange(1, 600))
            await asyncio.to_thread(server.terminate)
            await asyncio.to_thread(server.restart)
        for publisher in load.publishers:
            publisher.budget = 0
        await load.all_acknowledged()
        await load.ledger.wait(lambda: load.ledger.all_delivered, "all deliveries")
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
    assert "Traceback" not in server.log_text()
    assert all(follows.startswith(("stopped", "penstock ")) for follows in after_stopped(server.log_text()))
    assert [int(size) for size in re.findall(r"sessions, (\d+) bytes replayed", server.log_text())] == [0] * (STOPS + 1)


@pytest.mark.asyncio
@KILLED_WITH_EITHER_FLUSH
async def test_killed_while_it_stops(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    """Whoever stops it has no patience: SIGKILL follows the SIGTERM."""
    server = penstock_server(flush=flush, settings=small)
    load = ChaosLoad(server, seed)
    load.publisher("p", ("term/a", 2), ("term/b", 1))
    load.subscriber("s", {"#": 2})
    async with load.running():
        for _ in range(STOPS):
            load.allow(2_000)
            await load.ledger.progress(load.rng.randrange(1, 400))
            server.process.terminate()
            await asyncio.sleep(
                load.rng.choice((0.001, 0.005, 0.02, 0.05))
            )  # not to wait: to hit any moment of the stop
            await load.restart()
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
    server.kill()
    assert_index_equals_replay(server.data, StoreSettings(segment_bytes=262_144), tmp_path)
