"""Messages are judged by the permissions of the time at which they are sent, not only of that of the subscription."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from gateway.auth.access import AccessParts, Allowed, Question
from gateway.auth.permissions import parse_permissions
from gateway.mqtt.packets import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, Client
from tests.support.mqtt_packet_client import access_of
from tests.unit.conftest import StartBench

ALL = '[[rule]]\nallow = ["publish", "retain", "subscribe"]\ntopics = ["#"]\n'
NO_SECRETS = '[[rule]]\ndeny = ["subscribe"]\ntopics = ["secret/#"]\n' + ALL


def parts(rules: str) -> AccessParts:
    return AccessParts(permissions=parse_permissions(tomllib.loads(rules)))


@pytest.fixture
def bench(start_bench: StartBench) -> Bench:
    return start_bench(access=access_of(parts(ALL)))


def reload(bench: Bench, rules: str = NO_SECRETS) -> None:
    assert bench.access is not None
    bench.access.replace(parts(rules))
    bench.broker.judge_again()
    bench.run()


def topics(client: Client) -> list[str]:
    return [packet.topic_name for packet in client.received() if isinstance(packet, Publish)]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_back_first", [False, True])
def test_in_flight_messages_are_not_sent_again_once_reading_is_forbidden(
    bench: Bench, qos: int, is_back_first: bool
) -> None:
    client = bench.durable("d")
    client.subscribe("secret/#", "open", qos=qos)
    publisher = bench.connect("p")
    for topic in ("secret/1", "open", "secret/2"):
        publisher.publish_whole(topic, b"1", qos=qos)
    assert topics(client) == ["secret/1", "open", "secret/2"]
    client.lose()
    publisher.publish_whole("secret/3", b"queued", qos=qos)
    if is_back_first:
        reload(bench)
        client = bench.durable("d", receive_maximum=1)
    else:  # what is put off when the reload comes
        client = bench.durable("d", receive_maximum=1)
        assert topics(client) == ["secret/1"]
        reload(bench)
        client.send(PubAck(1) if qos == 1 else PubRec(1))
        client.send(*[PubComp(1)] * (qos == 2))
    seen = []
    for _ in range(10):
        for packet in client.received():
            if isinstance(packet, Publish):
                seen.append(packet.topic_name)
                client.send(PubAck(packet.packet_id or 0) if qos == 1 else PubRec(packet.packet_id or 0))
            elif isinstance(packet, PubRel):
                client.send(PubComp(packet.packet_id))
    assert seen == ["open"]
    publisher.publish_whole("open", b"2", qos=1)
    message = client.one(Publish)
    client.send(PubAck(message.packet_id or 0))
    client.lose()
    client = bench.durable("d")
    assert client.received() == []
    assert bench.broker.guard.refused["withheld"] >= 1
    assert bench.broker.guard.refused["taken_away"] == 1


def test_a_message_that_the_client_has_is_released(bench: Bench) -> None:
    """It said PUBREC; PUBREL has nothing in it that it may not read."""
    client = bench.durable("d")
    client.subscribe("secret/#", qos=2)
    bench.connect("p").publish_whole("secret/1", qos=2)
    client.send(PubRec(client.first(Publish).packet_id or 0))
    client.lose()
    reload(bench)
    client = bench.durable("d")
    released = client.one(PubRel)
    client.send(PubComp(released.packet_id))
    client.lose()
    assert bench.durable("d").received() == []


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("is_back_first", [False, True])
def test_retained_messages_that_were_not_sent_so_far(bench: Bench, kept: bool, is_back_first: bool) -> None:
    publisher = bench.connect("p")
    for i in range(600):
        publisher.publish(f"secret/{i}", b"1", qos=1, retain=True)
    fields: dict[str, Any] = {"session_expiry_interval": 3_600, "clean_start": False} if kept else {}
    client = bench.connect("d", receive_maximum=10, **fields)
    client.subscribe("secret/#", qos=1)
    client.subscribe("open", qos=1)
    sent = [packet for packet in client.received() if isinstance(packet, Publish)]
    assert len(sent) == 10
    if is_back_first and kept:
        client.lose()
        reload(bench)
        client = bench.connect("d", receive_maximum=10, **fields)
    else:
        reload(bench)
        client.send(*[PubAck(packet.packet_id or 0) for packet in sent])
    bench.pass_time()
    assert topics(client) == []
    publisher.publish("open", b"2", qos=1)
    assert topics(client) == ["open"]


def test_in_flight_messages_of_an_ended_subscription_are_sent_again_if_readable(bench: Bench) -> None:
    client = bench.durable("d")
    client.subscribe("secret/#", "open", qos=1)
    publisher = bench.connect("p")
    publisher.publish("secret/1", qos=1)
    publisher.publish("open", qos=1)
    assert topics(client) == ["secret/1", "open"]
    client.send(Unsubscribe(9, ("secret/#", "open")))
    client.lose()
    reload(bench)
    client = bench.durable("d")
    assert topics(client) == ["open"]


def test_a_shared_subscription(bench: Bench) -> None:
    """What was its own at QoS 2, and what its group has for it."""
    client = bench.durable("d")
    client.subscribe("$share/g/secret/#", "$share/g/open", qos=2)
    publisher = bench.connect("p")
    publisher.publish_whole("secret/1", qos=2)
    publisher.publish_whole("open", qos=2)
    assert sorted(topics(client)) == ["open", "secret/1"]
    client.lose()
    publisher.publish_whole("secret/2", qos=2)
    reload(bench)
    assert topics(bench.durable("d")) == ["open"]


class Slow:
    """Asked about what the rules leave open; answers when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Allowed] = []

    def known(self, _: Question) -> int | None:
        return None

    def ask(self, _: Question, then: Allowed) -> None:
        self.waiting.append(then)

    def answer(self, allowed: int) -> None:
        waiting, self.waiting = self.waiting, []
        for then in waiting:
            then(allowed)


