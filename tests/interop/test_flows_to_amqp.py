"""Flows that lead to RabbitMQ, a real one: what messages are like, and what happens when it takes none."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.support.flows_fixtures import client as client
from tests.support.flows_fixtures import store as store
from tests.support.flows_part import FlowsPart, letters
from tests.support.rabbitmq_broker import MOST_MESSAGE_BYTES, NO_MEMORY, SOME_MEMORY, RabbitMqBroker
from tests.support.rabbitmq_queues import QueueTaker
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until

PATIENCE_S = 90


def wait_until(condition: object) -> None:
    until(condition, PATIENCE_S)  # type: ignore[arg-type]


@pytest.fixture
def name() -> str:
    return f"plant-{uuid.uuid4().hex}"


def flow(name: str, to: str, more: str = "", format: str = "raw") -> str:
    return f"""
        [flow.{name}]
        from = "plant/#"
        to = "{to}"
        start = "earliest"
        timeout_s = 2
        format = "{format}"
        {more}
    """


def different(queue: QueueTaker) -> set[tuple[str | None, str | None]]:
    """What a queue gave, by message id and content type: a message may come more than once."""
    return {(each.properties.message_id, each.properties.content_type) for each in queue.take()}


def test_messages_of_each_format_and_what_has_no_queue(
    rabbitmq: RabbitMqBroker, store: StoreProcess, client: Client, tmp_path: Path, name: str
) -> None:
    rabbitmq.make(name, {f"{name}.{kind}": f"{kind}.#" for kind in ("ce", "binary", "plant")})
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with rabbitmq.channel() as channel:
        channel.queue_declare(f"{name}.full", durable=True, arguments=full)
    receipt = client.publish("plant/7/temp", b'{"celsius": 9}', content_type="application/json", headers={"a": "b"})
    client.publish("plant/8/temp", b"x" * (MOST_MESSAGE_BYTES + 1))
    client.publish("plant/" + "x" * 300, b"long")
    client.publish_many([(f"plant/{i}/flow", b"%d" % i) for i in range(500)])
    client.publish("plant/none", b"none")
    url = f"amqp://{rabbitmq.url}/{name}"
    texts = (
        flow("raw", url, 'where = "topic != \'plant/none\'"\nmap = { headers = { site = "{levels[1]}" } }'),
        flow("ce", url, 'where = "levels[1] == \'7\'"\nmap = { key = "ce.{levels[1]}" }', "cloudevents"),
        flow("binary", url, 'where = "levels[1] == \'7\'"\nmap.key = "binary.{topic}"', "cloudevents-binary"),
        flow("none", url, 'where = "topic == \'plant/none\'"\nmap.key = "nowhere"'),
        flow("queue", f"amqp://{rabbitmq.url}/", f'where = "levels[1] == \'7\'"\nmap.key = "{name}.ce"'),
        flow("full", f"amqp://{rabbitmq.url}/", f'where = "levels[1] == \'7\'"\nmap.key = "{name}.full"'),
    )
    part = FlowsPart(store, tmp_path, "".join(texts))
    try:
        plant, ce, binary = (QueueTaker(rabbitmq, f"{name}.{kind}") for kind in ("plant", "ce", "binary"))
        wait_until(lambda: "a queue that the message goes to is full; it waits" in part.log_text())
        last = QueueTaker(rabbitmq, f"{name}.full")
        wait_until(lambda: len(different(last)) == 2)
        wait_until(lambda: len(different(plant)) == 501 and len(letters(client)) == 3)
        wait_until(lambda: len(different(ce)) == 4 and len(different(binary)) == 2)
    finally:
        part.kill()
    bodies = [b'{"celsius": 9}', *(b"%d" % i for i in range(500))]
    assert set(plant.bodies()) == set(bodies)  # a broker that refuses one closes the channel, and others come again
    raw = next(each for each in plant.taken if each.properties.message_id == receipt.message_id)
    assert (raw.routing_key, raw.body) == ("plant.7.temp", b'{"celsius": 9}')
    assert (raw.properties.content_type, raw.properties.delivery_mode) == ("application/json", 2)
    assert raw.properties.headers == {"site": "7"}
    structured = [each for each in ce.taken if each.properties.content_type == "application/cloudevents+json"]
    event = next(json.loads(each.body) for each in structured if each.properties.message_id == receipt.message_id)
    assert (event["id"], event["data"], event["subject"]) == (receipt.message_id, {"celsius": 9}, "plant/7/temp")
    assert b'{"celsius": 9}' in ce.bodies()  # by the default exchange
    said = next(each for each in binary.taken if each.properties.message_id == receipt.message_id)
    assert (said.routing_key, said.body) == ("binary.plant/7/temp", b'{"celsius": 9}')
    assert said.properties.headers["ce-subject"] == "plant/7/temp"
    assert said.properties.headers["ce-id"] == receipt.message_id
    reasons = dict(letters(client))
    assert "has no queue for 'nowhere': NO_ROUTE" in reasons["$dead/flow.none/plant/none"]
    assert "PRECONDITION_FAILED" in reasons["$dead/flow.raw/plant/8/temp"]
    assert "AMQP takes 255 bytes: routing key" in reasons["$dead/flow.raw/plant/" + "x" * 300]


def test_a_broker_that_refuses_is_full_hangs_or_has_no_exchange_is_waited_for(
    rabbitmq: RabbitMqBroker, store: StoreProcess, client: Client, tmp_path: Path, name: str
) -> None:
    """Each is told in one line that says what to correct."""
    secure = f"amqps://127.0.0.1:{rabbitmq.tls_port}/{name}"
    ca_file, stranger = (f'ca_file = "{each.certificate}"' for each in (rabbitmq.authority, rabbitmq.stranger))
    user = 'amqp = {{ user = "guest", password = {{ env = "{}" }} }}'
    part = FlowsPart(
        store,
        tmp_path,
        flow("good", secure, f"{ca_file}\n{user.format('RIGHT')}")
        + flow("password", secure, f"{ca_file}\n{user.format('WRONG')}")
        + flow("authority", secure, stranger)
        + flow("vhost", f"amqp://{rabbitmq.url}/{name}", 'amqp.vhost = "no-such"'),
        {"RIGHT": "guest", "WRONG": "quite-s3cret"},
    )
    number = 0

    def publish() -> None:
        nonlocal number
        client.publish_many([("plant/1/temp", b"%d" % i) for i in range(number, number + 200)])
        number += 200

    def lines(flow: str) -> list[str]:
        return [line for line in part.log_text().splitlines() if f"flow {flow}: AMQP" in line]

    try:
        for flow_, remedy in (
            ("password", "amqp.password: correct it"),
            ("authority", "ca_file: give the authority"),
            ("vhost", "amqp.vhost: correct it"),
            ("good", f"make exchange '{name}'"),
        ):
            wait_until(lambda flow_=flow_: lines(flow_))
            assert remedy in lines(flow_)[0]
        publish()
        rabbitmq.make(name, {name: "plant.#"})
        taker = QueueTaker(rabbitmq, name)
        wait_until(lambda: len(taker.take()) == number)
        rabbitmq.set_memory(NO_MEMORY)
        try:
            publish()
            wait_until(lambda: any("its memory or disk is full" in line for line in lines("good")))
            publish()
        finally:
            rabbitmq.set_memory(SOME_MEMORY)
        wait_until(lambda: len(taker.take()) >= number)
        # Each once: what it took in while it was full is not published again.
        assert sorted(map(int, taker.bodies())) == list(range(number))
        rabbitmq.stop()
        try:
            publish()
            wait_until(lambda: any("it has not confirmed a message for 2 s" in line for line in lines("good")))
        finally:
            rabbitmq.cont()
        wait_until(lambda: {int(body) for body in taker.bodies()} == set(range(number)))
        assert "quite-s3cret" not in part.log_text()
        assert letters(client) == []
        assert "Traceback" not in part.log_text()
    finally:
        part.kill()
