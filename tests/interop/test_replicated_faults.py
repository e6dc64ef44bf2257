"""A leader that is killed, stands still, or loses Kafka under load: what was acknowledged is there, and all goes on."""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles

import pytest

from penstock.sdk.errors import ClientError
from penstock.sync import Client
from tests.support.cluster_load import ClusterGateways, ClusterLoad
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_cluster import kafka_cluster as kafka_cluster
from tests.support.replicated_stores import ClusterStore, ReplicatedStores, url, wait_for
from tests.support.replicated_stores import stores as stores

Fault = Callable[[ClusterStore], None]

AROUND = 40  # messages of each publisher before a fault, and after it
BEFORE = 300  # messages that are acknowledged before a fault
BEHIND = 300  # and after it
NOTICED_S = 0.5
ANSWER_S = 2.0
NIGHTLY_FAULTS = 10  # four times


class Publisher:
    """Publishes numbers one after another, to whichever store leads, and knows which were acknowledged."""

    def __init__(self, stores: ReplicatedStores) -> None:
        self.acknowledged: list[int] = []
        self.gaps_s: list[float] = []  # between acknowledgements, where they are long
        self._stores = stores
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number, newest_s = 0, time.monotonic()
        while not self._is_stopping:
            leader = next((each for each in self._stores.all if each.is_running and each.role == "ready"), None)
            if leader is None:
                time.sleep(0.01)
                continue
            client = Client(url(leader), timeout_s=1.0)
            try:
                while not self._is_stopping:
                    client.send("numbers", b"%d " % number * 40).result(ANSWER_S)
                    self.acknowledged.append(number)
                    number += 1
                    now_s = time.monotonic()
                    if now_s - newest_s > NOTICED_S:
                        self.gaps_s.append(now_s - newest_s)
                    newest_s = now_s
            except (ClientError, OSError):
                number += 1  # it may be stored, or not
                time.sleep(0.05)
            threading.Thread(target=client.close, daemon=True).start()  # it may wait for a store that is gone

    def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        wait_for(lambda: len(self.acknowledged) >= wanted, f"{count} more acknowledged")

    def stop(self) -> None:
        self._is_stopping = True
        self._thread.join()


def stored(leader: ClusterStore) -> list[int]:
    with Client(url(leader)) as client:
        return [int(message.payload.split()[0]) for message in client.read("numbers")]


async def go_through(
    stores: ReplicatedStores, folder: Path, seed: int, fault: Fault, until_led: Fault, mend: Fault
) -> None:
    """All that users do goes on through a fault of the first store, or of what it needs, and the logs become equal."""
    first = stores.start()
    stores.leads(first)
    second = stores.start()
    gateways = ClusterGateways(folder, stores.all)
    load = ClusterLoad(gateways, stores.all, seed)
    try:
        async with load.running():
            await load.publish(AROUND)
            await load.retain()
            await load.connect_with_wills()
            await load.delay(0, 2, 5)  # before the fault, while nobody leads, and after it
            load.allow(AROUND)
            fault(first)
            load.die()
            retaining = asyncio.create_task(load.retain())
            await asyncio.to_thread(until_led, second)
            await load.publish(AROUND)
            await retaining
            await asyncio.to_thread(mend, first)
            await load.publish(AROUND)
            await load.settled()
        await load.is_stored_once()
    finally:
        gateways.close()
    wait_for(lambda: stores.log_of(first) == stores.log_of(second), "the logs are equal")


@pytest.mark.asyncio
@pytest.mark.catalogue("L43")
async def test_a_leader_that_is_killed(stores: ReplicatedStores, tmp_path: Path, seed: int) -> None:
    await go_through(stores, tmp_path, seed, ClusterStore.kill, stores.leads, ClusterStore.start)


@pytest.mark.asyncio
async def test_a_leader_that_stands_still_and_wakes_up(stores: ReplicatedStores, tmp_path: Path, seed: int) -> None:
    def wake(store: ClusterStore) -> None:
        store.resume()
        wait_for(lambda: store.role == "follows", "it knows that it leads no more")

    await go_through(stores, tmp_path, seed, ClusterStore.pause, stores.leads, wake)


