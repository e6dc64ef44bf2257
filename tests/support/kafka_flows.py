"""What tests of flows from Kafka share: the flow's process, records, and what became of them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable

from confluent_kafka import Producer

from penstock.sync import Client
from tests.support.kafka_broker import KafkaBroker

FLUSH_S = 120


def new_topic(kafka: KafkaBroker, partitions: int = 1, **config: object) -> str:
    name = f"in-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(name, partitions, **config)
    return name


def flow_from(kafka: KafkaBroker, topic: str, more: str = "", name: str = "orders") -> str:
    """Records become messages at in/PARTITION."""
    mapped = 'map = { topic = "in/{partition}" }' if "map" not in more else ""
    return f'[flow.{name}]\nfrom = "kafka://{kafka.url}/{topic}"\nto = "penstock:"\n{mapped}\n{more}\n'


def producer(kafka: KafkaBroker) -> Producer:
    """Each record is written once, in its order."""
    return Producer(
        {"bootstrap.servers": kafka.url, "enable.idempotence": True, "log_level": 0, "reconnect.backoff.max.ms": 500}
    )


def produce(kafka: KafkaBroker, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    writing = producer(kafka)
    for value in values:
        writing.produce(topic, value, partition=partition)
        writing.poll(0)
    assert writing.flush(FLUSH_S) == 0


def stored(client: Client, topics: str = "in/#") -> dict[str, list[bytes]]:
    """The payloads of each topic, in the log's order."""
    found = defaultdict(list)
    for message in client.read(topics):
        found[message.topic].append(message.payload)
    return dict(found)
