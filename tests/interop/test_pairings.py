"""Every client publishes to every client, at every QoS."""

import time
from typing import Any

import pytest

from tests.conftest import TOGETHER_AND_APART, ServerFactory
from tests.interop.programs import PUBLISHERS, SUBSCRIBERS, TIMEOUT_S, Message, PahoClient, mark_ready, run

pytestmark = [pytest.mark.interop, TOGETHER_AND_APART]

MESSAGES = 25


@pytest.fixture
def port(penstock_server: ServerFactory) -> int:
    server = penstock_server()
    mark_ready(server.port)
    return server.port


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_publisher_reaches_every_subscriber(port: int, qos: int) -> None:
    subscribers = {name: subscribe(port, "pair/+", qos) for name, subscribe in SUBSCRIBERS.items()}
    sent: list[Message] = []
    for name, publish in PUBLISHERS.items():
        payloads = [f"{name} {i}".encode() for i in range(MESSAGES)]
        publish(port, f"pair/{name}", payloads, qos)
        sent += [(f"pair/{name}", payload) for payload in payloads]
    for name, subscriber in subscribers.items():
        found = subscriber.messages(len(sent))
        if qos == 0:  # nobody waits for an answer, so at several gateways one publisher may overtake another
            assert [each for topic in dict(sent) for each in found if each[0] == topic] == sent, name
        else:
            assert found == sent, name


@pytest.mark.parametrize(("published", "subscribed"), [(2, 1), (1, 2), (2, 0), (0, 2)])
def test_the_lower_qos_wins(port: int, published: int, subscribed: int) -> None:
    subscribers = [PahoClient(port, version).connect().subscribe("lower", subscribed) for version in (4, 5)]
    PUBLISHERS["mosquitto-5"](port, "lower", [b"1"], published)
    for subscriber in subscribers:
        assert [message.qos for message in subscriber.raw_messages(1)] == [min(published, subscribed)]
        subscriber.leave()


@pytest.mark.parametrize("name", SUBSCRIBERS)
def test_wildcards(port: int, name: str) -> None:
    subscribers = [SUBSCRIBERS[name](port, topic_filter, 1) for topic_filter in ("w/#", "w/+/c", "+/b/+", "w/ü/c")]
    topics = ["w", "w/b", "w/b/c", "w/ü/c", "w/b/c/d", "x/b/c"]
    for topic in topics:
        run("mosquitto_pub", "-p", str(port), "-t", topic, "-m", "1", "-q", "1")
    expected = [topics[:5], ["w/b/c", "w/ü/c"], ["w/b/c", "x/b/c"], ["w/ü/c"]]
    for subscriber, matching in zip(subscribers, expected, strict=True):
        assert [topic for topic, _ in subscriber.messages(len(matching))] == matching


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_retained_messages(port: int, publisher: str) -> None:
    publish = PUBLISHERS[publisher]
    publish(port, "kept/1", [b"old", b"new"], 1, retain=True)
    publish(port, "kept/2", [b"other"], 2, retain=True)
    found = {name: subscribe(port, "kept/#", 1) for name, subscribe in SUBSCRIBERS.items()}
    for name, subscriber in found.items():
        assert sorted(subscriber.messages(2)) == [("kept/1", b"new"), ("kept/2", b"other")], name
    publish(port, "kept/1", [b""], 1, retain=True)
    kept = run("mosquitto_sub", "-p", str(port), "-t", "kept/#", "-C", "1", "-F", "%t %p %r")
    assert kept == b"kept/2 other 1\n"


@pytest.mark.parametrize("name", SUBSCRIBERS)
def test_large_payloads(port: int, name: str) -> None:
    subscriber = SUBSCRIBERS[name](port, "large/+", 2)
    payloads = [bytes((97 + i,)) * 100_000 for i in range(6)]
    for (publisher, publish), payload in zip(PUBLISHERS.items(), payloads, strict=True):
        publish(port, f"large/{publisher}", [payload], 2)
    assert subscriber.messages(6) == [
        (f"large/{publisher}", payload) for publisher, payload in zip(PUBLISHERS, payloads, strict=True)
    ]


@pytest.mark.catalogue("G25")
def test_binary_payloads_and_properties(port: int) -> None:
    subscriber = PahoClient(port).connect().subscribe("binary", 1)
    publisher = PahoClient(port).connect()
    publisher.publish("binary", [bytes(range(256)), b""], 1)
    command = ["mosquitto_pub", "-p", str(port), "-V", "mqttv5", "-t", "binary", "-m", "x", "-q", "1"]
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


def test_thousands_in_flight(port: int) -> None:
    subscriber = PahoClient(port).connect().subscribe("many", 2)
    payloads = [b"%d" % i for i in range(5_000)]
    publisher = PahoClient(port, 4)
    publisher.client.max_inflight_messages = 1_000
    publisher.connect()
    started = time.monotonic()
    publisher.publish("many", payloads, 2)
    publisher.leave()
    assert [payload for _, payload in subscriber.messages(5_000)] == payloads
    assert time.monotonic() - started < TIMEOUT_S
