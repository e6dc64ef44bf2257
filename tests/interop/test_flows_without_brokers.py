"""RabbitMQ and Mosquitto are slow, break off in mid answer, refuse connections, or are dead for a minute, under flows
each way.

Nothing is lost, other flows and the devices of the store notice nothing, the flows say what is wrong and go on by
themselves.
"""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from penstock.sync import Client
from tests.conftest import ServerFactory
from tests.interop.programs import PahoClient, penstock, run
from tests.support.amqp_flows import SteadyQueuer, new_queue, payloads
from tests.support.broker_wire import BrokerWire
from tests.support.device_pings import DevicePings, Latencies
from tests.support.rabbitmq_broker import RabbitMqBroker
from tests.support.rabbitmq_queues import QueueTaker
from tests.support.server_process import PenstockServer, free_port, start_mosquitto
from tests.support.steady import NumbersPublisher
from tests.support.steady_device import SteadyDevice
from tests.support.stores import wait_until as until

PATIENCE_S = 240
AWAY = ("amqpout", "amqpin", "mqttout", "mqttin")
KEPT = "persistence true\nmax_queued_messages 0\nmax_queued_bytes 0"
FLOWS = """
[flow.amqpout]
from = "plant/#"
to = "amqp://127.0.0.1:{amqpout}/{name}"
format = "raw"
timeout_s = 2
[flow.amqpin]
from = "amqp://127.0.0.1:{amqpin}/{queue}"
to = "penstock:"
map = {{ topic = "amqp/{{topic}}" }}
timeout_s = 2
[flow.mqttout]
from = "plant/#"
to = "mqtt://127.0.0.1:{mqttout}/site"
format = "raw"
timeout_s = 2
[flow.mqttin]
from = "mqtt://127.0.0.1:{mqttin}/line/#"
to = "penstock:"
timeout_s = 2
[flow.lines]
from = "plant/#"
to = "file://{lines}"
format = "raw"
"""


def wait_until(condition: Callable[[], Any]) -> None:
    until(condition, PATIENCE_S)


class Mosquitto:
    """It keeps its sessions and their messages while it is down."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self.start()

    def start(self) -> None:
        self.process = start_mosquitto(self.port, self._folder, f"{KEPT}\npersistence_location {self._folder}/")

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


class Outage(Protocol):
    """What happens to both brokers."""

    lasts_s: float

    def ports(self) -> dict[str, int]:
        """Of each flow's broker."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None: ...


class BrokenOff:
    """Each flow's line ends in the middle of what the broker says, and then no broker can be reached."""

    lasts_s = 0.5

    def __init__(self, rabbitmq: RabbitMqBroker, mosquitto: Mosquitto) -> None:
        ports = {"amqpout": rabbitmq.port, "amqpin": rabbitmq.port, "mqttout": mosquitto.port, "mqttin": mosquitto.port}
        self._wires = {flow: BrokerWire(port) for flow, port in ports.items()}

    def ports(self) -> dict[str, int]:
        return {flow: wire.port for flow, wire in self._wires.items()}

    def begin(self) -> None:
        for wire in self._wires.values():
            wire.cut_amid_answer()
        wait_until(lambda: all(wire.was_cut.is_set() for wire in self._wires.values()))

    def end(self) -> None:
        for wire in self._wires.values():
            wire.mend()

    def delay(self, seconds: float) -> None:
        for wire in self._wires.values():
            wire.delay(seconds)

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()


class Dead:
    """The brokers are no more, and are started again after a minute."""

    lasts_s = 60.0

    def __init__(self, rabbitmq: RabbitMqBroker, mosquitto: Mosquitto) -> None:
        self._rabbitmq, self._mosquitto = rabbitmq, mosquitto

    def ports(self) -> dict[str, int]:
        amqp, mqtt = self._rabbitmq.port, self._mosquitto.port
        return {"amqpout": amqp, "amqpin": amqp, "mqttout": mqtt, "mqttin": mqtt}

    def begin(self) -> None:
        self._rabbitmq.kill()
        self._mosquitto.end()

    def end(self) -> None:
        self._mosquitto.start()
        self._rabbitmq.start()

    def close(self) -> None:
        pass


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    mosquitto = Mosquitto(tmp_path)
    yield mosquitto
    mosquitto.process.kill()
    mosquitto.process.wait()


@dataclass
class FlowSite:
    """A store with a flow each way, and what publishes to them and takes from them."""

    server: PenstockServer
    client: Client
    taker: PahoClient
    in_queue: QueueTaker
    publisher: NumbersPublisher
    queuer: SteadyQueuer
    device: SteadyDevice
    rejected: QueueTaker

    def wait_until_all_came(self) -> None:
        """Nothing more is published; what was acknowledged comes, into the store once and in order."""
        for each in (self.publisher, self.queuer):
            each.finish()
        self.device.close()
        client, acked = self.client, self.publisher.acked
        wait_until(lambda: acked <= {int(each) for each in self.taker.distinct(1)})
        wait_until(lambda: acked <= {int(each) for each in self.in_queue.bodies()})
        wait_until(lambda: set(payloads(client, "amqp/#")) >= {b"%d" % i for i in range(self.queuer.confirmed)})
        wait_until(lambda: len(payloads(client, "line/#")) >= self.device.acked)
        wait_until(lambda: not any(rows(self.server)[flow]["away"] for flow in AWAY))
        found = payloads(client, "amqp/#")
        assert len(found) == len(set(found))
        for topic in range(3):  # each once, in order
            assert [int(each) for each in payloads(client, f"line/{topic}")] == list(range(topic, self.device.acked, 3))
        assert list(client.read("$dead/#")) == list(client.read("$flows/mqttin/dead/#")) == []
        assert self.rejected.take() == []

    def close(self) -> None:
        for each in (self.publisher, self.queuer):
            each.finish()
        self.device.close()
        self.taker.leave()


