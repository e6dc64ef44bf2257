"""Flow, store and broker are killed with SIGKILL while records come from Kafka: each is stored once, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.sync import Client
from tests.conftest import KILLED_WITH_EITHER_FLUSH
from tests.support.flows_part import FlowsPart
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_flows import flow_from, new_topic, producer, stored
from tests.support.steady import SteadyWriter
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

BY_DAY, BY_NIGHT = 4, 20
PARTITIONS = 3
PATIENCE_S = 180


class SteadyProducer(SteadyWriter[Producer]):
    """Writes numbers to each partition."""

    def __init__(self, kafka: KafkaBroker, topic: str) -> None:
        self.written = 0  # to each partition
        self._topic = topic
        super().__init__(lambda: flushed(kafka))

    def write(self, client: Producer) -> None:
        for number in range(self.written, self.written + 10):
            for partition in range(PARTITIONS):
                client.produce(self._topic, b"%d" % number, partition=partition)
        self.written += 10
        client.poll(0)


@contextmanager
def flushed(kafka: KafkaBroker) -> Iterator[Producer]:
    """A producer of which Kafka has everything in the end."""
    found = producer(kafka)
    yield found
    assert found.flush(PATIENCE_S) == 0


@pytest.mark.catalogue("I33")
@KILLED_WITH_EITHER_FLUSH
@pytest.mark.parametrize("kills", [BY_DAY, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)])
def test_each_record_is_stored_once(kafka: KafkaBroker, tmp_path: Path, kills: int, flush: str) -> None:
    topic = new_topic(kafka, PARTITIONS)
    store = StoreProcess(tmp_path, settings={"store.flush": flush})
    flows = FlowsPart(store, tmp_path, flow_from(kafka, topic))
    writing = SteadyProducer(kafka, topic)
    try:
        with Client(store.url.replace("tcp://", "penstock://"), timeout_s=PATIENCE_S) as client:
            for number in range(kills):
                seen = count(client)
                wait_until(lambda seen=seen: count(client) > seen + 50, PATIENCE_S)  # type: ignore[misc]
                (flows.restart, store.restart, flows.restart, lambda: restart(kafka))[number % 4]()
            writing.finish()
            wait_until(lambda: count(client) >= PARTITIONS * writing.written, PATIENCE_S)
            flows.terminate()
            found = stored(client)
        expected = [b"%d" % number for number in range(writing.written)]
        assert {topic: len(payloads) for topic, payloads in found.items()} == {
            f"in/{partition}": len(expected) for partition in range(PARTITIONS)
        }
        assert all(payloads == expected for payloads in found.values())
    finally:
        writing.finish()
        flows.kill()
        store.close()


def count(client: Client) -> int:
    return sum(map(len, stored(client).values()))


def restart(kafka: KafkaBroker) -> None:
    kafka.kill()
    kafka.start()
