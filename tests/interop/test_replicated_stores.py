"""Two stores with one log in Kafka: one leads, the other follows, and takes over when the first is gone."""

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app_for
from penstock.sync import Client
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_cluster import kafka_cluster as kafka_cluster
from tests.support.store_process import StoreProcess

PATIENCE_S = 60


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not in {PATIENCE_S} s: {what}"
        time.sleep(0.02)


class ClusterStore(StoreProcess):
    """It is there once it follows."""

    says = "follows"

    @property
    def role(self) -> str:
        """What it said last that it is: `follows` or `ready`."""
        said: list[str] = re.findall(r"^(follows|ready) ", self.log_text(), re.MULTILINE)
        return said[-1]


class Stores:
    """The stores of one cluster, by number."""

    def __init__(self, folder: Path, cluster: KafkaCluster) -> None:
        self._folder = folder
        self.topic = f"log-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(self.topic)
        self.url = cluster.url(self.topic)
        self._settings = {
            "store.replicated_log": self.url,
            "store.segment_bytes": 2 << 20,
            "cluster.stores": "store-0,store-1",
        }
        self.all: list[ClusterStore] = []

    def start(self) -> ClusterStore:
        folder = self._folder / str(len(self.all))
        folder.mkdir()
        self.all.append(ClusterStore(folder, settings=self._settings | {"cluster.name": f"store-{len(self.all)}"}))
        return self.all[-1]

    def leads(self, store: ClusterStore) -> None:
        """Wait until it serves."""
        wait_for(lambda: store.role == "ready", f"{store.url} leads")

    @staticmethod
    def log_of(store: StoreProcess) -> bytes:
        paths = sorted((store.data / "log").glob("*.log"))
        return b"".join(path.read_bytes() for path in paths[:-1]) + paths[-1].read_bytes().rstrip(b"\0")


@pytest.fixture
def stores(tmp_path: Path, kafka_cluster: KafkaCluster) -> Iterator[Stores]:
    found = Stores(tmp_path, kafka_cluster)
    yield found
    for each in found.all:
        each.close()


def url(store: StoreProcess) -> str:
    return store.url.replace("tcp://", "penstock://")


def status(stores: Stores) -> dict[str, Any]:
    asked = ["cluster", "status", "--replicated-log", stores.url, "--json"]
    found: dict[str, Any] = json.loads(CliRunner().invoke(app_for(asked), asked).stdout)
    return found


def test_status_says_who_leads_and_kafka_keeps_what_a_store_lacks(stores: Stores) -> None:
    first = stores.start()
    stores.leads(first)
    assert "no second store could take over; start one on another machine" in status(stores)["faults"]
    second = stores.start()
    with Client(url(first)) as client:
        for number in range(50):
            client.publish("plant/1", b"%d" % number)
    wait_for(
        lambda: all(row["role"] for row in status(stores)["stores"]) and len(status(stores)["stores"]) == 2, "both"
    )
    found = status(stores)
    assert found["leader"] == "store-0"
    assert found["epoch"] == 1
    assert [row["role"] for row in found["stores"]] == ["leader", "standby"]
    wait_for(lambda: status(stores)["first"] > 50, "what both have is deleted")
    second.kill()
    second.start()  # its mark is still there
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "it goes on")
    first.kill()
    stores.leads(second)
    with Client(url(second)) as client:
        assert len(list(client.read("plant/#"))) == 50


def test_a_standby_follows_and_takes_over(stores: Stores) -> None:
    first = stores.start()
    stores.leads(first)
    second = stores.start()
    with Client(url(first)) as client:
        for number in range(300):
            client.publish(f"plant/{number % 7}", f"first {number}".encode() * 1_000)
        assert len(list(client.read("plant/#"))) == 300
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the standby has all")
    with Client(f"{url(first)},{second.url.removeprefix('tcp://')}") as client:  # it knows both
        assert len(list(client.read("plant/#"))) == 300
        first.kill()
        client.publish("plant/0", b"second")  # stored by the other one
        assert second.role == "ready"
        assert len(list(client.read("plant/#"))) == 301
    first.start()  # as a standby: another leads
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the old leader has all")
    second.terminate()  # it hands over
    stores.leads(first)
    with Client(url(first)) as client:
        assert len(list(client.read("plant/#"))) == 301
