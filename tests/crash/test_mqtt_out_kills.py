"""Flows' process and store are killed with SIGKILL amid the work of a flow to Mosquitto: the ledger closes.

A subscriber there gets all that was acknowledged, some of it perhaps twice, with the same id.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.interop.programs import PahoClient
from tests.support.flows_part import FlowsPart
from tests.support.server_process import free_port, start_mosquitto
from tests.support.steady import NumbersPublisher
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

BY_DAY, BY_NIGHT = 3, 20
PATIENCE_S = 120
FLOW = """
[flow.out]
from = "plant/#"
to = "mqtt://127.0.0.1:{port}/site"
start = "earliest"
format = "raw"
timeout_s = 5
"""


@pytest.mark.catalogue("I33")
@pytest.mark.parametrize("kills", [BY_DAY, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)])
def test_mosquitto_has_each_message(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    port = free_port()
    broker = start_mosquitto(port, tmp_path, "max_queued_messages 0\nmax_queued_bytes 0")  # else it drops some
    store = StoreProcess(tmp_path)
    flows = FlowsPart(store, tmp_path, FLOW.format(port=port))
    url = store.url.replace("tcp://", "penstock://")
    publisher = NumbersPublisher(url, pause_s=0.01)
    taker = PahoClient(port).connect().subscribe("site/#", 1)
    try:
        for number in range(kills):
            seen = publisher.sent
            wait_until(lambda seen=seen: publisher.sent > seen + chance.randrange(40, 400), PATIENCE_S)  # type: ignore[misc]
            (flows if number % 2 else store).restart()
        publisher.finish()
        acked = publisher.acked
        assert len(acked) > 100
        wait_until(lambda: acked <= {int(payload) for payload in taker.distinct(1)}, PATIENCE_S)
        with Client(url) as client:
            assert list(client.read("$dead/#")) == []
            ids = {message.message_id: message.payload for message in client.read("plant/#")}
        for each in taker.raw_messages(1):
            assert ids[dict(each.properties.UserProperty)["penstock-id"]] == each.payload  # type: ignore[union-attr]
    finally:
        publisher.finish()
        taker.leave()
        flows.kill()
        store.close()
        broker.kill()
        broker.wait()
