"""A leader that is killed, stands still, or loses Kafka while it is published to: what was acknowledged is there."""

import threading
import time
from collections.abc import Callable

import pytest

from penstock.sdk.errors import ClientError
from penstock.sync import Client
from tests.interop.test_replicated_stores import ClusterStore, Stores, url, wait_for
from tests.interop.test_replicated_stores import kafka_cluster as kafka_cluster
from tests.interop.test_replicated_stores import stores as stores
from tests.support.kafka_cluster import KafkaCluster

BEFORE = 300  # messages that are acknowledged before a fault
BEHIND = 300  # and after it


class Publisher:
    """Publishes numbers one after another, to whichever store leads, and knows which were acknowledged."""

    def __init__(self, stores: Stores) -> None:
        self.acknowledged: list[int] = []
        self.longest_s = 0.0
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
            try:
                with Client(url(leader), timeout_s=1.0) as client:
                    while not self._is_stopping:
                        client.publish("numbers", b"%d " % number * 40)
                        self.acknowledged.append(number)
                        number += 1
                        self.longest_s = max(self.longest_s, time.monotonic() - newest_s)
                        newest_s = time.monotonic()
            except (ClientError, OSError):
                number += 1  # it may be stored, or not
                time.sleep(0.05)

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
    stores: Stores, fault: Callable[[ClusterStore], None], mend: Callable[[ClusterStore], None]
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


def test_a_leader_that_is_killed(stores: Stores) -> None:
    go_through(stores, ClusterStore.kill, ClusterStore.start)


def test_a_leader_that_stands_still_and_wakes_up(stores: Stores) -> None:
    def wake(store: ClusterStore) -> None:
        store.resume()
        wait_for(lambda: store.role == "follows", "it knows that it leads no more")

    publisher = go_through(stores, ClusterStore.pause, wake)
    assert publisher.longest_s < 30


def test_kafka_is_away_and_comes_back(stores: Stores, kafka_cluster: KafkaCluster) -> None:
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
