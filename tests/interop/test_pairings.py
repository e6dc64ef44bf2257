"""Every client publishes to every client, at every QoS."""

import time
from typing import Any

import pytest

from tests.conftest import ONE_PROCESS_BY_DAY, SharedServers
from tests.interop.programs import PUBLISHERS, SUBSCRIBERS, TIMEOUT_S, Message, PahoClient, mark_ready, run
from tests.support.server_process import PenstockServer

pytestmark = ONE_PROCESS_BY_DAY

MESSAGES = 25


@pytest.fixture
def server(shared_server: SharedServers) -> PenstockServer:
    server = shared_server()
    mark_ready(server.port)
    return server


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_publisher_reaches_every_subscriber(server: PenstockServer, qos: int) -> None:
    subscribers = {name: subscribe(server.port, "pair/+", qos) for name, subscribe in SUBSCRIBERS.items()}
    sent: list[Message] = []
    for name, publish in PUBLISHERS.items():
        payloads = [f"{name} {i}".encode() for i in range(MESSAGES)]
        publish(server.port, f"pair/{name}", payloads, qos)
        sent += [(f"pair/{name}", payload) for payload in payloads]
    for name, subscriber in subscribers.items():
        found = subscriber.messages(len(sent))
        if qos == 0:  # nobody waits for an answer, so at several gateways one publisher may overtake another
            assert [each for topic in dict(sent) for each in found if each[0] == topic] == sent, name
        else:
            assert found == sent, name


@pytest.mark.parametrize(("published", "subscribed"), [(2, 1), (1, 2), (2, 0), (0, 2)])
def test_the_lower_qos_wins(server: PenstockServer, published: int, subscribed: int) -> None:
    subscribers = [PahoClient(server.port, version).connect().subscribe("lower", subscribed) for version in (4, 5)]
    PUBLISHERS["mosquitto-5"](server.port, "lower", [b"1"], published)
    for subscriber in subscribers:
        assert [message.qos for message in subscriber.raw_messages(1)] == [min(published, subscribed)]
        subscriber.leave()


@pytest.mark.parametrize("name", SUBSCRIBERS)
def test_wildcards(server: PenstockServer, name: str) -> None:
    subscribers = [
        SUBSCRIBERS[name](server.port, topic_filter, 1) for topic_filter in ("w/#", "w/+/c", "+/b/+", "w/ü/c")
    ]
    topics = ["w", "w/b", "w/b/c", "w/ü/c", "w/b/c/d", "x/b/c"]
    for topic in topics:
        run("mosquitto_pub", "-p", str(server.port), "-t", topic, "-m", "1", "-q", "1")
    expected = [topics[:5], ["w/b/c", "w/ü/c"], ["w/b/c", "x/b/c"], ["w/ü/c"]]
    for subscriber, matching in zip(subscribers, expected, strict=True):
        assert [topic for topic, _ in subscriber.messages(len(matching))] == matching


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_retained_messages(server: PenstockServer, publisher: str) -> None:
    publish = PUBLISHERS[publisher]
    publish(server.port, "kept/1", [b"old", b"new"], 1, retain=True)
    publish(server.port, "kept/2", [b"other"], 2, retain=True)
    found = {name: subscribe(server.port, "kept/#", 1) for name, subscribe in SUBSCRIBERS.items()}
    for name, subscriber in found.items():
        assert sorted(subscriber.messages(2)) == [("kept/1", b"new"), ("kept/2", b"other")], name
    publish(server.port, "kept/1", [b""], 1, retain=True)
    kept = run("mosquitto_sub", "-p", str(server.port), "-t", "kept/#", "-C", "1", "-F", "%t %p %r")
    assert kept == b"kept/2 other 1\n"


@pytest.mark.parametrize("name", SUBSCRIBERS)
def test_large_payloads(server: PenstockServer, name: str) -> None:
    subscriber = SUBSCRIBERS[name](server.port, "large/+", 2)
    payloads = [bytes((97 + i,)) * 100_000 for i in range(6)]
    for (publisher, publish), payload in zip(PUBLISHERS.items(), payloads, strict=True):
        publish(server.port, f"large/{publisher}", [payload], 2)
    assert subscriber.messages(6) == [
        (f"large/{publisher}", payload) for publisher, payload in zip(PUBLISHERS, payloads, strict=True)
    ]


@pytest.mark.catalogue("G25")
def test_binary_payloads_and_properties(server: PenstockServer) -> None:
    subscriber = PahoClient(server.port).connect().subscribe("binary", 1)
    publisher = PahoClient(server.port).connect()
    publisher.publish("binary", [bytes(range(256)), b""], 1)
    command = ["mosquitto_pub", "-p", str(server.port), "-V", "mqttv5", "-t", "binary", "-m", "x", "-q", "1"]
    properties = ("content-type", "text"), ("response-topic", "answer"), ("message-expiry-interval", "60")
    for name, value in properties:
        command += ["-D", "publish", name, value]
    run(*command, "-D", "publish", "user-property", "k", "v", "-D", "publish", "correlation-data", "c")
    messages = subscriber.raw_messages(3)
    assert [message.payload for message in messages[:2]] == [bytes(range(256)), b""]
    found: Any = messages[2].properties
    assert (found.ContentType, found.ResponseTopic, found.CorrelationData) == ("text", "answer", b"c")
    assert found.UserProperty == [("k", "v")]
    assert 1 <= found.MessageExpiryInterval <= 60
    for client in (subscriber, publisher):
        client.leave()


def test_thousands_in_flight(server: PenstockServer) -> None:
    subscriber = PahoClient(server.port).connect().subscribe("many", 2)
    payloads = [b"%d" % i for i in range(5_000)]
    publisher = PahoClient(server.port, 4)
    publisher.client.max_inflight_messages = 1_000
    publisher.connect()
    started = time.monotonic()
    publisher.publish("many", payloads, 2)
    publisher.leave()
    assert [payload for _, payload in subscriber.messages(5_000)] == payloads
    assert time.monotonic() - started < TIMEOUT_S
