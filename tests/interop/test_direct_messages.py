"""Messages straight to one client, by its identifier, with real servers: `gateway.direct_messages`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.mqtt.packets import Publish, PubRec, QoS, Will
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import SHARED_PORT, ServerFactory, SharedServers
from tests.interop.programs import PahoClient
from tests.support.mqtt_packet_client import Device, reload, write_passwords
from tests.support.server_process import PenstockServer

pytestmark = SHARED_PORT

OK, REFUSED = ReasonCode.SUCCESS, ReasonCode.NOT_AUTHORIZED
ON: dict[str, object] = {"gateway.direct_messages": True}
TENANT = {"gateway.listen": "mqtt://127.0.0.1:0,mqtt://127.0.0.1:0?namespace=acme"}


@pytest.fixture
def server(shared_server: SharedServers) -> PenstockServer:
    return shared_server(settings=ON)


def connected(port: int, client_id: str, *who: str, version: int = 5, expiry_s: int = 0) -> Device:
    device = Device(port, client_id, version)
    assert device.connect(*who, clean_start=False, session_expiry_interval=expiry_s or None).reason_code is OK
    return device


@pytest.mark.catalogue("G24", "R84")
def test_a_direct_message_comes_to_one_client_whatever_it_subscribes_to(server: PenstockServer) -> None:
    sender = PahoClient(server.port).connect()
    clients = [PahoClient(server.port, version, f"d-{version}").connect() for version in (4, 5)]
    other = connected(server.port, "other")
    for topic_filter in ("#", "+/d-5/#", "+/+/+"):
        assert other.subscribe(topic_filter, 2) is ReasonCode.GRANTED_QOS_2
    for qos in (0, 1, 2):
        for client in clients:
            sender.publish(f"$direct/d-{client.version}/alarm", [b"%d" % qos], qos)
    for client in clients:
        found = [(message.topic, message.payload, message.qos) for message in client.raw_messages(3)]
        assert found == [(f"$direct/d-{client.version}/alarm", b"%d" % qos, qos) for qos in (0, 1, 2)]
        client.leave()
    sender.publish("to/all", [b"last"], 1)
    sender.leave()
    assert other.next(Publish).payload == b"last"


@pytest.mark.catalogue("G24", "R84")
def test_direct_messages_wait_for_a_client_that_is_away(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings=ON)
    for version in (4, 5):
        connected(server.port, f"away-{version}", version=version, expiry_s=3_600).close()
    sender = connected(server.port, "sender")
    for number in range(3):
        for version in (4, 5):
            assert sender.published(f"$direct/away-{version}/t", b"%d" % number) is OK
        if number == 1:
            server.restart()  # killed
            sender = connected(server.port, "sender")
    for version in (4, 5):
        back = connected(server.port, f"away-{version}", version=version, expiry_s=3_600)
        got = [back.next(Publish) for _ in range(3)]
        assert [(each.payload, each.qos) for each in got] == [(b"%d" % n, QoS.AT_LEAST_ONCE) for n in range(3)]


def test_a_session_that_was_there_before_gets_direct_messages_too(penstock_server: ServerFactory) -> None:
    server = penstock_server()
    connected(server.port, "old", expiry_s=3_600).close()
    server.terminate()
    server.process.wait(30)
    server = penstock_server(server.data, settings=ON)
    old, sender = connected(server.port, "old", expiry_s=3_600), connected(server.port, "sender")
    assert sender.published("$direct/old/t", b"1") is OK
    assert old.next(Publish).payload == b"1"


def test_an_overlapping_subscription_gets_a_direct_message_once(server: PenstockServer) -> None:
    client, sender = connected(server.port, "twice"), connected(server.port, "sender")
    for topic_filter in ("$direct/twice/a", "$direct/+/a", "$direct/#", "t"):
        assert client.subscribe(topic_filter, 1) is ReasonCode.GRANTED_QOS_1
    assert sender.published("$direct/twice/a", b"1") is OK
    assert sender.published("t", b"2") is OK
    assert [client.next(Publish).payload for _ in range(2)] == [b"1", b"2"]


@pytest.mark.parametrize("client_id", ["+", "#", "a/b", "+/x"])
def test_an_identifier_that_is_no_level_of_a_topic_gets_nothing(server: PenstockServer, client_id: str) -> None:
    """A client that is called + would read everybody's."""
    odd, victim, sender = (connected(server.port, name) for name in (client_id, "victim", "sender"))
    assert odd.subscribe("t", 1) is ReasonCode.GRANTED_QOS_1
    for topic in ("$direct/victim/a", "$direct/a/b", "$direct/a/b/c", "$direct/x/x"):
        assert sender.published(topic, b"secret") is OK
    assert sender.published("t", b"end") is OK
    assert odd.next(Publish).payload == b"end"
    assert victim.next(Publish).payload == b"secret"


