"""RabbitMQ refuses flows: it has an alarm of its disk, or its user may not do that. They wait, say why, and go on."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.sync import Client
from tests.interop.programs import penstock, run
from tests.support.amqp_flows import flow_from_queue, new_queue, payloads, put, with_id
from tests.support.flows_fixtures import client as client
from tests.support.flows_fixtures import store as store
from tests.support.flows_part import FlowsPart, letters
from tests.support.rabbitmq_broker import NO_DISK, SOME_DISK, RabbitMqBroker
from tests.support.rabbitmq_queues import QueueTaker
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until

PATIENCE_S = 90
WHY = "it takes no messages, as its memory or disk is full; free some of it"


def wait_until(condition: Callable[[], Any]) -> None:
    until(condition, PATIENCE_S)


@pytest.fixture
def name() -> str:
    return f"refused-{uuid.uuid4().hex}"


def row(store: StoreProcess, flow: str) -> dict[str, Any]:
    rows = json.loads(run(*penstock("flow", "list", "--json", "--store", store.url)))
    return next((row for row in rows if row["flow"] == flow), {})


def flow_out(rabbitmq: RabbitMqBroker, name: str, more: str = "") -> str:
    """From plant/# to an exchange of this name, which leads to a queue of the same name."""
    rabbitmq.make(name, {name: "plant.#"})
    return f'[flow.out]\nfrom = "plant/#"\nto = "amqp://{rabbitmq.url}/{name}"\nformat = "raw"\ntimeout_s = 1\n{more}\n'


def publish(client: Client, *of: int) -> None:
    client.publish_many([("plant/1", b"%d" % i) for i in range(*of)])


def test_flow_waits_while_the_broker_has_an_alarm(
    rabbitmq: RabbitMqBroker, store: StoreProcess, client: Client, tmp_path: Path, name: str
) -> None:
    """A flow from the same broker, which only reads, notices nothing."""
    queue = new_queue(rabbitmq)
    put(rabbitmq, queue, [("in.1", b"%d" % i, with_id(str(i))) for i in range(100)])
    flows = FlowsPart(store, tmp_path, flow_out(rabbitmq, name))
    parts = [flows]
    taker = QueueTaker(rabbitmq, name)
    try:
        publish(client, 200)
        wait_until(lambda: len(taker.take()) == 200)
        rabbitmq.set_disk(NO_DISK)
        try:
            publish(client, 200, 400)
            wait_until(lambda: row(store, "out")["away"])
            assert row(store, "out")["error"] == f"AMQP, {rabbitmq.url}: {WHY}"
            assert f"flow out: AMQP, {rabbitmq.url}: {WHY}; it waits for it" in flows.log_text()
            publish(client, 400, 600)
            folder = tmp_path / "in"
            folder.mkdir()
            parts.append(FlowsPart(store, folder, flow_from_queue(rabbitmq, queue)))
            wait_until(lambda: len(payloads(client, "in/1")) == 100)
            parts.pop().terminate()
        finally:
            rabbitmq.set_disk(SOME_DISK)
        wait_until(lambda: len(taker.take()) >= 600)
        # Each once: what the broker took in while it had the alarm is not published again.
        assert sorted(map(int, taker.bodies())) == list(range(600))
        wait_until(lambda: not row(store, "out")["away"] and row(store, "out")["lag"] == 0)
        assert "flow out: the sink takes messages again" in flows.log_text()
        assert letters(client) == []
        assert "Traceback" not in flows.log_text()
    finally:
        for part in parts:
            part.kill()


@pytest.mark.nightly
def test_flow_is_ended_and_started_while_the_broker_has_an_alarm(
    rabbitmq: RabbitMqBroker, store: StoreProcess, client: Client, tmp_path: Path, name: str
) -> None:
    flows = FlowsPart(store, tmp_path, flow_out(rabbitmq, name))
    taker = QueueTaker(rabbitmq, name)
    try:
        wait_until(lambda: row(store, "out").get("consumers") == 1)
        rabbitmq.set_disk(NO_DISK)
        try:
            publish(client, 200)
            wait_until(lambda: row(store, "out")["away"])
            flows.terminate()
            flows.start()
            publish(client, 200, 400)
            wait_until(lambda: row(store, "out").get("away"))
        finally:
            rabbitmq.set_disk(SOME_DISK)
        wait_until(lambda: {int(body) for body in taker.bodies()} == set(range(400)))
        wait_until(lambda: row(store, "out")["lag"] == 0)
        ids = {message.message_id: message.payload for message in client.read("plant/#")}
        assert all(ids[each.properties.message_id] == each.body for each in taker.taken)
        assert letters(client) == []
        assert "Traceback" not in flows.log_text()
    finally:
        flows.kill()


def test_flows_wait_while_their_user_may_not_write_or_read(
    rabbitmq: RabbitMqBroker, store: StoreProcess, client: Client, tmp_path: Path, name: str
) -> None:
    queue, user = new_queue(rabbitmq), f"user-{uuid.uuid4().hex}"
    rabbitmq.add_user(user, "s3cret-word")
    put(rabbitmq, queue, [("in.1", b"%d" % i, with_id(str(i))) for i in range(100)])
    as_user = f'amqp = {{ user = "{user}", password = {{ env = "WORD" }} }}'
    text = flow_out(rabbitmq, name, as_user) + flow_from_queue(rabbitmq, queue, as_user)
    flows = FlowsPart(store, tmp_path, text, {"WORD": "s3cret-word"})
    taker = QueueTaker(rabbitmq, name)
    try:
        publish(client, 100)
        wait_until(lambda: f"allow the flow's user to write to exchange '{name}'" in flows.log_text())
        wait_until(lambda: f"allow the flow's user to read queue '{queue}'" in flows.log_text())
        wait_until(lambda: row(store, "out")["away"] and row(store, "orders")["away"])
        rabbitmq.permit(user, write=name, read=queue)
        wait_until(lambda: len(taker.take()) == 100)
        wait_until(lambda: len(payloads(client, "in/1")) == 100)
        assert letters(client) == []
        assert QueueTaker(rabbitmq, f"{queue}.dead").take() == []
        assert "s3cret-word" not in flows.log_text()
        assert "Traceback" not in flows.log_text()
    finally:
        flows.kill()
