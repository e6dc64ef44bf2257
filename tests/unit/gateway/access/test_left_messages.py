"""Wills and delayed messages are judged when they are sent: by a gateway, in this process and over the wire."""

from __future__ import annotations

import time
import tomllib
from typing import Any

import pytest

from gateway.auth.access import AccessParts
from gateway.auth.identity import Certificates
from gateway.auth.permissions import parse_permissions
from gateway.mqtt.packets import Will
from lightqueue.queues.left_messages import ANSWER_S, AT_A_TIME, RETRY_S
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, decode_attributes, encode_attribute
from store.state.changes import BanKind, BanSet, SessionClosed, SessionOpened, WillState, encode_change
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_packet_client import access_of
from tests.unit.conftest import StartBench

NO_GONE = '[[rule]]\nusers = ["a"]\ndeny = ["publish"]\ntopics = ["gone/#"]\n'
ALL = '[[rule]]\nallow = ["publish", "retain", "subscribe"]\ntopics = ["#"]\n'


def parts(text: str) -> AccessParts:
    permissions = parse_permissions(tomllib.loads(text))
    return AccessParts((Certificates(),), permissions=permissions, allow_anonymous=True)


@pytest.fixture
def bench(start_bench: StartBench) -> Bench:
    return start_bench(access=access_of(parts(ALL)))


def reload(bench: Bench, text: str = NO_GONE + ALL) -> None:
    assert bench.access is not None
    bench.access.replace(parts(text))
    bench.broker.judge_again()
    bench.run()


def sent(bench: Bench, seconds: int = 0) -> list[bytes]:
    """Payloads that got to a topic, after some time."""
    for _ in range(3):
        bench.pass_time(seconds)
        bench.store.tick()
        bench.run()
        seconds = 0
    return [record.payload for record in bench.stored() if not record.flags & RecordFlag.DELAYED]


WILL: dict[str, Any] = {"will": Will("gone/a", b"will", retain=True)}


@pytest.mark.parametrize("is_reloaded", [False, True])
@pytest.mark.parametrize("fields", [{}, {"session_expiry_interval": 3_600}], ids=["clean", "durable"])
def test_a_will_of_a_connection_that_is_lost(bench: Bench, is_reloaded: bool, fields: dict[str, Any]) -> None:
    client = bench.connect("d", user="a", **WILL, **fields)
    if is_reloaded:
        reload(bench)
    client.lose()
    assert sent(bench) == ([] if is_reloaded else [b"will"])
    assert bench.broker.guard.refused["left"] == is_reloaded
    assert len(bench.store.delayed) == 0 or not bench.store.delayed.due(1 << 50, 10)


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_a_will_that_is_delayed(bench: Bench, is_reloaded: bool) -> None:
    will = Will("gone/a", b"will")
    will.properties.will_delay_interval = 10
    bench.connect("d", user="a", will=will, session_expiry_interval=3_600).lose()
    if is_reloaded:
        reload(bench)
    assert sent(bench) == []
    assert sent(bench, 11) == ([] if is_reloaded else [b"will"])


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_a_will_of_a_session_that_is_taken_over_or_ends(bench: Bench, is_reloaded: bool) -> None:
    client = bench.connect("d", user="a", **WILL, session_expiry_interval=3_600)
    if is_reloaded:
        reload(bench)
    bench.connect("d", user="a")
    assert client.is_closed
    assert sent(bench) == ([] if is_reloaded else [b"will"])


