"""Three Kafka brokers with their controllers as one cluster, for tests of the replicated log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from loadtest.ports import free_port
from tests.support.kafka_broker import START_TIMEOUT_S, KafkaBroker, KafkaNode, missing_for_kafka
from tests.support.kafka_secured import KafkaSecured

SMALL = {
    "num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "controller.quorum.election.timeout.ms": 1_000,
    "controller.quorum.fetch.timeout.ms": 1_000,  # as docs/cluster.md advises
}
FIRST_CONTROLLER = 101


class KafkaCluster:
    """Each node is broker and controller, unless the controllers are nodes apart."""

    def __init__(self, folder: Path, nodes: int = 3, controllers: int = 0) -> None:
        """`controllers`: how many nodes apart; 0: none."""
        brokers = range(1, nodes + 1)
        apart = range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers)
        voters = {number: free_port() for number in apart or brokers}
        folder.mkdir(exist_ok=True)
        self.secured = KafkaSecured.made(folder)

        def started(number: int) -> KafkaBroker:
            roles = tuple(role for role, ids in (("broker", brokers), ("controller", voters)) if number in ids)
            port = voters.get(number, 0)
            secured = replace(self.secured, port=free_port()) if number in brokers else None
            node = KafkaNode(number, roles, controller_port=port, voters=voters, secured=secured, settings=SMALL)
            return KafkaBroker(folder / f"kafka-{number}", node)

        numbers = (*brokers, *apart)
        with ThreadPoolExecutor(len(numbers)) as starting:  # none is ready before most of them are there
            begun = [starting.submit(started, number) for number in numbers]
        found = [each.result() for each in begun if each.exception() is None]
        self.brokers = [each for each in found if "broker" in each.node.roles]
        self.controllers = [each for each in found if "broker" not in each.node.roles]
        if len(found) < len(numbers):
            self.close()
            raise RuntimeError("; ".join(str(each.exception()) for each in begun if each.exception() is not None))

    @property
    def servers(self) -> str:
        return ",".join(broker.url for broker in self.brokers)

    def url(self, topic: str) -> str:
        return f"kafka://{self.servers}/{topic}"

    def secured_url(self, topic: str) -> str:
        servers = ",".join(each.node.secured.url for each in self.brokers if each.node.secured is not None)
        return f"kafkas://{servers}/{topic}"

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0, "reconnect.backoff.max.ms": 200})

    def create_topic(self, name: str, replicas: int = 3, partitions: int = 1, **config: object) -> None:
        """As penstock cluster create would, but for `config`, which has __ for the dots."""
        wanted: dict[str, object] = {
            "cleanup.policy": "delete",
            "retention.ms": -1,
            "retention.bytes": -1,
            "min.insync.replicas": 2,
            **{key.replace("__", "."): value for key, value in config.items()},
        }
        texts = {key: str(value) for key, value in wanted.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=texts)
        admin = self.admin()  # kept until it has answered
        admin.create_topics([new])[name].result(START_TIMEOUT_S)
        for broker in self.brokers:
            self._wait_until_known(broker.admin(), name)

    @staticmethod
    def _wait_until_known(admin: AdminClient, name: str) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            found = admin.list_topics(timeout=START_TIMEOUT_S).topics.get(name)
            if found is not None and all(each.leader >= 0 for each in found.partitions.values()):
                return
            time.sleep(0.02)
        raise RuntimeError(f"topic {name} is not known after {START_TIMEOUT_S} s")

    def leader_of(self, topic: str) -> KafkaBroker:
        """The broker that leads the topic's partition."""
        admin = self.admin()
        found = admin.list_topics(topic, timeout=START_TIMEOUT_S).topics[topic].partitions[0].leader
        return next(broker for broker in self.brokers if broker.node.node_id == found)

    def close(self) -> None:
        for node in (*self.brokers, *self.controllers):
            node.close()


@pytest.fixture(scope="session")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Brokers that tests share: each has topics of its own, and who kills a broker starts it again."""
    if missing := missing_for_kafka():
        pytest.skip(missing)
    cluster = KafkaCluster(tmp_path_factory.mktemp("kafka-cluster"))
    yield cluster
    cluster.close()
