"""Flows that come from RabbitMQ, a real one: what messages become, which are rejected, and what is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import randbytes

import pytest
from pika import BasicProperties

from loadtest.chaos.wire import Wire
from loadtest.ports import HOST
from penstock.sync import Client
from tests.interop.programs import penstock, run
from tests.support.amqp_flows import flow_from_queue, new_queue, payloads, put, waiting, with_id
from tests.support.flows_fixtures import client as client
from tests.support.flows_part import FlowsPart
from tests.support.rabbitmq_broker import RabbitMqBroker
from tests.support.rabbitmq_queues import QueueTaker
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until

PATIENCE_S = 40
LARGE, LARGE_BYTES = 150, 290_000  # 43 MB in all


def wait_until(condition: object) -> None:
    until(condition, PATIENCE_S)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path, settings={"wire.max_frame_bytes": 256 << 10})
    yield store
    store.close()


@pytest.mark.catalogue("Q65")
def test_messages_from_amqp_are_mapped_or_rejected(
    rabbitmq: RabbitMqBroker, store: StoreProcess, client: Client, tmp_path: Path
) -> None:
    queue, mapped = new_queue(rabbitmq), new_queue(rabbitmq)
    full = BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        message_id="m-1",
        headers={"unit": "C", "n": 7, "ok": True, "list": [1]},
    )
    put(rabbitmq, queue, [("plant.7.temp", b'{"celsius": 9}', full)])
    put(rabbitmq, queue, [("plant.7.temp", b'{"celsius": 9}', full)])  # as a publisher does that had no confirm
    put(rabbitmq, queue, [("bad.#", b"no topic", with_id("bad")), ("plant.big", randbytes(290_000), with_id("big"))])
    put(rabbitmq, queue, [("plant.8.temp", b"%d" % i, with_id(f"n-{i}")) for i in range(1_200)])
    put(rabbitmq, queue, [("plant.9.temp", b"none", BasicProperties()) for _ in range(2)])
    put(rabbitmq, mapped, [("a.b", b'{"id": 5}', with_id("5")), ("a.b", b"{}", with_id("6")), ("a", b"", with_id("7"))])
    map_ = 'where = "topic != \'a\'"\nmap = { topic = "orders/{json.id}", key = "{message_id}" }'
    part = FlowsPart(
        store, tmp_path, flow_from_queue(rabbitmq, queue) + flow_from_queue(rabbitmq, mapped, map_, "mapped")
    )
    try:
        wait_until(lambda: len(payloads(client, "plant/9/temp")) == 2 and payloads(client, "orders/#"))
        dead, dead_mapped = QueueTaker(rabbitmq, f"{queue}.dead"), QueueTaker(rabbitmq, f"{mapped}.dead")
        wait_until(lambda: len(dead.take()) == 2 and len(dead_mapped.take()) == 1)
    finally:
        part.kill()
    assert payloads(client, "plant/8/temp") == [b"%d" % i for i in range(1_200)]  # in their order
    (message,) = client.read("plant/7/temp")
    assert (message.payload, message.content_type, message.key) == (b'{"celsius": 9}', "application/json", None)
    carried = {"unit": "C", "n": "7", "ok": "true", "amqp-message-id": "m-1", "content-encoding": "utf-8"}
    assert message.headers == carried
    (order,) = client.read("orders/#")
    assert (order.topic, order.key) == ("orders/5", "5")
    assert {each.properties.message_id for each in dead.taken} == {"bad", "big"}
    assert dead.taken[0].properties.headers["x-first-death-reason"] == "rejected"
    said = part.log_text()
    assert "message 'bad', routing key 'bad.#' is rejected, and not given back: topic 'bad/#': use the name" in said
    assert (
        "message 'big', routing key 'plant.big' is rejected, and not given back: the store refused: a message of 290"
        in said
    )
    assert "message '6', routing key 'a.b' is rejected" in said
    assert waiting(rabbitmq, queue) == waiting(rabbitmq, mapped) == 0
    assert "Traceback" not in said


def test_flow_waits_for_an_amqp_queue_that_is_missing_or_refuses(
    rabbitmq: RabbitMqBroker, store: StoreProcess, client: Client, tmp_path: Path
) -> None:
    """Each is told in one line that says what to correct."""
    wire = Wire(rabbitmq.port)
    queue, late, gone = new_queue(rabbitmq), f"{new_queue(rabbitmq)}.late", new_queue(rabbitmq)
    user = 'amqp = { user = "guest", password = { env = "WRONG" } }'
    text = flow_from_queue(rabbitmq, queue, user, "password")
    text += flow_from_queue(rabbitmq, queue, 'amqp.vhost = "no-such"', "vhost")
    text += flow_from_queue(rabbitmq, late, name="late") + flow_from_queue(rabbitmq, gone, name="gone")
    text += flow_from_queue(rabbitmq, queue).replace(rabbitmq.url, f"{HOST}:{wire.port}")
    put(rabbitmq, queue, [("plant.1", b"before", with_id("0"))])
    part = FlowsPart(store, tmp_path, text, {"WRONG": "quite-s3cret"})

    def lines(flow: str) -> list[str]:
        return [line for line in part.log_text().splitlines() if f"flow {flow}: AMQP" in line]

    try:
        for flow, remedy in (
            ("password", "amqp.password: correct it"),
            ("vhost", "amqp.vhost: correct it"),
            ("late", f"make queue '{late}', or correct `from`"),
        ):
            wait_until(lambda flow=flow: lines(flow))
            assert remedy in lines(flow)[0]
        with rabbitmq.channel() as channel:
            channel.queue_declare(late, durable=True)
        put(rabbitmq, "", [(late, b"late", BasicProperties())])
        wait_until(lambda: payloads(client, late.replace(".", "/")) == [b"late"])
        with rabbitmq.channel() as channel:
            channel.queue_delete(gone)
        wait_until(lambda: any(f"or deleted queue '{gone}'" in line for line in lines("gone")))
        wait_until(lambda: payloads(client, "plant/1") == [b"before"])
        wire.silence()
        put(rabbitmq, queue, [("plant.1", b"%d" % i, with_id(f"{i}")) for i in range(1, 100)])
        wire.cut()
        wait_until(lambda: lines("orders"))
        wire.mend()
        wait_until(lambda: len(payloads(client, "plant/1")) == 100)
        rabbitmq.stop()
        try:
            wait_until(lambda: any("did not answer in time" in line for line in lines("late")))
        finally:
            rabbitmq.cont()
        put(rabbitmq, queue, [("plant.1", b"%d" % i, with_id(f"{i}")) for i in range(50, 200)])
        wait_until(lambda: len(payloads(client, "plant/1")) >= 200)
        wait_until(lambda: QueueTaker(rabbitmq, queue).take() == [])
        assert len(payloads(client, "plant/1")) == 200  # each once
        assert "quite-s3cret" not in part.log_text()
        assert "Traceback" not in part.log_text()
    finally:
        part.kill()
        wire.close()


def test_a_paused_flow_leaves_its_queue_alone_and_large_messages_are_taken_a_few_at_a_time(
    rabbitmq: RabbitMqBroker, tmp_path: Path
) -> None:
    store = StoreProcess(tmp_path)
    queue = new_queue(rabbitmq)
    part = FlowsPart(store, tmp_path, flow_from_queue(rabbitmq, queue))
    address = ("--store", store.url)
    try:
        with Client(store.url.replace("tcp://", "penstock://"), timeout_s=PATIENCE_S) as client:
            put(rabbitmq, queue, [("plant.1", b"first", BasicProperties())])
            wait_until(lambda: payloads(client, "plant/1"))
            run(*penstock("flow", "pause", "orders", *address))
            wait_until(lambda: "it is paused" in part.log_text())
            body = randbytes(LARGE_BYTES)
            put(rabbitmq, queue, [("plant.2", body, with_id(f"{i}")) for i in range(LARGE)])
            assert waiting(rabbitmq, queue) == LARGE
            run(*penstock("flow", "resume", "orders", *address))
            wait_until(lambda: len(payloads(client, "plant/2")) == LARGE)
            store.pause()
            put(rabbitmq, queue, [("plant.3", body, with_id(f"more-{i}")) for i in range(LARGE)])
            wait_until(lambda: "more than 33554432 bytes of them are in hand" in part.log_text())
            store.resume()
            wait_until(lambda: len(payloads(client, "plant/3")) == LARGE)
    finally:
        part.kill()
        store.close()