@pytest.mark.parametrize("secret", ["secret/#", "$share/g/secret/#"])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_reload_between_judging_and_taking_effect(start_bench: StartBench, secret: str, is_back: bool) -> None:
    """One subscription waits for an answer from elsewhere; what was allowed of the others is not any more."""
    slow = Slow()
    allowed = '[[rule]]\nallow = ["publish", "retain", "subscribe"]\ntopics = ["secret/#", "open"]\n'
    denied = allowed.replace('"secret/#", ', "") + '[[rule]]\ndeny = ["subscribe"]\ntopics = ["secret/#"]\n'
    bench = start_bench(access=access_of(replace(parts(allowed), source=slow)))
    publisher = bench.connect("p")
    publisher.publish("secret/kept", b"1", retain=True)
    client = bench.durable("d")
    client.send(Subscribe(7, tuple(SubscriptionRequest(each, QoS(1)) for each in ("slow", secret))))
    if is_back:
        slow.answer(1)
        bench.run()
        client.received()
        client.lose()
        client = bench.durable("d")
    assert bench.access is not None
    bench.access.replace(replace(parts(denied + '[[rule]]\nallow = ["publish"]\ntopics = ["#"]\n'), source=slow))
    bench.broker.judge_again()
    bench.run()
    for _ in range(3):
        slow.answer(1)
        bench.run()
    received = client.received()
    if not is_back:
        assert [each.reason_codes for each in received if isinstance(each, SubAck)] == [(1, ReasonCode.NOT_AUTHORIZED)]
    publisher.publish("secret/1", b"1", qos=1)
    slow.answer(1)
    bench.run()
    assert not [each for each in (*received, *client.received()) if isinstance(each, Publish)]
    assert bench.broker.guard.refused["taken_away"] == 1


def test_a_client_that_may_do_everything_is_not_judged(start_bench: StartBench) -> None:
    bench = start_bench()
    client = bench.durable("d")
    client.subscribe("a", qos=1)
    bench.connect("p").publish("a", qos=1)
    client.lose()
    assert topics(bench.durable("d")) == ["a"]
    assert not bench.broker.deliverer._exchange._judged