RULES = """
[[rule]]
users = ["boss"]
allow = ["publish"]
topics = ["$direct/#"]
max_qos = 1

[[rule]]
allow = ["publish", "retain", "subscribe"]
topics = ["#"]
"""


def test_direct_messages_need_a_rule_that_names_them(penstock_server: ServerFactory, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    passwords = write_passwords(tmp_path / "passwords", {"boss": "p", "dev": "p"})
    server = penstock_server(settings={**ON, "auth.permissions_file": rules, "auth.password_file": passwords})
    boss = connected(server.port, "b", "boss", "p")
    client = connected(server.port, "c", "dev", "p", expiry_s=3_600)
    spy = connected(server.port, "s", "dev", "p")
    for topic_filter in ("$direct/c/#", "$direct/#", "$direct/+/a", "$share/g/$direct/c/#", "$direct/c/a"):
        assert spy.subscribe(topic_filter, 1) is REFUSED
    assert spy.published("$direct/c/a", b"not allowed") is REFUSED
    assert spy.published("$delayed/0/$direct/c/a", b"not allowed") is REFUSED
    will = Device(server.port, "w")
    assert will.connect("dev", "p", will=Will("$direct/c/a", b"not allowed")).reason_code is REFUSED
    assert boss.published("$direct/c/a", b"1") is OK
    boss.publish("$direct/c/a", b"2", 2)
    assert boss.next(PubRec).reason_code is REFUSED  # max_qos
    assert client.next(Publish).payload == b"1"
    rules.write_text(RULES + "\n")
    reload(server)
    assert boss.published("$direct/c/a", b"3") is OK
    assert client.next(Publish).payload == b"3"
    client.close()
    assert boss.published("$direct/c/a", b"4") is OK
    back = connected(server.port, "c", "dev", "p", expiry_s=3_600)
    assert [back.next(Publish).payload for _ in range(3)] == [b"1", b"3", b"4"]  # it acknowledged none
    assert "taken away" not in server.log_text()


def test_direct_messages_stay_in_their_namespace(shared_server: SharedServers) -> None:
    server = shared_server(settings={**ON, **TENANT})
    ports = [int(url.partition("?")[0].rpartition(":")[2]) for url in server.urls if url.startswith("mqtt")]
    clients = [connected(port, "same") for port in ports]
    senders = [connected(port, "sender") for port in ports]
    for number, sender in enumerate(senders):
        assert sender.published("$direct/same/t", b"%d" % number) is OK
    for number, client in enumerate(clients):
        got = client.next(Publish)
        assert (got.topic_name, got.payload) == ("$direct/same/t", b"%d" % number)


def test_without_the_setting_a_client_gets_what_it_subscribes_to(penstock_server: ServerFactory) -> None:
    server = penstock_server()
    client, sender = connected(server.port, "c"), connected(server.port, "sender")
    assert client.subscribe("t", 1) is ReasonCode.GRANTED_QOS_1
    assert sender.published("$direct/c/t", b"not for it") is OK
    assert sender.published("t", b"1") is OK
    assert client.next(Publish).payload == b"1"
