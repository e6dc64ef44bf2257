"""Who has received a message: sessions and groups in each state, by the command and the API, and after a kill."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.mqtt.packets import PubAck, Publish, QoS, SubAck, Subscribe, SubscriptionRequest
from gateway.mqtt.reason_codes import ReasonCode
from penstock.sdk.message_id import parse_message_id
from penstock.sync import Client
from tests.conftest import ServerFactory
from tests.interop.programs import TIMEOUT_S, penstock, run
from tests.support.mqtt_packet_client import Device
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

pytestmark = pytest.mark.topologies("one process", "shared port")

TOPIC = "line/7"
PATIENCE_S = 60
States = dict[str, str]


class TraceSite:
    """A server, and the message that is traced."""

    def __init__(self, server: PenstockServer) -> None:
        self.server = server
        self.url = f"unix://{server.data.absolute()}/console.sock"
        self.client = Client(self.url, timeout_s=PATIENCE_S)
        self.open = ExitStack()
        self.devices: list[Device] = []
        self.message_id = ""

    def device(self, client_id: str, topic_filter: str = "line/+", qos: int = 1, no_local: bool = False) -> Device:
        """One whose session outlives its connection, with a subscription."""
        device = Device(self.server.port, client_id)
        self.devices.append(device)
        assert device.connect(session_expiry_interval=600, clean_start=False).reason_code is ReasonCode.SUCCESS
        device.send(Subscribe(device.next_id(), (SubscriptionRequest(topic_filter, QoS(qos), no_local),)))
        assert device.next(SubAck).reason_codes[0] == qos
        return device

    def group(self, name: str, start: str = "now", topic_filter: str = TOPIC) -> Iterator[Any]:
        """The messages of a consumer that stays until the end of the test."""
        options = {"group": name, "start": start, "retry_after": 600}
        return iter(self.open.enter_context(self.client.subscribe(topic_filter, **options)))  # type: ignore[arg-type]

    def traced(self) -> dict[str, Any]:
        found = run(*penstock("trace", self.message_id, "--data", str(self.server.data), "--json"))
        answer: dict[str, Any] = json.loads(found)
        return answer

    def states(self) -> tuple[States, States]:
        """Of sessions, and of groups."""
        found = self.traced()
        sessions = {each["client_id"]: each["state"] for each in found["sessions"]}
        return sessions, {each["group"]: each["state"] for each in found["groups"]}

    def await_states(self, sessions: States, groups: States) -> None:
        wait_until(lambda: self.states() == (sessions, groups), PATIENCE_S)

    def leave(self) -> None:
        for device in self.devices:
            device.close()
        self.open.close()

    def close(self) -> None:
        self.leave()
        self.client.close()


@pytest.fixture
def site(penstock_server: ServerFactory) -> Iterator[TraceSite]:
    site = TraceSite(penstock_server(flush="async"))
    yield site
    site.close()


def publish(site: TraceSite, device: Device) -> None:
    """From a device, whose message is the traced one from then on."""
    device.publish(TOPIC, b"x", 1)
    assert isinstance(device.receive(), PubAck)
    (message,) = site.client.read(TOPIC)
    site.message_id = message.message_id


def refused(*arguments: str) -> str:
    done = subprocess.run(penstock("trace", *arguments), capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1, done
    assert done.stderr.count(b"\n") == 1
    return done.stderr.decode()


@pytest.mark.catalogue("R80")
def test_sessions_in_each_state_and_after_a_kill(site: TraceSite) -> None:
    own = site.device("own", no_local=True)
    received, under_way = site.device("received"), site.device("under-way")
    in_flight = {qos: site.device(f"in-flight-{qos}", qos=qos) for qos in (1, 2)}
    for client_id, topic_filter, qos in (("waiting", "#", 1), ("at-qos-0", TOPIC, 0), ("other", "other/#", 1)):
        site.device(client_id, topic_filter, qos).close()
    two = site.device("two", TOPIC, 0)
    assert two.subscribe("line/#", 2) == 2
    two.close()
    clean = Device(site.server.port, "clean")
    clean.connect()
    clean.subscribe(TOPIC, 1)
    publish(site, own)
    received.send(PubAck(received.next(Publish).packet_id or 0))
    under_way.next(Publish)
    for device in in_flight.values():
        device.next(Publish)
        device.close()
    site.device("later").close()
    expected = {
        "own": "filtered",
        "received": "received",
        "under-way": "under_way",
        "in-flight-1": "in_flight",
        "in-flight-2": "in_flight",
        "waiting": "waiting",
        "at-qos-0": "unknown",
        "two": "waiting",
        "later": "later",
    }
    site.await_states(expected, {})
    found = site.traced()
    assert (found["topic"], found["published_by"], found["queue_offset"], found["qos"]) == (TOPIC, "own", 0, 1)
    rows = {each["client_id"]: each for each in found["sessions"]}
    assert (rows["two"]["topic_filter"], rows["two"]["qos"]) == ("line/#", 2)
    assert {client_id for client_id, row in rows.items() if row["online"]} == {"own", "received", "under-way"}

    site.leave()
    away = expected | {"under-way": "in_flight"}
    site.await_states(away, {})
    before = site.traced()
    site.server.kill()
    site.server.restart()
    assert site.traced() == before


@pytest.mark.catalogue("R80")
def test_groups_in_each_state_and_after_a_kill(site: TraceSite) -> None:
    names = ("received", "in-flight", "retry", "dead", "paused")
    members = {name: site.group(name) for name in names}
    ordered = iter(site.open.enter_context(site.client.subscribe("#", group="ordered", start="now", partitions=4)))
    with site.client.subscribe("line/#", group="waiting", start="now"), site.client.subscribe("x/#", group="other"):
        pass
    device = site.device("away", "elsewhere")
    publish(site, device)
    next(members["received"]).ack()
    next(members["in-flight"])
    next(members["retry"]).retry(after=600)
    next(members["dead"]).reject("no use")
    next(members["paused"]).ack()
    next(ordered).ack()
    run(*penstock("group", "pause", "paused", "--store", site.url))
    site.group("later")
    next(site.group("from-earliest", "earliest")).ack()
    moved = site.group("moved", "earliest")
    next(moved).ack()
    run(*penstock("group", "reset", "moved", "--to", "latest", "--store", site.url))
    settled = {"received": "received", "retry": "retry", "dead": "dead_letter", "paused": "received"}
    late = {"later": "later", "from-earliest": "received", "moved": "unknown", "ordered": "received"}
    expected = settled | late | {"in-flight": "in_flight", "waiting": "waiting"}
    site.await_states({}, expected)
    rows = {each["group"]: each for each in site.traced()["groups"]}
    assert rows["in-flight"]["deliveries"] == rows["retry"]["deliveries"] == 1
    assert rows["in-flight"]["consumer"]
    assert rows["retry"]["due"] > site.traced()["stored_at"]
    assert [name for name, row in rows.items() if row["paused"]] == ["paused"]
    (letter,) = site.client.read("$dead/dead/#")
    assert rows["dead"]["letter_log_offset"] == letter.log_offset

    site.leave()
    site.await_states({}, expected | {"in-flight": "retry"})
    before = site.traced()
    site.server.kill()
    site.server.restart()
    after = site.traced()
    assert after == before


def test_what_cannot_be_traced(site: TraceSite, tmp_path: Path) -> None:
    receipt = site.client.publish(TOPIC, b"x")
    site.message_id = receipt.message_id
    found = site.traced()
    assert (found["published_by"], found["sessions"], found["groups"]) == (None, [], [])
    data = ("--data", str(site.server.data))
    assert b"not an MQTT client" in run(*penstock("trace", receipt.message_id, *data))
    assert "is no message id" in refused("rubbish", *data)
    assert "it was changed" in refused(receipt.message_id[:-1] + "0", *data)
    place, log_offset = parse_message_id(receipt.message_id)
    assert "no message begins at" in refused(place.message_id(log_offset + 8), *data)
    later = site.client.publish(TOPIC, b"x", delay=600)
    assert "one that is delayed" in refused(later.message_id, *data)
    assert "no server runs on this data folder" in refused(receipt.message_id, "--data", str(tmp_path))
