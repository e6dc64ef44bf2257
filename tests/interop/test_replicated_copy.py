"""A store that Kafka cannot bring up to date copies the log of the one that leads, whatever is killed meanwhile."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app_for
from penstock.sync import Client
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_cluster import kafka_cluster as kafka_cluster
from tests.support.replicated_stores import ClusterStore, ReplicatedStores, status, url, wait_for
from tests.support.stores import flip

TOKEN, OPERATOR = "a token of clients", "a token of operators"
SEGMENT_BYTES = 2 << 20


@pytest.fixture
def stores(tmp_path: Path, kafka_cluster: KafkaCluster) -> Iterator[ReplicatedStores]:
    """Kafka deletes what the first one has, whatever the second one lacks."""
    settings = {
        "cluster.stores": "store-0",
        "wire.operator_token": OPERATOR,
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


def roles(stores: ReplicatedStores) -> dict[str, str]:
    return {row["store"]: row["role"] for row in status(stores)["stores"]}


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
    wait_for(lambda: roles(stores).get("store-1") == "copies", "the second store has told Kafka that it copies")
    first.start()
    stores.leads(first)
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the second store follows")
    messages = read(first)
    first.kill()
    stores.leads(second)
    assert read(second) == messages > 100


def test_a_damaged_store_copies_the_log(stores: ReplicatedStores, monkeypatch: pytest.MonkeyPatch) -> None:
    first = stores.start()
    stores.leads(first)
    second = stores.start()
    publish(first, 3)
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the second store follows")
    wait_for(lambda: status(stores)["leader"], "the first store has told Kafka where it is")
    second.terminate()
    flip(min((second.data / "log").glob("*.log")), 1_000)
    second.start()  # by itself
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the second store follows again")
    assert "the log of the store that leads is copied" in second.log_text()
    assert not (second.data / "quarantine").exists()
    second.terminate()
    flip(min((second.data / "log").glob("*.log")), 1_000)
    monkeypatch.setenv("PENSTOCK_WIRE__OPERATOR_TOKEN", OPERATOR)
    asked = ["cluster", "recover", str(second.data), "--replicated-log", stores.url]
    done = CliRunner().invoke(app_for(asked), asked)
    assert done.exit_code == 0, done.output
    assert "has the log of" in done.output
    second.start()
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the second store follows again")


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
