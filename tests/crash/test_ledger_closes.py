"""published = delivered + expired + waiting + refused: through any fault every message is one of these."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.cluster import Cluster
from loadtest.chaos.load import ChaosLoad
from tests.crash.test_fault_matrix import served_again

PATIENCE_S = 1
STOPPED_S = 2.5  # longer than gateways are patient, and as long as the store waits for them
AFTER_S = 1.5  # then what had a second to live has expired
EXPIRED = 'penstock_messages_dropped_total{reason="expired"}'


@pytest.fixture
def cluster(tmp_path: Path, small: dict[str, object]) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, settings=small | {"gateway.store_patience_s": PATIENCE_S})
    yield cluster
    cluster.close()


@pytest.mark.asyncio
@pytest.mark.catalogue("O59")
async def test_the_ledger_closes(cluster: Cluster, seed: int) -> None:
    load = ChaosLoad(cluster, seed)
    publishers = [load.publisher(name, ("load/a", 1), ("load/b", 2)) for name in ("p1", "p2")]
    load.subscriber("here", {"load/#": 1})
    away = load.subscriber("away", {"load/#": 1})
    for client in load.clients:  # what is no publish, and not confirmed in time, ends the connection
        client.accepted_farewells |= {ReasonCode.UNSPECIFIED_ERROR}
    for publisher in publishers:
        publisher.expires = publisher.may_be_refused = True
    async with load.running():
        await published(load)
        away.go_offline()
        for begin, end in (
            (cluster.gateways[0].kill, cluster.gateways[0].start),
            (cluster.store.pause, cluster.store.resume),
            (cluster.store.kill, cluster.store.start),
            (cluster.wires[1].cut, cluster.wires[1].mend),
        ):
            load.allow(300)
            await load.ledger.progress(50)
            await asyncio.to_thread(begin)
            await asyncio.sleep(STOPPED_S)
            await asyncio.to_thread(end)
            await served_again(load)
            await published(load)
        await asyncio.sleep(AFTER_S)
        delivered = set(load.ledger.delivered["away"])
        expired_before = sum(gateway.metric(EXPIRED) for gateway in cluster.gateways)
        away.settle()
        away.online.set()
        await published(load)
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
    ledger = load.ledger
    assert ledger.sent == ledger.acked | ledger.refused
    waiting = set(ledger.delivered["away"]) - delivered
    refused = ledger.refused - delivered - waiting
    expired = ledger.expiring - delivered - waiting - refused
    print(f"{len(ledger.sent)} = {len(delivered)} + {len(expired)} + {len(waiting)} + {len(refused)}")
    assert len(ledger.sent) == len(delivered) + len(expired) + len(waiting) + len(refused)
    assert all((delivered, expired, waiting))
    assert sum(gateway.metric(EXPIRED) for gateway in cluster.gateways) - expired_before >= len(expired)
    assert not (set(ledger.delivered["here"]) - ledger.sent)


async def published(load: ChaosLoad) -> None:
    """All that is to be sent was, and whoever is there has it."""
    load.allow(20)
    await load.all_acknowledged()
    here = [each.client_id for each in load.subscribers if each.online.is_set()]
    await load.ledger.wait(lambda: all(map(load.ledger.has_all, here)), "deliveries to whoever is there")
