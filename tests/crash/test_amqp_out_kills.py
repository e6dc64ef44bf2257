"""Flows' process, store and RabbitMQ are killed with SIGKILL amid the work of a flow to RabbitMQ: the ledger closes.

Its queue has all that was acknowledged, some of it perhaps twice, with the same id.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.support.flows_part import FlowsPart
from tests.support.rabbitmq_broker import RabbitMqBroker
from tests.support.rabbitmq_queues import QueueTaker
from tests.support.steady import NumbersPublisher
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

BY_DAY, BY_NIGHT = 2, 20  # every third is of RabbitMQ, which takes half a minute to be back
PATIENCE_S = 240
FLOW = """
[flow.out]
from = "plant/#"
to = "amqp://{rabbitmq}/{name}"
start = "earliest"
format = "raw"
timeout_s = 5
"""


@pytest.mark.catalogue("I33", "I35")
@pytest.mark.parametrize("kills", [BY_DAY, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)])
def test_rabbitmq_has_each_message(tmp_path: Path, rabbitmq: RabbitMqBroker, kills: int) -> None:
    chance = random.Random(kills)
    name = f"kills-{uuid.uuid4().hex}"
    rabbitmq.make(name, {name: "plant.#"})
    store = StoreProcess(tmp_path)
    flows = FlowsPart(store, tmp_path, FLOW.format(rabbitmq=rabbitmq.url, name=name))
    url = store.url.replace("tcp://", "penstock://")
    publisher = NumbersPublisher(url, pause_s=0.05)  # RabbitMQ is away for many seconds
    taker = QueueTaker(rabbitmq, name)
    try:
        for number in range(kills):
            seen = publisher.sent
            wait_until(lambda seen=seen: publisher.sent > seen + chance.randrange(40, 400), PATIENCE_S)  # type: ignore[misc]
            if number % 3 == 2:
                rabbitmq.kill()
                rabbitmq.start()
            else:
                (flows if number % 3 else store).restart()
        publisher.finish()
        acked = publisher.acked
        assert len(acked) > 100
        wait_until(lambda: acked <= {int(body) for body in taker.bodies()}, PATIENCE_S)
        with Client(url) as client:
            assert list(client.read("$dead/#")) == []
            ids = {message.message_id: message.payload for message in client.read("plant/#")}
        for each in taker.taken:
            assert ids[each.properties.message_id] == each.body
    finally:
        publisher.finish()
        flows.kill()
        store.close()
