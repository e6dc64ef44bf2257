"""The disk of the store is full under flows that bring messages: brokers keep these until there is room again.

The flows' process is killed meanwhile, so a message that was acknowledged too early would be lost.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.sdk.errors import StoreRefused
from penstock.sync import Client
from tests.crash.sick_disk import FullDisk, small_disk
from tests.interop.programs import PahoClient, penstock, run
from tests.support.amqp_flows import flow_from_queue, new_queue, payloads, put, waiting, with_id
from tests.support.flows_fixtures import client as client
from tests.support.flows_part import FlowsPart
from tests.support.rabbitmq_broker import RabbitMqBroker
from tests.support.rabbitmq_queues import QueueTaker
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root (CI has it)")

BEFORE, MEANWHILE = 300, 1_500
PATIENCE_S = 60


def wait_until(condition: Callable[[], Any]) -> None:
    until(condition, PATIENCE_S)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FullDisk]:
    """On which the store's data are; it has room."""
    with small_disk(tmp_path) as folder:
        (folder / "data").mkdir()
        (tmp_path / "data").symlink_to(folder / "data")
        yield FullDisk(folder)


@pytest.fixture
def store(tmp_path: Path, disk: FullDisk) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path, settings={"store.segment_bytes": 4 << 20})
    yield store
    store.close()


def fill(disk: FullDisk, client: Client) -> None:
    """Have somebody take the room on the disk, and publish until the store takes nothing more."""
    disk.begin()
    for size in (60_000, 2_000, 50, 0):
        with suppress(StoreRefused):
            while True:
                client.publish("other", bytes(size), compress=False)
    with suppress(StoreRefused):  # a group takes less than a message
        for number in itertools.count():
            with client.subscribe("other", group=f"{number}"):
                pass


def row(store: StoreProcess, flow: str) -> dict[str, Any]:
    rows = json.loads(run(*penstock("flow", "list", "--json", "--store", store.url)))
    return next((row for row in rows if row["flow"] == flow), {})


def numbers(*of: int) -> list[bytes]:
    return [b"%d" % i for i in range(*of)]


def test_messages_of_a_queue_stay_there_while_the_store_is_full(
    rabbitmq: RabbitMqBroker, disk: FullDisk, store: StoreProcess, client: Client, tmp_path: Path
) -> None:
    queue = new_queue(rabbitmq)
    flows = FlowsPart(store, tmp_path, flow_from_queue(rabbitmq, queue))

    def publish(*of: int) -> None:
        put(rabbitmq, queue, [("plant.1", b"%d" % i, with_id(str(i))) for i in range(*of)])

    try:
        publish(BEFORE)
        wait_until(lambda: len(payloads(client, "plant/1")) == BEFORE)
        fill(disk, client)
        publish(BEFORE, BEFORE + MEANWHILE)
        wait_until(lambda: "store_full" in (row(store, "orders").get("error") or ""))
        assert "store_full); it is tried again" in flows.log_text()
        flows.kill()
        wait_until(lambda: waiting(rabbitmq, queue) == MEANWHILE)
        assert payloads(client, "plant/1") == numbers(BEFORE)  # reads go on
        flows.start()
        wait_until(lambda: waiting(rabbitmq, queue) < MEANWHILE)  # it has some in hand
        disk.end()
        wait_until(lambda: len(payloads(client, "plant/1")) >= BEFORE + MEANWHILE)
        wait_until(lambda: row(store, "orders").get("lag") == 0)
        flows.terminate()
        assert payloads(client, "plant/1") == numbers(BEFORE + MEANWHILE)  # each once, in order
        assert QueueTaker(rabbitmq, queue).take() == QueueTaker(rabbitmq, f"{queue}.dead").take() == []
        assert "Traceback" not in flows.log_text()
    finally:
        flows.kill()


