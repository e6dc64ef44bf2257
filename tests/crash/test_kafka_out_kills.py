"""Flows' process, store and broker are killed with SIGKILL amid the work of flows to Kafka: the ledger closes.

Exactly once: who reads what is committed has each message once. At least once: each is
there, perhaps twice with the same id.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.support.flows_part import FlowsPart
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_topics import committed, headers, values
from tests.support.steady import NumbersPublisher
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

BY_DAY, BY_NIGHT = 3, 20
PATIENCE_S = 240
FLOWS = """
[flow.once]
from = "plant/#"
to = "kafka://{kafka}/{topic}.once"
where = "payload != bytes('none')"
start = "earliest"
format = "raw"
timeout_s = 5
kafka = {{ exactly_once = true, id = "{topic}.done" }}
[flow.least]
from = "plant/#"
to = "kafka://{kafka}/{topic}.least"
start = "earliest"
format = "raw"
timeout_s = 5
"""


@pytest.mark.catalogue("I33")
@pytest.mark.parametrize("kills", [BY_DAY, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)])
def test_kafka_has_each_message_once(tmp_path: Path, kafka: KafkaBroker, kills: int) -> None:
    chance = random.Random(kills)
    topic = f"kills-{uuid.uuid4().hex}"
    kafka.create_topic(f"{topic}.once", partitions=2)
    kafka.create_topic(f"{topic}.least", partitions=2)
    store = StoreProcess(tmp_path)
    flows = FlowsPart(store, tmp_path, FLOWS.format(kafka=kafka.url, topic=topic))
    url = store.url.replace("tcp://", "penstock://")
    publisher = NumbersPublisher(url)
    try:
        for number in range(kills):
            seen = publisher.sent
            wait_until(lambda seen=seen: publisher.sent > seen + chance.randrange(40, 400), PATIENCE_S)  # type: ignore[misc]
            if number % 3 == 2:
                kafka.kill()
                kafka.start()
            else:
                (flows if number % 3 else store).restart()
        publisher.finish()
        acked = publisher.acked
        assert len(acked) > 100
        wait_until(lambda: acked <= numbers(kafka, f"{topic}.once").keys(), PATIENCE_S)
        wait_until(lambda: acked <= numbers(kafka, f"{topic}.least").keys(), PATIENCE_S)
        assert max(numbers(kafka, f"{topic}.once").values()) == 1
        with Client(url) as client:
            assert list(client.read("$dead/#")) == []
            ids = {message.message_id: message.payload for message in client.read("plant/#")}
        for record in committed(kafka.url, f"{topic}.least"):
            assert ids[headers(record)["penstock-id"]] == record.value()
    finally:
        publisher.finish()
        flows.kill()
        store.close()


def numbers(kafka: KafkaBroker, topic: str) -> Counter[int]:
    return Counter(map(int, values(kafka.url, topic)))
