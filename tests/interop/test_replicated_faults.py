"""A leader that is killed, stands still, or loses Kafka while it is published to: what was acknowledged is there."""

import random
import threading
import time
from collections.abc import Callable
from statistics import quantiles

import pytest

from penstock.sdk.errors import ClientError
from penstock.sync import Client
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_cluster import kafka_cluster as kafka_cluster
from tests.support.replicated_stores import ClusterStore, ReplicatedStores, url, wait_for
from tests.support.replicated_stores import stores as stores

BEFORE = 300  # messages that are acknowledged before a fault
BEHIND = 300  # and after it
NOTICED_S = 0.5
ANSWER_S = 2.0
NIGHTLY_FAULTS = 40


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


def go_through(
    stores: ReplicatedStores, fault: Callable[[ClusterStore], None], mend: Callable[[ClusterStore], None]
) -> Publisher:
    """Publish through a fault of the leader; another store takes over, and the old leader follows it."""
    first = stores.start()
    stores.leads(first)
    second = stores.start()
    publisher = Publisher(stores)
    try:
        publisher.more(BEFORE)
        fault(first)
        stores.leads(second)
        publisher.more(BEHIND)
        mend(first)
        publisher.more(BEHIND)
    finally:
        publisher.stop()
    wait_for(lambda: stores.log_of(first) == stores.log_of(second), "the logs are equal")
    found = stored(second)
    assert set(publisher.acknowledged) <= set(found)
    assert found == sorted(set(found)), "each is there once, in order"
    return publisher


@pytest.mark.catalogue("L43")
def test_a_leader_that_is_killed(stores: ReplicatedStores) -> None:
    go_through(stores, ClusterStore.kill, ClusterStore.start)


def test_a_leader_that_stands_still_and_wakes_up(stores: ReplicatedStores) -> None:
    def wake(store: ClusterStore) -> None:
        store.resume()
        wait_for(lambda: store.role == "follows", "it knows that it leads no more")

    go_through(stores, ClusterStore.pause, wake)


def test_kafka_is_away_and_comes_back(stores: ReplicatedStores, kafka_cluster: KafkaCluster) -> None:
    """Longer than a standby waits: nobody takes over meanwhile, and all goes on without help."""
    first = stores.start()
    stores.leads(first)
    second = stores.start()
    publisher = Publisher(stores)
    try:
        publisher.more(BEFORE)
        for broker in kafka_cluster.brokers:
            broker.stop()
        try:
            wait_for(lambda: "all connections end" in first.log_text(), "the leader does not answer any more")
            with pytest.raises(ClientError), Client(url(first), timeout_s=1.0) as client:
                client.publish("others", b"not taken")
        finally:
            for broker in kafka_cluster.brokers:
                broker.cont()
        publisher.more(BEHIND)
    finally:
        publisher.stop()
    wait_for(lambda: stores.log_of(first) == stores.log_of(second), "the logs are equal")
    leader = next(each for each in stores.all if each.role == "ready")
    found = stored(leader)
    assert set(publisher.acknowledged) <= set(found)
    assert found == sorted(set(found))


@pytest.mark.nightly
def test_forty_faults(stores: ReplicatedStores, kafka_cluster: KafkaCluster) -> None:
    """SIGKILL and SIGSTOP of whoever leads, of the standby, of the broker that leads the partition, and of two of them
    together.
    """
    chance = random.Random(42)
    stores.leads(stores.start())
    stores.start()
    publisher = Publisher(stores)
    kinds = ("leader", "leader stands still", "standby", "broker", "leader and broker")
    try:
        for number in range(NIGHTLY_FAULTS):
            kind = kinds[number % len(kinds)]
            publisher.more(BEFORE)
            leader = next(each for each in stores.all if each.role == "ready")
            (standby,) = (each for each in stores.all if each is not leader)
            wait_for(lambda: standby.role == "follows", "the other one follows")  # noqa: B023 - waited for here
            target = standby if kind == "standby" else leader
            broker = kafka_cluster.leader_of(stores.topic) if "broker" in kind else None
            time.sleep(chance.random() / 2)  # so that faults come at any moment
            if broker is not None:
                broker.kill()
            if kind == "leader stands still":
                target.pause()
            elif kind != "broker":
                target.kill()
            publisher.more(BEHIND)
            if kind == "leader stands still":
                target.resume()
                wait_for(lambda: target.role == "follows", "it knows that it leads no more")  # noqa: B023
            elif kind != "broker":
                target.start()
            if broker is not None:
                broker.start()
    finally:
        publisher.stop()
    first, second = stores.all
    wait_for(lambda: stores.log_of(first) == stores.log_of(second), "the logs are equal")
    found = stored(next(each for each in stores.all if each.role == "ready"))
    assert set(publisher.acknowledged) <= set(found)
    assert found == sorted(set(found))
    tenths = quantiles(publisher.gaps_s, n=10)
    most_s = max(publisher.gaps_s)
    print(f"{len(publisher.gaps_s)} gaps: p50 {tenths[4]:.1f} s, p90 {tenths[8]:.1f} s, most {most_s:.1f} s")
