"""Store, gateways and Redis as processes: each is killed, stopped for ten seconds, cut off; no promise is broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadtest.chaos.cluster import Cluster, ClusterOptions
from loadtest.chaos.ledger import until
from loadtest.chaos.load import ChaosLoad

ROUNDS = 2
STOPPED_S = 10
CUT_S = 5  # longer than the store waits for a gateway
SHORT_CUT_S = 0.5
KILLED_S = 0.5
TOPICS = (("load/a", 1), ("load/b", 2), ("load/shared", 2), ("other/shared", 1))

Action = Callable[[Cluster], None]
FAULTS: dict[str, tuple[float, Action, Action]] = {
    "store killed": (KILLED_S, lambda c: c.store.kill(), lambda c: c.store.start()),
    "store stopped": (STOPPED_S, lambda c: c.store.pause(), lambda c: c.store.resume()),
    "store cut off": (CUT_S, lambda c: c.cut_store_off(), lambda c: c.mend()),
    "gateway killed": (KILLED_S, lambda c: c.gateways[0].kill(), lambda c: c.gateways[0].start()),
    "gateway stopped": (STOPPED_S, lambda c: c.gateways[0].pause(), lambda c: c.gateways[0].resume()),
    "gateway cut off": (CUT_S, lambda c: c.wires[0].cut(), lambda c: c.wires[0].mend()),
    "gateway cut off for a moment": (SHORT_CUT_S, lambda c: c.wires[0].cut(), lambda c: c.wires[0].mend()),
    "Redis killed": (KILLED_S, lambda c: c.redis.kill(), lambda c: c.redis.start()),
    "Redis stopped": (STOPPED_S, lambda c: c.redis.pause(), lambda c: c.redis.resume()),
    "Redis cut off": (CUT_S, lambda c: c.redis_wire.cut(), lambda c: c.redis_wire.mend()),
}
BY_NIGHT = ("store stopped", "gateway stopped", "Redis stopped", "Redis cut off")


@pytest.fixture
def cluster(tmp_path: Path, small: dict[str, object]) -> Iterator[Cluster]:
    cluster = Cluster(
        tmp_path, settings=small | {"gateway.store_patience_s": 60}, options=ClusterOptions(with_redis=True)
    )
    yield cluster
    cluster.close()


def load_on(cluster: Cluster, seed: int) -> ChaosLoad:
    """Persistent sessions of both versions, on either gateway, with filters of every kind of queue."""
    load = ChaosLoad(cluster, seed)
    load.publisher("p5", *TOPICS)
    load.publisher("p3", *TOPICS, version=4)
    load.publisher("p5-exact", ("load/b", 2), ("load/b", 2), ("load/c", 2))
    load.subscriber("s-exact", {"load/b": 2})
    load.subscriber("s-wild", {"+/shared": 2})
    load.subscriber("s-level", {"load/#": 1})
    load.subscriber("s-all", {"#": 2}, version=4)
    return load


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=pytest.mark.nightly) if name in BY_NIGHT else name for name in FAULTS]
)
@pytest.mark.catalogue("O59")
async def test_faults_of_each_part_lose_nothing(fault: str, cluster: Cluster, seed: int) -> None:
    lasts_s, begin, end = FAULTS[fault]
    load = load_on(cluster, seed)
    async with load.running():
        for _ in range(ROUNDS):
            load.allow(1_000)
            await load.ledger.progress(load.rng.randrange(50, 400))
            await asyncio.to_thread(begin, cluster)
            for client in load.clients:  # whoever is connected to nobody gives up some time
                if client.port in cluster.ports and not cluster.gateways[cluster.ports.index(client.port)].is_running:
                    client.move()
            await asyncio.sleep(lasts_s)
            await asyncio.to_thread(end, cluster)
            await served_again(load)
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)


async def served_again(load: ChaosLoad) -> None:
    """Every publisher sees something acknowledged that it sends from now on."""
    load.allow(10)
    before = {publisher: publisher.acknowledged for publisher in load.publishers}
    started_s = asyncio.get_running_loop().time()
    await until(
        lambda: all(publisher.idle or publisher.acknowledged > before[publisher] for publisher in load.publishers),
        "acknowledgements after the fault",
    )
    print(f"served again after {asyncio.get_running_loop().time() - started_s:.2f} s")