@pytest.mark.asyncio
async def test_kafka_is_away_and_comes_back(
    stores: ReplicatedStores, kafka_cluster: KafkaCluster, tmp_path: Path, seed: int
) -> None:
    """Until the leader answers nobody any more: all goes on without help."""

    def stop(_: ClusterStore) -> None:
        for broker in kafka_cluster.brokers:
            broker.stop()

    def come_back(_: ClusterStore) -> None:
        first = stores.all[0]
        try:
            wait_for(lambda: "all connections end" in first.log_text(), "the leader does not answer any more")
            with pytest.raises(ClientError), Client(url(first), timeout_s=0.5) as client:
                client.publish("others", b"not taken")
        finally:
            for broker in kafka_cluster.brokers:
                broker.cont()

    await go_through(stores, tmp_path, seed, stop, come_back, lambda _: None)


@pytest.mark.nightly
@pytest.mark.asyncio
@pytest.mark.catalogue("Q69")
async def test_a_leader_and_the_broker_that_leads_the_partition(
    stores: ReplicatedStores, kafka_cluster: KafkaCluster, tmp_path: Path, seed: int
) -> None:
    dead: list[KafkaBroker] = []

    def kill(store: ClusterStore) -> None:
        dead.append(kafka_cluster.leader_of(stores.topic))
        dead[0].kill()
        store.kill()

    def mend(store: ClusterStore) -> None:
        dead[0].start()
        store.start()

    await go_through(stores, tmp_path, seed, kill, stores.leads, mend)


KINDS = ("leader", "leader stands still", "standby", "broker", "leader and broker")


def strike(stores: ReplicatedStores, cluster: KafkaCluster, kind: str) -> Callable[[], None]:
    """One fault of a kind; what is returned mends it."""
    leader = next(each for each in stores.all if each.role == "ready")
    (standby,) = (each for each in stores.all if each is not leader)
    wait_for(lambda: standby.role == "follows", "the other one follows")
    broker = cluster.leader_of(stores.topic) if "broker" in kind else None
    if broker is not None:
        broker.kill()
    target = standby if kind == "standby" else leader
    if kind == "leader stands still":
        target.pause()
    elif kind != "broker":
        target.kill()

    def mend() -> None:
        if kind == "leader stands still":
            target.resume()
            wait_for(lambda: target.role == "follows", "it knows that it leads no more")
        elif kind != "broker":
            target.start()
        if broker is not None:
            broker.start()

    return mend


@pytest.mark.nightly
@pytest.mark.asyncio
@pytest.mark.parametrize("part", range(4))
async def test_forty_faults(
    stores: ReplicatedStores, kafka_cluster: KafkaCluster, tmp_path: Path, seed: int, part: int
) -> None:
    """SIGKILL and SIGSTOP of whoever leads, of the standby, of the broker that leads the partition, and of two of them
    together.
    """
    chance = random.Random(4 * seed + part)
    stores.leads(stores.start())
    stores.start()
    gateways = ClusterGateways(tmp_path, stores.all)
    load = ClusterLoad(gateways, stores.all, seed)
    publisher = Publisher(stores)
    try:
        async with load.running():
            for number in range(NIGHTLY_FAULTS):
                await asyncio.to_thread(publisher.more, BEFORE)
                await load.connect_with_wills()
                await load.retain()
                await load.delay(1, 6)
                load.allow(AROUND)
                await asyncio.sleep(chance.random() / 2)  # so that faults come at any moment
                mend = await asyncio.to_thread(strike, stores, kafka_cluster, KINDS[number % len(KINDS)])
                load.die()
                await asyncio.to_thread(publisher.more, BEHIND)
                await asyncio.to_thread(mend)
                await load.publish(AROUND)
                await load.settled()
        await load.is_stored_once()
    finally:
        gateways.close()
        publisher.stop()
    first, second = stores.all
    wait_for(lambda: stores.log_of(first) == stores.log_of(second), "the logs are equal")
    found = stored(next(each for each in stores.all if each.role == "ready"))
    assert set(publisher.acknowledged) <= set(found)
    assert found == sorted(set(found))
    tenths = quantiles(publisher.gaps_s, n=10)
    most_s = max(publisher.gaps_s)
    print(f"{len(publisher.gaps_s)} gaps: p50 {tenths[4]:.1f} s, p90 {tenths[8]:.1f} s, most {most_s:.1f} s")
