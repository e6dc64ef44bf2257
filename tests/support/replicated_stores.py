"""The stores of one cluster as processes, with their log in a topic of real brokers."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app_for
from tests.support.kafka_cluster import KafkaCluster
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


class ReplicatedStores:
    """The stores of one cluster, by number."""

    def __init__(self, folder: Path, cluster: KafkaCluster, settings: Mapping[str, object] | None = None) -> None:
        self._folder = folder
        self.topic = f"log-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(self.topic)
        self.url = cluster.url(self.topic)
        self._settings = {
            "store.replicated_log": self.url,
            "store.segment_bytes": 2 << 20,
            "cluster.stores": "store-0,store-1",
            **(settings or {}),
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

    def close(self) -> None:
        for each in self.all:
            each.close()

    @staticmethod
    def log_of(store: StoreProcess) -> bytes:
        """Empty while it changes places with a copy, or drops a segment."""
        try:
            segments = [path.read_bytes() for path in sorted((store.data / "log").glob("*.log"))]
        except FileNotFoundError:
            return b""
        return b"".join((*segments[:-1], segments[-1].rstrip(b"\0"))) if segments else b""


@pytest.fixture
def stores(tmp_path: Path, kafka_cluster: KafkaCluster) -> Iterator[ReplicatedStores]:
    found = ReplicatedStores(tmp_path, kafka_cluster)
    yield found
    found.close()


def url(store: StoreProcess) -> str:
    return store.url.replace("tcp://", "penstock://")


def status(stores: ReplicatedStores) -> dict[str, Any]:
    asked = ["cluster", "status", "--replicated-log", stores.url, "--json"]
    found: dict[str, Any] = json.loads(CliRunner().invoke(app_for(asked), asked).stdout)
    return found
