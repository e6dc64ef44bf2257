"""Kafka's controllers are away while the leaders of its partitions stand: the stores go on, and take over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.support.kafka_broker import missing_for_kafka
from tests.support.kafka_cluster import KafkaCluster
from tests.support.replicated_stores import ClusterStore, ReplicatedStores, url, wait_for


@pytest.fixture
def kafka_cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    if missing := missing_for_kafka():
        pytest.skip(missing)
    cluster = KafkaCluster(tmp_path, controllers=1)
    yield cluster
    cluster.close()


def publish(store: ClusterStore, messages: int) -> None:
    with Client(url(store)) as client:
        for number in range(messages):
            client.publish("plant/1", b"%d" % number)


@pytest.mark.nightly
@pytest.mark.catalogue("L44")
def test_data_and_failover_go_on_without_controllers(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    stores = ReplicatedStores(tmp_path, kafka_cluster)
    try:
        first = stores.start()
        stores.leads(first)
        second = stores.start()
        publish(first, 50)
        for controller in kafka_cluster.controllers:
            controller.kill()
        publish(first, 50)
        wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the standby has all")
        first.kill()
        stores.leads(second)
        publish(second, 50)
        first.start()  # its mark is known to the brokers
        wait_for(lambda: stores.log_of(second) == stores.log_of(first), "the old leader has all")
        for controller in kafka_cluster.controllers:
            controller.start()
        publish(second, 50)
        with Client(url(second)) as client:
            assert len(list(client.read("plant/#"))) == 200
    finally:
        stores.close()