@pytest.fixture
def start_site(
    rabbitmq: RabbitMqBroker, mosquitto: Mosquitto, penstock_server: ServerFactory, tmp_path: Path
) -> Iterator[Callable[[Outage], FlowSite]]:
    with ExitStack() as ends:

        def start(outage: Outage) -> FlowSite:
            ends.callback(outage.close)
            name, queue = f"away-{uuid.uuid4().hex}", new_queue(rabbitmq)
            rabbitmq.make(name, {name: "plant.#"})
            file, lines = tmp_path / "flows.toml", tmp_path / "lines.ndjson"
            file.write_text(FLOWS.format(name=name, queue=queue, lines=lines, **outage.ports()))
            server = penstock_server(settings={"flows.file": file})
            url = f"unix://{server.data.absolute()}/console.sock"
            taker = PahoClient(mosquitto.port, client_id="taker", expiry_s=3_600, clean=False)
            taker.client.reconnect_delay_set(1, 1)
            taker.connect().subscribe("site/#", 1)
            in_queue, rejected = QueueTaker(rabbitmq, name), QueueTaker(rabbitmq, f"{queue}.dead")
            wait_until(lambda: all(row["consumers"] for row in rows(server).values()) and len(rows(server)) == 5)
            client = ends.enter_context(Client(url, timeout_s=PATIENCE_S))
            publisher, queuer = NumbersPublisher(url, pause_s=0.05), SteadyQueuer(rabbitmq, queue)
            device = SteadyDevice(mosquitto.port, pause_s=0.01)
            site = FlowSite(server, client, taker, in_queue, publisher, queuer, device, rejected)
            ends.callback(site.close)
            return site

        yield start


@pytest.mark.parametrize("kind", [BrokenOff, pytest.param(Dead, marks=pytest.mark.nightly)])
def test_flows_go_on_once_their_brokers_are_back(
    rabbitmq: RabbitMqBroker,
    mosquitto: Mosquitto,
    start_site: Callable[[Outage], FlowSite],
    tmp_path: Path,
    kind: Callable[[RabbitMqBroker, Mosquitto], Outage],
) -> None:
    outage = kind(rabbitmq, mosquitto)
    site = start_site(outage)
    server, client = site.server, site.client
    pings = DevicePings(server.port, tmp_path / "pings")
    try:
        began_s = time.monotonic()
        wait_until(lambda: payloads(client, "amqp/#") and payloads(client, "line/#") and site.taker.distinct(50))
        wait_until(lambda: time.monotonic() > began_s + 0.5)
        outage.begin()
        away_s = time.monotonic()
        wait_until(lambda: all(rows(server)[flow]["away"] for flow in AWAY))
        wait_until(lambda: time.monotonic() > away_s + outage.lasts_s)
        during = rows(server)
        back_s = time.monotonic()
        outage.end()
        site.wait_until_all_came()
        _check_told(server, during)
        assert kind is not BrokenOff or ": the connection was lost" in server.log_text()
        before, meanwhile = pings.between(began_s, away_s), pings.between(away_s, back_s)
        print(f"before: {before}; while the brokers are away: {meanwhile}")
        _check_undisturbed(before, meanwhile, during)
    finally:
        pings.close()


@pytest.mark.parametrize("seconds", [2, pytest.param(90, marks=pytest.mark.nightly)])
def test_flows_over_slow_lines_fall_behind_and_catch_up(
    rabbitmq: RabbitMqBroker, mosquitto: Mosquitto, start_site: Callable[[Outage], FlowSite], seconds: int
) -> None:
    """Each piece of data is 0.1 s late, in either direction. No flow takes its broker to be away."""
    lines = BrokenOff(rabbitmq, mosquitto)
    site = start_site(lines)
    lines.delay(0.1)
    slow_s = time.monotonic()
    wait_until(lambda: time.monotonic() > slow_s + seconds)
    wait_until(lambda: payloads(site.client, "amqp/#") and payloads(site.client, "line/#") and site.taker.distinct(50))
    behind = rows(site.server)
    lines.delay(0)
    site.wait_until_all_came()
    print({flow: (behind[flow]["sent"], behind[flow]["lag"]) for flow in AWAY})
    assert behind["mqttout"]["lag"] > 100  # the line carries 20 messages in each round trip
    assert "MQTT, " not in site.server.log_text()
    assert "AMQP, " not in site.server.log_text()


def rows(server: PenstockServer) -> dict[str, dict[str, Any]]:
    """What `penstock flow list` says, by flow."""
    store = f"unix://{server.data.absolute()}/console.sock"
    return {row["flow"]: row for row in json.loads(run(*penstock("flow", "list", "--json", "--store", store)))}


def _check_told(server: PenstockServer, during: dict[str, dict[str, Any]]) -> None:
    said = server.log_text()
    for flow in AWAY:
        assert during[flow]["error"].startswith("AMQP, " if "amqp" in flow else "MQTT, ")
        assert f"flow {flow}: {during[flow]['error'][:4]}" in said
    assert said.count("the sink takes messages again") >= 2
    assert said.count("the queue gives messages again") >= 1
    assert said.count("the broker gives messages again") >= 1
    assert "Traceback" not in said


def _check_undisturbed(before: Latencies, meanwhile: Latencies, during: dict[str, dict[str, Any]]) -> None:
    assert not during["lines"]["away"]
    assert during["lines"]["lag"] < 500  # of many thousand
    assert during["mqttout"]["lag"] >= 20
    assert meanwhile.median_ms < 3 * before.median_ms + 10
    assert meanwhile.p99_ms < 3 * before.p99_ms + 100
