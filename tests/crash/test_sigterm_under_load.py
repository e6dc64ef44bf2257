"""SIGTERM under load: it exits with 0, loses nothing, and the next start has nothing to replay."""

import asyncio
import re

import pytest

from tests.conftest import ServerFactory
from tests.crash.load import Load

pytestmark = pytest.mark.crash

STOPS = 6


@pytest.mark.asyncio
@pytest.mark.parametrize("flush", ["async", "sync", "buffered"])
async def test_orderly_stops_under_load(
    flush: str, penstock_server: ServerFactory, small: dict[str, object], seed: int
) -> None:
    server = penstock_server(flush=flush, settings=small)
    load = Load(server, seed)
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
    assert [int(size) for size in re.findall(r"sessions, (\d+) bytes replayed", server.log_text())] == [0] * (STOPS + 1)
