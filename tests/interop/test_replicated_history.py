"""A cluster that begins with a log that is there, and a store that comes back with another log than the cluster has."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app_for
from penstock.errors import PenstockError
from penstock.sync import Client
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_cluster import kafka_cluster as kafka_cluster
from tests.support.replicated_stores import ClusterStore, ReplicatedStores, url, wait_for
from tests.support.store_process import StoreProcess

TOKENS = {"wire.operator_token": "a token of operators", "wire.client_token": "a token of clients"}


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


def run(*asked: str) -> tuple[int, str]:
    """The exit code, and what it printed."""
    found = CliRunner().invoke(app_for(list(asked)), list(asked))
    if isinstance(found.exception, PenstockError):
        return found.exception.exit_code, str(found.exception)
    return found.exit_code, found.output


def publish(store: StoreProcess, messages: int) -> None:
    with Client(url(store), token=TOKENS["wire.client_token"]) as client:
        for number in range(messages):
            client.publish("plant/1", b"%d" % number)


def read(store: StoreProcess) -> int:
    with Client(url(store), token=TOKENS["wire.client_token"]) as client:
        return len(list(client.read("plant/#")))


def test_a_cluster_with_a_history_and_a_store_with_another_one(
    tmp_path: Path, kafka_cluster: KafkaCluster, closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, later = (kafka_cluster.url(f"log-{uuid.uuid4().hex[:8]}") for _ in range(2))

    def begun(number: int, topic: str) -> ClusterStore:
        folder = tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        settings = TOKENS | {"store.replicated_log": topic, "cluster.name": f"store-{number}"}
        store = ClusterStore(folder, settings=settings)
        closing.callback(store.close)
        return store

    def is_ready(store: ClusterStore) -> None:
        wait_for(lambda: store.role == "ready", f"{store.url} leads")

    def are_equal(one: StoreProcess, other: StoreProcess) -> None:
        wait_for(lambda: ReplicatedStores.log_of(one) == ReplicatedStores.log_of(other), "the logs are equal")

    # a store alone
    (tmp_path / "0").mkdir()
    alone = StoreProcess(tmp_path / "0", settings=TOKENS)
    publish(alone, 20)
    alone.terminate()
    kafka_cluster.create_topic(log.rpartition("/")[2])
    with pytest.raises(RuntimeError, match="has the log of a store without a cluster"):
        begun(0, log)
    history = kafka_cluster.url(f"log-{uuid.uuid4().hex[:8]}")
    code, said = run("cluster", "create", "--replicated-log", history, "--from", str(alone.data))
    assert code == 0, said
    assert "the other stores copy what is before" in said
    first, second = begun(0, history), begun(1, history)
    is_ready(first)
    publish(first, 5)
    are_equal(first, second)
    first.kill()
    is_ready(second)
    assert read(second) == 25

    # the second one goes away, the first one stores more; then Kafka loses the topic
    second.terminate()
    first.start()
    is_ready(first)
    publish(first, 10)
    first.terminate()
    code, said = run("cluster", "create", "--replicated-log", later, "--from", str(second.data))
    assert code == 0, said
    second = begun(1, later)
    is_ready(second)
    with pytest.raises(RuntimeError, match="`penstock cluster recover`"):
        begun(0, later)
    for name, value in TOKENS.items():
        monkeypatch.setenv(f"PENSTOCK_{name.upper().replace('.', '__')}", value)
    recover = ["cluster", "recover", str(first.data), "--replicated-log", later]
    code, said = run(*recover)
    assert code == 3, said
    assert "it has what the log of" in said
    code, said = run(*recover, "--give-up-own")
    assert code == 0, said
    (kept,) = first.data.glob("before-recover-*")
    assert (kept / "replica-mark").exists()
    first = begun(0, later)
    are_equal(first, second)
    assert run(*recover)[0] != 0  # it runs
    second.kill()
    is_ready(first)
    assert read(first) == 25
