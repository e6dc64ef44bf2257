"""Two stores with one log in Kafka: one leads, the other follows, and takes over when the first is gone."""

import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
        topic = f"log-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(topic)
        self._settings = {"store.replicated_log": cluster.url(topic), "store.segment_bytes": 2 << 20}
        self.all: list[ClusterStore] = []

    def start(self) -> ClusterStore:
        folder = self._folder / str(len(self.all))
        folder.mkdir()
        self.all.append(ClusterStore(folder, settings=self._settings))
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


def test_a_standby_follows_and_takes_over(stores: Stores) -> None:
    first = stores.start()
    stores.leads(first)
    second = stores.start()
    with Client(url(first)) as client:
        for number in range(300):
            client.publish(f"plant/{number % 7}", f"first {number}".encode() * 1_000)
        assert len(list(client.read("plant/#"))) == 300
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the standby has all")
    first.kill()
    stores.leads(second)
    with Client(url(second)) as client:
        assert len(list(client.read("plant/#"))) == 300
        client.publish("plant/0", b"second")
        assert len(list(client.read("plant/#"))) == 301
    first.start()  # as a standby: another leads
    wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the old leader has all")
    second.terminate()  # it hands over
    stores.leads(first)
    with Client(url(first)) as client:
        assert len(list(client.read("plant/#"))) == 301