def test_messages_of_a_broker_stay_there_while_the_store_is_full(
    disk: FullDisk, store: StoreProcess, client: Client, tmp_path: Path, mosquitto_port: int
) -> None:
    device = PahoClient(mosquitto_port).connect()
    text = f'[flow.in]\nfrom = "mqtt://127.0.0.1:{mosquitto_port}/line/#"\nto = "penstock:"\ntimeout_s = 2\n'
    flows = FlowsPart(store, tmp_path, text)

    def publish(*of: int) -> None:
        for i in range(*of):
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = [("penstock-id", f"D-{i}")]
            sent = device.client.publish("line/1", b"%d" % i, 1, False, properties)
        sent.wait_for_publish(PATIENCE_S)

    def is_subscribed() -> bool:
        device.publish("line/first", [b"x"], 1)
        return bool(payloads(client, "line/first"))

    try:
        wait_until(is_subscribed)
        publish(BEFORE)
        wait_until(lambda: len(payloads(client, "line/1")) == BEFORE)
        fill(disk, client)
        publish(BEFORE, BEFORE + MEANWHILE)
        wait_until(lambda: "store_full" in (row(store, "in").get("error") or ""))
        assert "store_full); it is tried again" in flows.log_text()
        flows.restart()
        wait_until(lambda: "store_full" in (row(store, "in").get("error") or ""))
        assert payloads(client, "line/1") == numbers(BEFORE)
        disk.end()
        wait_until(lambda: len(payloads(client, "line/1")) >= BEFORE + MEANWHILE)
        publish(BEFORE + MEANWHILE, BEFORE + MEANWHILE + 1)
        wait_until(lambda: len(payloads(client, "line/1")) > BEFORE + MEANWHILE)
        assert payloads(client, "line/1") == numbers(BEFORE + MEANWHILE + 1)  # each once, in order
        assert payloads(client, "$flows/in/dead/#") == []
        assert "Traceback" not in flows.log_text()
    finally:
        flows.kill()
        device.leave()


def test_flows_that_are_new_to_a_full_store_begin_once_it_has_room(
    disk: FullDisk, store: StoreProcess, client: Client, tmp_path: Path, mosquitto_port: int
) -> None:
    """Their groups have to be noted in the log."""
    url = f"mqtt://127.0.0.1:{mosquitto_port}"
    taker = PahoClient(mosquitto_port).connect().subscribe("site/#", 1)
    client.publish_many([("plant/1", payload) for payload in numbers(100)])
    text = (
        f'[flow.in]\nfrom = "{url}/line/#"\nto = "penstock:"\n'
        f'[flow.out]\nfrom = "plant/#"\nto = "{url}/site"\nformat = "raw"\n'
        f'[flow.lines]\nfrom = "plant/#"\nto = "file://{tmp_path}/lines.ndjson"\n'
    )
    fill(disk, client)
    flows = FlowsPart(store, tmp_path, text)
    try:
        for flow in ("in", "out", "lines"):
            wait_until(lambda flow=flow: f"flow {flow}: the store refused: " in flows.log_text())  # type: ignore[misc]
        disk.end()
        assert sorted(map(int, taker.distinct(100))) == list(range(100))
        wait_until(lambda: row(store, "lines").get("sent") == 100)
        device = PahoClient(mosquitto_port).connect()

        def comes() -> bool:
            device.publish("line/1", [b"x"], 1)
            return bool(payloads(client, "line/1"))

        wait_until(comes)
        device.leave()
        wait_until(lambda: row(store, "in").get("sent", 0) > 0)
        assert "Traceback" not in flows.log_text()
    finally:
        flows.kill()
        taker.leave()


def test_a_flow_that_sends_messages_on_needs_no_room(
    disk: FullDisk, store: StoreProcess, client: Client, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.ndjson"
    flows = FlowsPart(
        store, tmp_path, f'[flow.lines]\nfrom = "plant/#"\nto = "file://{lines}"\nformat = "raw"\nordered = true\n'
    )

    def found() -> list[int]:
        return [json.loads(line)["json"] for line in lines.read_text().splitlines()] if lines.exists() else []

    try:
        wait_until(lambda: row(store, "lines").get("consumers") == 1)
        flows.kill()
        client.publish_many([("plant/1", payload) for payload in numbers(100)])
        fill(disk, client)
        flows.start()
        wait_until(lambda: len(found()) >= 100)
        flows.terminate()  # so that the store has heard what was done
        disk.end()
        flows.start()
        client.publish("plant/1", b"100")
        wait_until(lambda: 100 in found() and row(store, "lines")["lag"] == 0)
        assert found() == list(range(101))
        assert "Traceback" not in flows.log_text()
    finally:
        flows.kill()
