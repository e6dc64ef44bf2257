"""Namespaces with real servers: what names them, how they are apart, and after a kill."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from gateway.mqtt.packets import Publish, QoS, Will
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import IN_ALL_TOPOLOGIES, ServerFactory, SharedServers
from tests.support.certificates import Certificate, authority, client_certificate, vouched_for
from tests.support.http_answers import HttpAnswers
from tests.support.mqtt_packet_client import Device, until, write_passwords, write_secret
from tests.support.server_process import PenstockServer

pytestmark = IN_ALL_TOPOLOGIES

OK, REFUSED, BAD = ReasonCode.SUCCESS, ReasonCode.NOT_AUTHORIZED, ReasonCode.BAD_USER_NAME_OR_PASSWORD
SECRET = "a secret of more than thirty-two bytes, or sixty-four as some want them"
EVERYBODY = ("", "acme", "beta")
LISTEN = ",".join(("mqtt://127.0.0.1:0", *(f"mqtt://127.0.0.1:0?namespace={name}" for name in EVERYBODY[1:])))
NUMBERS = itertools.count()


def port(server: PenstockServer, namespace: str = "") -> int:
    """Of the listener for a namespace."""
    end = f"?namespace={namespace}" if namespace else ""
    url = next(url for url in server.urls if url.startswith("mqtt://") and url.partition("?")[1:] == end_of(end))
    return int(url.partition("?")[0].rpartition(":")[2])


def end_of(query: str) -> tuple[str, str]:
    return ("?", query[1:]) if query else ("", "")


def connected(server: PenstockServer, client_id: str, namespace: str = "", *who: str, **fields: Any) -> Device:
    device = Device(port(server, namespace), client_id)
    assert device.connect(*who, **fields).reason_code is OK
    return device


@pytest.fixture
def server(shared_server: SharedServers) -> PenstockServer:
    return shared_server(settings={"gateway.listen": LISTEN, "gateway.sys_interval_s": 1})


def test_the_same_names_in_three_namespaces(server: PenstockServer) -> None:
    topic = f"line/{next(NUMBERS)}"
    readers = {name: connected(server, "same", name) for name in EVERYBODY}
    for reader in readers.values():
        for topic_filter in (topic, "line/#", "+/+", "#", f"$share/g/{topic}"):
            assert reader.subscribe(topic_filter, 1) in (ReasonCode.GRANTED_QOS_1,)
    for name in EVERYBODY:
        writer = connected(server, "writer", name)
        assert writer.published(topic, f"for {name}".encode(), retain=True) is OK
        writer.publish(f"$delayed/0/{topic}", f"late {name}".encode(), 1)
        writer.publish(topic, b"last", 0)
    for name, reader in readers.items():
        found = set()
        while b"last" not in found or f"late {name}".encode() not in found:
            message = reader.next(Publish)
            assert message.topic_name == topic
            found.add(message.payload)
        assert found == {b"last", f"for {name}".encode(), f"late {name}".encode()}
    for name in EVERYBODY:
        newcomer = connected(server, "newcomer", name)
        newcomer.subscribe(topic)
        retained = newcomer.next(Publish)
        assert (retained.topic_name, retained.payload, retained.retain) == (topic, f"for {name}".encode(), True)


def test_wills_come_to_their_own(server: PenstockServer) -> None:
    topic = f"wills/{next(NUMBERS)}"
    watchers = {name: connected(server, f"watcher {topic}", name) for name in EVERYBODY}
    for watcher in watchers.values():
        watcher.subscribe("wills/#")
    for name in EVERYBODY:
        connected(server, "dies", name, will=Will(topic, name.encode(), QoS.AT_LEAST_ONCE)).close()
    for name, watcher in watchers.items():
        will = watcher.next(Publish)
        assert (will.topic_name, will.payload) == (topic, name.encode())


def test_sys_topics_are_a_tenants_own(server: PenstockServer) -> None:
    client = connected(server, "sys", "beta")
    client.subscribe("$SYS/#")
    first = client.next(Publish)
    assert first.topic_name.startswith("$SYS/broker/")


@pytest.mark.parametrize("namespace", ["", "beta"])
def test_a_tenant_cannot_name_another(server: PenstockServer, namespace: str) -> None:
    number = next(NUMBERS)
    victim = connected(server, f"victim-{number}", "acme", session_expiry_interval=60)
    victim.subscribe(f"v/{number}/#", 1)
    thief = connected(server, f"thief-{number}", namespace)
    for topic_filter in ("$ns:acme/#", "$ns:acme/+", "$share/g/$ns:acme/#", "$share/$ns:acme:g/v", "$ns:acme$dead/#"):
        assert thief.subscribe(topic_filter, 1) is REFUSED
    for topic in (f"$ns:acme/v/{number}", f"$delayed/0/$ns:acme/v/{number}", f"$ns:acme$dead/{number}"):
        assert thief.published(topic, b"forged") is REFUSED
    for client_id in (f"$ns:acme/victim-{number}", "$ns:"):
        impostor = Device(port(server, namespace), client_id)
        assert impostor.connect().reason_code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    dying = Device(port(server, namespace), "dying")
    assert dying.connect(will=Will(f"$ns:acme/v/{number}", b"forged")).reason_code is REFUSED
    namesake = connected(server, f"victim-{number}", namespace, clean_start=False)
    assert connected(server, "w", "acme").published(f"v/{number}/x", b"own") is OK
    assert victim.next(Publish).payload == b"own"
    assert thief.published("a", b"") is OK  # and had nothing before
    assert namesake.published("a", b"") is OK


def test_sessions_of_one_name_go_on_after_a_kill(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={"gateway.listen": LISTEN, "wire.heartbeat_ms": 100, "wire.lease_ms": 600})
    for name in EVERYBODY:
        device = connected(server, "d", name, session_expiry_interval=600)
        assert device.subscribe("a/#", 1) is ReasonCode.GRANTED_QOS_1
        device.close()
    for name in EVERYBODY:
        writer = connected(server, "w", name)
        assert writer.published("a/b", name.encode()) is OK
        assert writer.published("$delayed/1/a/c", b"late " + name.encode()) is OK
    server.restart()
    for name in EVERYBODY:
        device = connected(server, "d", name, session_expiry_interval=600, clean_start=False)
        found = [device.next(Publish) for _ in range(2)]
        assert sorted((each.topic_name, each.payload) for each in found) == [
            ("a/b", name.encode()),
            ("a/c", b"late " + name.encode()),
        ]


# --- what names a namespace


@pytest.mark.topologies("one process")
def test_a_users_name_names_it(penstock_server: ServerFactory, tmp_path: Path) -> None:
    users = {"acme/alice": "a1", "beta/alice": "b1", "alice": "d1"}
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\nallow = ["publish", "subscribe"]\ntopics = ["users/%u/#"]\n'
        '[[rule]]\nnamespaces = ["acme"]\nallow = ["publish"]\ntopics = ["only/acme"]\n'
        '[[rule]]\nnamespaces = [""]\nallow = ["publish"]\ntopics = ["only/default"]\n'
    )
    files = {"auth.password_file": write_passwords(tmp_path / "passwords", users), "auth.permissions_file": rules}
    settings = {"gateway.listen": LISTEN, "auth.namespace_separator": "/", "quota.user_connections": 2, **files}
    server = penstock_server(settings=settings)
    readers = {}
    for login, password in users.items():
        readers[login] = connected(server, "c", "", login, password)
        assert readers[login].subscribe("users/alice/#", 1) is ReasonCode.GRANTED_QOS_1
        assert readers[login].subscribe("users/acme/#", 1) is REFUSED
    at_listener = connected(
        server, "d", "acme", "alice", "a1"
    )  # the listener's users are looked up by their whole name
    assert at_listener.published("users/alice/1", b"acme") is OK
    assert at_listener.published("only/acme", b"") is OK
    assert at_listener.published("only/default", b"") is REFUSED
    assert readers["alice"].published("only/default", b"") is OK
    assert readers["alice"].published("only/acme", b"") is REFUSED
    assert readers["acme/alice"].next(Publish).payload == b"acme"
    third = Device(port(server), "e")
    assert third.connect("acme/alice", "a1").reason_code is ReasonCode.QUOTA_EXCEEDED  # the others' are counted apart
    connected(server, "e", "", "beta/alice", "b1")
    for name, login, password in (("acme", "alice", "b1"), ("acme", "alice", "d1"), ("beta", "alice", "a1")):
        assert Device(port(server, name), "x").connect(login, password).reason_code is BAD
    assert Device(port(server, "acme"), "x").connect("beta/alice", "b1").reason_code is REFUSED
    assert "the listener names the namespace acme, its user name beta" in server.log_text()


@pytest.mark.topologies("one process")
def test_a_token_names_it(penstock_server: ServerFactory, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    write_secret(secret, SECRET)
    settings = {"gateway.listen": LISTEN, "auth.jwt_secret_file": secret, "auth.jwt_namespace_claim": "tenant"}
    server = penstock_server(settings=settings)

    def token(**claims: Any) -> str:
        return jwt.encode({"sub": "alice", "exp": 4_000_000_000, **claims}, SECRET, "HS256")

    reader = connected(server, "r", "acme", "x", token(tenant="acme"))
    reader.subscribe("#")
    other = connected(server, "r", "", "x", token())
    other.subscribe("#")
    for who in (token(tenant="beta"), token(tenant="acme")):
        assert connected(server, "w", "", "x", who).published("a", b"1") is OK
    assert reader.next(Publish).topic_name == "a"
    other.publish("b")
    assert other.next(Publish).topic_name == "b"
    for bad in ("ACME", "", 7, ["acme"], "a/b"):
        assert Device(port(server), "x").connect("x", token(tenant=bad)).reason_code is BAD
    assert Device(port(server, "beta"), "x").connect("x", token(tenant="acme")).reason_code is REFUSED


@pytest.fixture
def hook() -> Iterator[HttpAnswers]:
    def respond(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/connect":
            return 200, {"result": "allow", "namespace": body["username"] if body["username"] != "none" else ""}
        return 200, {"result": "allow" if body["topic"] == f"of-{body.get('namespace', '')}" else "deny"}

    answers = HttpAnswers(respond)
    yield answers
    answers.close()


@pytest.mark.topologies("one process")
def test_a_hook_names_it(penstock_server: ServerFactory, hook: HttpAnswers) -> None:
    urls = {"auth.http_connect_url": f"{hook.url}/connect", "auth.http_permission_url": f"{hook.url}/may"}
    server = penstock_server(settings={"gateway.listen": LISTEN, **urls})
    acme, default = connected(server, "c", "", "acme", "p"), connected(server, "c", "", "none", "p")
    assert acme.published("of-acme", b"") is OK
    assert acme.published("of-", b"") is REFUSED
    assert default.published("of-", b"") is OK
    assert Device(port(server, "beta"), "c").connect("acme", "p").reason_code is REFUSED
    assert Device(port(server), "c").connect("No Name", "p").reason_code is ReasonCode.SERVER_UNAVAILABLE


@pytest.mark.topologies("one process")
def test_a_certificate_names_it(penstock_server: ServerFactory, tmp_path: Path) -> None:
    ours = authority(tmp_path, "ours")
    door = vouched_for(tmp_path, "door", "DNS:localhost", ours)
    settings = {
        "gateway.listen": f"mqtts://127.0.0.1:0,{LISTEN}",
        "gateway.tls_certificate": door.certificate,
        "gateway.tls_key": door.key,
        "gateway.tls_client_certificates": "optional",
        "gateway.tls_client_ca_file": ours.certificate,
        "gateway.tls_namespace": "o",
        "auth.client_certificates": "true",
        "auth.allow_anonymous": "true",
    }
    server = penstock_server(settings=settings)
    reader = connected(server, "r", "acme")
    reader.subscribe("#")
    shown = client_certificate(tmp_path, "pump-7", ours, organization="acme")
    assert published_by_tls(server, shown, ours) == "Success"
    assert reader.next(Publish).payload == b"by tls"
    nowhere = client_certificate(tmp_path, "pump-8", ours, organization="Acme Ltd")
    assert published_by_tls(server, nowhere, ours) == "Not authorized"


def published_by_tls(server: PenstockServer, shown: Certificate, ours: Certificate) -> str:
    """What the CONNACK says."""
    url = next(url for url in server.urls if url.startswith("mqtts://"))
    context = ssl.create_default_context(cafile=str(ours.certificate))
    context.check_hostname = False
    context.load_cert_chain(shown.certificate, shown.key)
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.tls_set_context(context)
    said: list[str] = []
    client.on_connect = lambda *arguments: said.append(str(arguments[3]))
    client.connect("127.0.0.1", int(url.rpartition(":")[2]))
    client.loop_start()
    until(lambda: bool(said))
    if said[0] == "Success":
        client.publish("a", b"by tls", 1).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()
    return said[0]
