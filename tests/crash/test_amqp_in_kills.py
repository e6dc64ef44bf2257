"""Flow, store and RabbitMQ are killed with SIGKILL while messages come from a queue: each is stored once.

Its publisher sends what has no confirm again, with the same id, so a message may be in the queue twice.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.support.amqp_flows import SteadyQueuer, flow_from_queue, new_queue, payloads
from tests.support.flows_part import FlowsPart
from tests.support.rabbitmq_broker import RabbitMqBroker
from tests.support.rabbitmq_queues import QueueTaker
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

BY_DAY, BY_NIGHT = 2, 20  # every fifth is of RabbitMQ, which takes half a minute to be back
PATIENCE_S = 240


@pytest.mark.catalogue("I35")
@pytest.mark.parametrize("kills", [BY_DAY, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)])
def test_each_message_is_stored_once(tmp_path: Path, rabbitmq: RabbitMqBroker, kills: int) -> None:
    chance = random.Random(kills)
    queue = new_queue(rabbitmq)
    store = StoreProcess(tmp_path)
    flows = FlowsPart(store, tmp_path, flow_from_queue(rabbitmq, queue))
    writing = SteadyQueuer(rabbitmq, queue)
    try:
        with Client(store.url.replace("tcp://", "penstock://"), timeout_s=PATIENCE_S) as client:
            for number in range(kills):
                seen = len(payloads(client, "plant/#")) + chance.randrange(20, 300)
                wait_until(lambda seen=seen: len(payloads(client, "plant/#")) > seen, PATIENCE_S)  # type: ignore[misc]
                if number % 5 == 4:
                    rabbitmq.kill()
                    rabbitmq.start()
                else:
                    (store if number % 2 else flows).restart()
            writing.finish()
            expected = [b"%d" % i for i in range(writing.confirmed)]
            assert len(expected) > 200
            wait_until(lambda: set(expected) <= set(payloads(client, "plant/#")), PATIENCE_S)
            wait_until(lambda: QueueTaker(rabbitmq, queue).take() == [], PATIENCE_S)
            flows.terminate()
            found = payloads(client, "plant/#")
        assert len(found) == len(set(found))  # each once
        assert QueueTaker(rabbitmq, f"{queue}.dead").take() == []
        assert "Traceback" not in flows.log_text()
    finally:
        writing.finish()
        flows.kill()
        store.close()
