"""A store that Kafka cannot bring up to date copies the log of the one that leads, whatever is killed meanwhile."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_cluster import kafka_cluster as kafka_cluster
from tests.support.replicated_stores import ClusterStore, ReplicatedStores, status, url, wait_for

TOKEN = "a token of clients"
SEGMENT_BYTES = 2 << 20


@pytest.fixture
def stores(tmp_path: Path, kafka_cluster: KafkaCluster) -> Iterator[ReplicatedStores]:
    """Kafka deletes what the first one has, whatever the second one lacks."""
    settings = {
        "cluster.stores": "store-0",
        "wire.operator_token": "a token of operators",
        "wire.client_token": TOKEN,
        "store.retention_bytes": 16 << 20,
        "store.retention_check_s": 1,
    }
    found = ReplicatedStores(tmp_path, kafka_cluster, settings)
    yield found
    found.close()


def publish(store: ClusterStore, messages: int) -> None:
    with Client(url(store), token=TOKEN) as client:
        for number in range(messages):
            client.publish(f"plant/{number % 7}", random.randbytes(100_000))


def read(store: ClusterStore) -> int:
    with Client(url(store), token=TOKEN) as client:
        return len(list(client.read("plant/#")))


def deleted_in_kafka(stores: ReplicatedStores) -> None:
    """All that the first store has on its disk by now."""
    end = status(stores)["end"]
    wait_for(lambda: status(stores)["first"] > end, "Kafka has deleted what one store lacks")


def test_a_store_with_an_empty_disk_copies_the_log(stores: ReplicatedStores) -> None:
    """Both are killed in the middle."""
    first = stores.start()
    stores.leads(first)
    publish(first, 250)
    deleted_in_kafka(stores)
    second = stores.start()
    copying = second.data / "copying" / "log"
    wait_for(lambda: list(copying.glob("*.log")), "the second store copies")
    first.kill()
    second.kill()
    assert list(copying.glob("*"))
    assert not list((second.data / "index").glob("*.sst"))
    second.start()  # it asks for a store to copy, and does not lead
    first.start()
    stores.leads(first)
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the second store follows")
    messages = read(first)
    first.kill()
    stores.leads(second)
    assert read(second) == messages > 100


@pytest.mark.nightly
def test_a_store_whose_mark_kafka_has_no_more_copies_what_it_lacks(stores: ReplicatedStores) -> None:
    first = stores.start()
    stores.leads(first)
    second = stores.start()
    publish(first, 50)
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the second store follows")
    second.kill()
    first.kill()  # it forgets that it was copied, and keeps nothing for that in Kafka
    first.start()
    stores.leads(first)
    publish(first, 50)
    deleted_in_kafka(stores)
    second.start()
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the second store follows again")
    copied_bytes = [int(each) for each in re.findall(r"(\d+) bytes came from there", second.log_text())]
    assert 5_000_000 < copied_bytes[-1] < 6_000_000  # not what it had
    first.kill()
    stores.leads(second)
    assert read(second) == 100
