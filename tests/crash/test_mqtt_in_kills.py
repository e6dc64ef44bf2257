"""Flows' process and store are killed with SIGKILL amid the work of a flow from Mosquitto.

Messages with an id are stored once, in the order of their topic.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.interop.programs import PahoClient
from tests.support.flows_part import FlowsPart
from tests.support.server_process import free_port, start_mosquitto
from tests.support.steady_device import SteadyDevice
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

BY_DAY, BY_NIGHT = 3, 20
PATIENCE_S = 120
FLOW = """
[flow.in]
from = "mqtt://127.0.0.1:{port}/line/#"
to = "penstock:"
timeout_s = 5
"""


@pytest.mark.parametrize("kills", [BY_DAY, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)])
def test_each_message_with_an_id_is_stored_once(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    port = free_port()
    broker = start_mosquitto(port, tmp_path, "max_queued_messages 0\nmax_queued_bytes 0")  # else it drops some
    store = StoreProcess(tmp_path)
    flows = FlowsPart(store, tmp_path, FLOW.format(port=port))
    with Client(store.url.replace("tcp://", "penstock://"), timeout_s=PATIENCE_S) as client:
        first = PahoClient(port).connect()
        try:

            def is_subscribed() -> bool:
                first.publish("line/first", [b"x"], 1)
                return bool(list(client.read("line/first")))

            wait_until(is_subscribed, PATIENCE_S)
        finally:
            first.leave()
        device = SteadyDevice(port)
        try:
            for number in range(kills):
                seen = device.acked
                wait_until(lambda seen=seen: device.acked > seen + chance.randrange(20, 200), PATIENCE_S)  # type: ignore[misc]
                (flows if number % 2 else store).restart()
        finally:
            device.close()
        try:
            wait_until(lambda: len(list(client.read("line/0"))) >= (device.acked + 2) // 3, PATIENCE_S)
            wait_until(lambda: len(list(client.read("line/2"))) >= device.acked // 3, PATIENCE_S)
            for topic in range(3):
                found = [int(message.payload) for message in client.read(f"line/{topic}")]
                assert found == list(range(topic, device.acked, 3))
            assert list(client.read("$flows/in/dead/#")) == []
        finally:
            flows.kill()
            store.close()
            broker.kill()
            broker.wait()