@pytest.mark.parametrize("is_reloaded", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_delayed_message(bench: Bench, is_reloaded: bool, restarts: bool) -> None:
    client = bench.connect("d", user="a")
    client.publish_whole("$delayed/10/gone/a", b"late", qos=1)
    client.publish_whole("$delayed/10/open", b"other", qos=2)
    bench.connect("e", user="b").publish_whole("$delayed/10/gone/a", b"of b", qos=1)
    if is_reloaded:
        reload(bench)
    if restarts:
        bench.restart()
    assert sent(bench) == []
    assert sent(bench, 11) == ([b"other", b"of b"] if is_reloaded else [b"late", b"other", b"of b"])
    assert all(
        Attribute.LEFT_BY not in decode_attributes(record.attributes)
        for record in bench.stored()
        if not record.flags & RecordFlag.DELAYED
    )


class Hanging:
    """A judge that does not answer."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def ask(self, *question: Any) -> bool:
        self.asked.append(question)
        return True


class Unasked:
    """A judge that nobody may ask."""

    def ask(self, messages: Any, then: Any) -> bool:
        pytest.fail("asked")


def step(bench: Bench, now_s: float) -> None:
    """What is due is looked at until there is nothing more to do at once."""
    while bench.store.dispatching.step(bench.store.now_ms(), now_s):
        pass
    bench.run()


def test_wills_and_delayed_messages_wait_until_a_gateway_has_judged_them(bench: Bench) -> None:
    """And what need not be judged does not wait behind it."""
    client = bench.connect("d", user="a")
    client.publish_whole("$delayed/10/gone/a", b"late", qos=1)
    bench.broker.journal.message("open", b"of nobody", delay_s=11)
    bench.run()
    dispatching = bench.store.dispatching
    dispatching.left.judged_by(None)
    assert sent(bench, 12) == [b"of nobody"]
    assert len(dispatching.left) == 1
    dispatching.left.judged_by(bench.hub.judges)
    reload(bench)
    step(bench, 1e9)
    step(bench, 1e9)
    assert sent(bench) == [b"of nobody"]
    assert (len(dispatching.left), dispatching.left.refused) == (0, 1)


@pytest.mark.parametrize("restarts", [False, True])
def test_unanswered_wills_and_delayed_messages_are_asked_about_again(bench: Bench, restarts: bool) -> None:
    """Whether a gateway gives no answer, or the process is killed meanwhile."""
    bench.connect("d", user="a").publish_whole("$delayed/10/gone/a", b"late", qos=1)
    hanging = Hanging()
    bench.store.dispatching.left.judged_by(hanging)
    assert sent(bench, 11) == []
    if restarts:
        bench.restart()
    else:
        bench.store.dispatching.left.judged_by(bench.hub.judges)
        step(bench, time.monotonic() + ANSWER_S)
        step(bench, time.monotonic() + ANSWER_S + RETRY_S)
        hanging.asked[0][1]([True])  # too late to count
    assert sent(bench) == [b"late"]
    assert sent(bench, 100) == [b"late"]


def test_a_delayed_message_that_is_cancelled_while_it_waits(bench: Bench) -> None:
    bench.connect("d", user="a").publish_whole("$delayed/10/gone/a", b"late", qos=1)
    bench.store.dispatching.left.judged_by(None)
    assert sent(bench, 11) == []
    (pending,) = bench.store.delayed.page(0, 0, 10)
    assert bench.store.dispatching.cancel(pending.due_ms, pending.first_offset)
    bench.store.dispatching.left.judged_by(Unasked())
    step(bench, 1e9)
    assert sent(bench) == []
    assert len(bench.store.dispatching.left) == 0


@pytest.mark.parametrize("kind", ["user", "client_id"])
def test_wills_and_delayed_messages_of_a_banned_client_are_not_sent(bench: Bench, kind: BanKind) -> None:
    bench.connect("d", user="a").publish_whole("$delayed/10/open", b"late", qos=1)
    bench.connect("e", user="b").publish_whole("$delayed/10/open", b"of b", qos=1)
    bench.hub.bans.set(BanSet(kind, {"user": "a", "client_id": "d"}[kind], reason="r", set_by="op"))
    bench.run()
    assert sent(bench, 11) == [b"of b"]


def test_a_banned_client_that_is_cut_off_leaves_no_will(bench: Bench) -> None:
    client = bench.connect("d", user="a", **WILL)
    bench.hub.bans.set(BanSet("client_id", "d", reason="r", set_by="op"))
    bench.run()
    assert client.is_closed
    assert sent(bench) == []


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_in_a_namespace(bench: Bench, is_reloaded: bool) -> None:
    """Rules, users and client identifiers are judged by the names that clients know."""
    client = bench.connect("d", user="a", namespace="acme", **WILL)
    client.publish_whole("$delayed/10/gone/a", b"late", qos=1)
    client.publish_whole("$delayed/10/mine/d", b"mine", qos=1)
    mine = '[[rule]]\nallow = ["publish", "retain"]\ntopics = ["mine/%c", "open"]\n'
    reload(bench, (NO_GONE + mine) if is_reloaded else ALL)
    client.lose()
    assert sent(bench, 11) == ([b"mine"] if is_reloaded else [b"will", b"late", b"mine"])
    assert {record.topic.split(b"/")[0] for record in bench.stored()} == {b"$ns:acme"}


def test_wills_and_delayed_messages_of_older_gateways_are_sent(bench: Bench) -> None:
    """Records of an older gateway do not say who left them."""
    batch = RecordBatch()
    will = WillState("gone/will", b"will", 1, False, b"", 0)
    batch.append(*encode_change(SessionOpened("old", False, 60, will, user="a")))
    bench.store.append(batch)
    due = encode_attribute(Attribute.DUE_MS, (bench.store.now_ms() + 10_000).to_bytes(8, "little"))
    batch = RecordBatch()
    batch.append(
        RecordType.MESSAGE, b"late", topic=b"gone/a", client_id=b"old", attributes=due, flags=RecordFlag.DELAYED
    )
    batch.append(*encode_change(SessionClosed("old", 60, True)))
    bench.store.append(batch)
    reload(bench)
    assert sent(bench, 11) == [b"will", b"late"]


def test_many_at_once(bench: Bench) -> None:
    """More than one question has, in the order in which they are due; some of them not allowed."""
    client = bench.connect("d", user="a")
    for number in range(3 * AT_A_TIME):
        client.publish(f"$delayed/10/{'gone' if number % 3 == 0 else 'open'}/a", b"%d" % number, qos=0)
    reload(bench)
    expected = [b"%d" % number for number in range(3 * AT_A_TIME) if number % 3]
    found = sent(bench, 11)
    for _ in range(10):
        found = found if len(found) == len(expected) else sent(bench)
    assert found == expected
    assert bench.broker.guard.refused["left"] == AT_A_TIME


def test_without_authentication_nothing_is_asked(start_bench: StartBench) -> None:
    bench = start_bench()
    bench.store.dispatching.left.judged_by(Unasked())
    client = bench.connect("d", **WILL)
    client.publish_whole("$delayed/1/gone/a", b"late", qos=1)
    client.lose()
    assert sent(bench) == [b"will"]
    assert sent(bench, 2) == [b"will", b"late"]
