"""A cluster whose brokers want TLS and a password, and whose stores have certificates and tokens: it works, and what is
wrong is told in one line.
"""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app_for
from penstock.errors import PenstockError
from penstock.sync import Client
from tests.support.certificates import authority, vouched_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_cluster import kafka_cluster as kafka_cluster
from tests.support.kafka_secured import PASSWORD, USER, add_scram_user
from tests.support.mqtt_packet_client import write_secret
from tests.support.replicated_stores import ClusterStore, ReplicatedStores, wait_for
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess

CLIENTS, OPERATORS = "a token of clients", "a token of operators"
TOKENS = {"wire.operator_token": OPERATORS, "wire.client_token": CLIENTS}


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


class Secured:
    """Certificates and settings of stores, and a topic at the brokers' doors with TLS."""

    def __init__(self, folder: Path, cluster: KafkaCluster) -> None:
        self.folder = folder
        self.signing, self.stranger = authority(folder, "authority"), authority(folder, "stranger")
        made = vouched_for(folder, "store", "IP:127.0.0.1", self.signing)
        self.url = cluster.secured_url(f"log-{uuid.uuid4().hex[:8]}")
        self.settings: dict[str, object] = TOKENS | {
            "store.replicated_log": self.url,
            "cluster.kafka_user": USER,
            "cluster.kafka_password_file": write_secret(folder / "password", PASSWORD),
            "cluster.kafka_ca_file": cluster.secured.authority.certificate,
            "wire.tls_certificate": made.certificate,
            "wire.tls_key": made.key,
            "gateway.store_ca_file": self.signing.certificate,
        }

    def store(self, number: int) -> ClusterStore:
        folder = self.folder / str(number)
        folder.mkdir(exist_ok=True)
        listen = f"tls://127.0.0.1:{free_port()}"
        return ClusterStore(folder, listen, self.settings | {"cluster.name": f"store-{number}"})

    def client(self, store: ClusterStore) -> Client:
        trusted = ssl.create_default_context(cafile=self.signing.certificate)
        return Client(store.url.replace("tls://", "penstocks://"), token=CLIENTS, tls=trusted)


Set = Callable[..., None]


@pytest.fixture
def set_in_environment(monkeypatch: pytest.MonkeyPatch) -> Set:
    def set_all(**settings: object) -> None:
        for name, value in settings.items():
            monkeypatch.setenv(f"PENSTOCK_{name.upper()}", str(value))

    return set_all


def run(*asked: str) -> str:
    """What it says."""
    found = CliRunner().invoke(app_for(list(asked)), list(asked))
    return str(found.exception) if isinstance(found.exception, PenstockError) else found.output


@pytest.mark.nightly
def test_stores_that_trust_nobody_without_reason(
    tmp_path: Path, kafka_cluster: KafkaCluster, closing: ExitStack, set_in_environment: Set
) -> None:
    add_scram_user(kafka_cluster.admin())
    secured = Secured(tmp_path, kafka_cluster)
    settings = secured.settings
    set_in_environment(**{name.replace(".", "__"): value for name, value in settings.items()})

    # what is wrong with the way to Kafka
    wrong = write_secret(tmp_path / "wrong", "another-s3cret")
    set_in_environment(cluster__kafka_password_file=wrong)
    said = run("cluster", "status")
    assert "cluster.kafka_password_file: correct it" in said
    assert "another-s3cret" not in said
    assert "\n" not in said
    set_in_environment(cluster__kafka_password_file=settings["cluster.kafka_password_file"])
    set_in_environment(cluster__kafka_ca_file=kafka_cluster.secured.stranger.certificate)
    said = run("cluster", "status")
    assert "cluster.kafka_ca_file: give the authority" in said
    assert "\n" not in said
    set_in_environment(cluster__kafka_ca_file=settings["cluster.kafka_ca_file"])

    # a history, so that the second store copies it from the first one
    (tmp_path / "0").mkdir()
    alone = StoreProcess(tmp_path / "0", settings=TOKENS)
    with Client(alone.url.replace("tcp://", "penstock://"), token=CLIENTS) as client:
        client.publish("plant/1", b"before")
    alone.terminate()
    assert "the other stores copy what is before" in run("cluster", "create", "--from", str(alone.data))
    first = secured.store(0)
    closing.callback(first.close)
    wait_for(lambda: first.role == "ready", "the first store leads")

    # what is wrong with the way to the other store
    def complaint(**changed: object) -> str:
        before = dict(secured.settings)
        secured.settings |= {name.replace("__", "."): value for name, value in changed.items()}
        store = secured.store(1)
        try:
            wait_for(lambda: "is not copied yet" in store.log_text(), "it complains")
            (line,) = (line for line in store.log_text().splitlines() if "is not copied yet" in line)
        finally:
            store.kill()
            secured.settings = before
        (tmp_path / "1" / "store.log").unlink()
        return line

    assert "gateway.store_ca_file" in complaint(gateway__store_ca_file=secured.stranger.certificate)
    assert "token" in complaint(wire__operator_token="another token")
    second = secured.store(1)
    closing.callback(second.close)
    wait_for(lambda: ReplicatedStores.log_of(first) == ReplicatedStores.log_of(second), "the second store has all")
    assert "copied the log of tls://" in second.log_text()
    first.kill()
    wait_for(lambda: second.role == "ready", "the second store leads")
    with secured.client(second) as client:
        client.publish("plant/1", b"after")
        assert [message.payload for message in client.read("plant/1")] == [b"before", b"after"]
