"""Replay: a subscription that asks for what was stored before it, then goes on live."""

import time
from datetime import UTC, datetime

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import (
    PubAck,
    Publish,
    QoS,
    RetainHandling,
    SubAck,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from gateway.mqtt.reason_codes import ReasonCode
from store.files.segment import segment_paths
from store.records.records import RECORD_HEADER_BYTES
from tests.support.mqtt_bench import Bench, Client, acknowledgement, connect_packet
from tests.support.stores import commit_log, flip, read_all


def replaying(client: Client, topic_filter: str, start: str, qos: int = 1) -> SubAck:
    return client.subscribe(topic_filter, qos=qos, user_properties=(("penstock-from", start),))


@pytest.fixture
def history(bench: Bench) -> Bench:
    """Ten messages, of which the last five are two hours younger."""
    publisher = bench.connect("b")
    for i in range(10):
        if i == 5:
            bench.pass_time(7_200)
            publisher = bench.connect("b")
        publisher.publish("line/7", b"%d" % i, qos=1)
    bench.pass_time(1)
    return bench


ALL = [b"%d" % i for i in range(10)]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", ALL),
        ("-1h", ALL[5:]),
        ("-60m", ALL[5:]),
        ("-3h", ALL),
        ("-1d", ALL),
        ("-0s", []),
        ("3", ALL[3:]),
        ("@3", ALL[3:]),
        ("0", ALL),
        ("10", []),
        ("99999", []),
    ],
)
@pytest.mark.parametrize("topic_filter", ["line/7", "line/#"])
def test_replay(history: Bench, start: str, expected: list[bytes], topic_filter: str) -> None:
    client = history.connect("a")
    assert replaying(client, topic_filter, start).reason_codes == (1,)
    assert client.take() == expected
    history.connect("b").publish("line/7", b"live", qos=1)
    assert client.take() == [b"live"]


def test_replay_from_a_moment(history: Bench) -> None:
    moment = datetime.fromtimestamp(time.time() - 3_600, UTC)
    for text in (moment.isoformat(), moment.strftime("%Y-%m-%dT%H:%M:%SZ")):
        client = history.connect("a")
        assert replaying(client, "line/7", text).reason_codes == (1,)
        assert client.take() == ALL[5:]


@pytest.mark.parametrize(
    "start",
    [
        "",
        "latest",
        "now",
        "=0",
        "=99",
        "-1",
        "-1y",
        "1h",
        "- 1h",
        "@",
        "@x",
        "0001-01-01",
        "9999-99-99",
        "\N{FULLWIDTH DIGIT ONE}x",
    ],
)
def test_a_replay_from_nonsense_is_refused(history: Bench, start: str) -> None:
    client = history.connect("a")
    suback = replaying(client, "line/7", start)
    assert suback.reason_codes == (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,)
    assert client.received() == []
    history.connect("b").publish("line/7", b"live", qos=1)
    assert client.received() == []


def test_a_replay_beyond_all_time_is_everything(history: Bench) -> None:
    client = history.connect("a")
    assert replaying(client, "line/7", "-999999999d").reason_codes == (1,)
    assert client.take() == ALL


@pytest.mark.parametrize("topic_filter", ["+/7", "#", "line/+", "+/+", "line/7/#"])
@pytest.mark.parametrize(("start", "expected"), [("earliest", ALL), ("-1h", ALL[5:]), ("-0s", [])])
def test_replay_of_a_filter_that_no_queue_is_for(
    history: Bench, topic_filter: str, start: str, expected: list[bytes]
) -> None:
    history.connect("b").publish("other", b"no match", qos=1)
    history.pass_time(1)
    if topic_filter in ("#",):
        expected = [*expected, b"no match"] if expected else expected
    client = history.connect("a", receive_maximum=2)
    assert replaying(client, topic_filter, start).reason_codes == (1,)
    history.connect("b").publish("line/7", b"live", qos=1)
    assert client.take() == [*expected, b"live"]
    history.connect("b").publish("line/7", b"later", qos=1)
    assert client.take() == [b"later"]


def test_replay_of_a_wildcard_goes_by_pages_as_the_client_takes_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store in ("local", "remote"):
        monkeypatch.setattr(f"notify.{store}.reads.HISTORY_PAGE_BYTES", 2_000)
    publisher = bench.connect("b")
    sent = [b"%04d" % i + bytes(100) for i in range(300)]
    for i, payload in enumerate(sent[:200]):
        publisher.publish(f"t/{i % 3}/x", payload, qos=i % 3)
    client = bench.connect("a", receive_maximum=5)
    replaying(client, "t/+/x", "earliest", qos=2)
    assert len(client.connection.session.backlog) < 50
    for i, payload in enumerate(sent[200:], 200):
        publisher.publish(f"t/{i % 3}/x", payload, qos=i % 3)
    got = client.take()
    by_topic = [[payload for i, payload in enumerate(sent) if i % 3 == topic] for topic in range(3)]
    assert sorted(got) == sorted(sent)
    assert [[payload for payload in got if int(payload[:4]) % 3 == topic] for topic in range(3)] == by_topic


def test_the_next_page_is_asked_for_while_one_is_sent_if_it_takes_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store in ("local", "remote"):
        monkeypatch.setattr(f"notify.{store}.reads.HISTORY_PAGE_BYTES", 2_000)
    publisher = bench.connect("b")
    for i in range(60):
        publisher.publish("t/1/x", b"%02d" % i + bytes(100), qos=1)
    client = bench.connect("a", receive_maximum=1)
    replaying(client, "t/+/x", "earliest")
    [replay] = client.connection.session.replays
    assert replay.page is not None
    assert (replay.ahead is not None) == bench.broker.core.store.history.may_have(replay.next)
    assert [payload[:2] for payload in client.take()] == [b"%02d" % i for i in range(60)]


def test_replay_of_a_wildcard_keeps_to_the_subscription(history: Bench) -> None:
    history.connect("b").publish("line/7", b"kept", qos=1, retain=True)
    client = history.connect("a")
    client.subscribe(
        SubscriptionRequest("+/7", QoS(1), retain_as_published=True, retain_handling=RetainHandling.DO_NOT_SEND),
        user_properties=(("penstock-from", "earliest"),),
        subscription_identifiers=(9,),
    )
    messages = client.messages()
    assert [message.payload for message in messages] == [*ALL, b"kept"]
    assert [message.retain for message in messages] == [False] * 10 + [True]
    assert {message.properties.subscription_identifiers for message in messages} == {(9,)}
    own = history.connect("b")
    own.subscribe(
        SubscriptionRequest("+/7", QoS(1), no_local=True, retain_handling=RetainHandling.DO_NOT_SEND),
        user_properties=(("penstock-from", "earliest"),),
    )
    assert own.received() == []


def test_a_replay_of_a_wildcard_ends_with_its_subscription(history: Bench) -> None:
    client = history.connect("a", receive_maximum=1)
    replaying(client, "+/7", "earliest")
    assert client.payloads() == [b"0"]
    client.send(Unsubscribe(9, ("+/7",)))
    client.one(UnsubAck)
    client.subscribe("x")
    client.send(PubAck(1))
    history.connect("b").publish("x", b"1")
    assert client.take()[-1:] == [b"1"]


def test_a_queue_offset_takes_a_queue_of_the_filters_own(history: Bench) -> None:
    client = history.connect("a")
    assert replaying(client, "+/7", "@3").reason_codes == (0x83,)
    assert replaying(client, "#", "3").reason_codes == (0x83,)


def test_a_refused_replay_says_why_unless_the_client_does_not_want_to_know(history: Bench) -> None:
    suback = replaying(history.connect("a"), "+/7", "@3")
    assert suback.properties.reason_string == "+/7: penstock-from is no position here"
    quiet = history.connect("b", request_problem_information=False)
    assert replaying(quiet, "+/7", "@3").properties.reason_string is None
    small = history.connect("c", maximum_packet_size=30)
    assert replaying(small, "+/7", "@3").properties.reason_string is None


def test_replay_of_a_held_filter(bench: Bench) -> None:
    """Its queue began when it was first held; what was there before comes as well."""
    bench.connect("b").publish("line/7", b"0", qos=1)
    bench.durable("keeper").subscribe("+/7", qos=1)
    bench.connect("b").publish("line/7", b"1", qos=1)
    client = bench.connect("a")
    assert replaying(client, "+/7", "earliest").reason_codes == (1,)
    assert client.take() == [b"0", b"1"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_replay_of_a_wildcard_to_a_durable_session(history: Bench, qos: int) -> None:
    client = history.durable("a")
    assert replaying(client, "+/7", "earliest", qos=qos).reason_codes == (qos,)
    assert client.take() == ALL
    client.lose()
    history.connect("b").publish("line/7", b"live", qos=1)
    history.restart()
    assert history.durable("a").take() == [b"live"]


def test_replay_after_a_restart(history: Bench) -> None:
    history.restart()
    client = history.connect("a")
    replaying(client, "line/#", "earliest")
    assert client.take() == ALL


def test_replay_brings_qos_0_messages_too(bench: Bench) -> None:
    bench.connect("b").publish("t", b"0")
    client = bench.connect("a")
    replaying(client, "t", "earliest", qos=0)
    assert client.payloads() == [b"0"]


@pytest.mark.parametrize("topic_filter", ["line/7", "line/#", "+/7", "#"])
def test_a_replay_says_what_is_lost(history: Bench, topic_filter: str) -> None:
    """With the message behind each damaged part of the log, although all of them come with one page."""
    queue = history.store.queues.topic_queue(b"line/7")
    records = read_all(history.store, queue)
    (segment,) = segment_paths(commit_log(history.store).folder)
    for number in (3, 6):
        flip(segment, records[number].log_offset + RECORD_HEADER_BYTES)
    history.restart()
    client = history.connect("a")
    assert replaying(client, topic_filter, "earliest").reason_codes == (1,)
    messages = client.messages()
    assert [message.payload for message in messages] == [b"0", b"1", b"2", b"4", b"5", b"7", b"8", b"9"]
    told = {m.payload: m.properties.user_properties for m in messages if m.properties.user_properties}
    assert told == {b"4": (("penstock-lost", "1"),), b"7": (("penstock-lost", "1"),)}
    history.connect("b").publish("line/7", b"live", qos=1)
    (live,) = client.messages()
    assert (live.payload, live.properties.user_properties) == (b"live", ())


def test_lost_messages_before_a_skipped_one_are_reported_too(history: Bench) -> None:
    (segment,) = segment_paths(commit_log(history.store).folder)
    records = read_all(history.store, history.store.queues.topic_queue(b"line/7"))
    flip(segment, records[3].log_offset + RECORD_HEADER_BYTES)
    history.restart()
    history.connect("c").publish("line/7", b"another's", qos=1)
    client = history.connect("b")
    wanted = SubscriptionRequest("+/7", QoS(1), no_local=True)
    client.subscribe(wanted, user_properties=(("penstock-from", "earliest"),))
    (message,) = client.messages()
    assert (message.payload, message.properties.user_properties) == (b"another's", (("penstock-lost", "1"),))


@pytest.mark.parametrize("turns", range(2, 16))
def test_messages_before_a_lost_one_come_once_whenever_the_client_leaves(bench: Bench, turns: int) -> None:
    """The replay in place of the lost message begins behind what the client has acknowledged."""
    bench.durable("a").subscribe("line/7", qos=1)
    client = bench.connect("b")
    for i in range(4):
        client.publish("line/7", b"%d" % i, qos=1)
    bench.pass_time(1)
    last = read_all(bench.store, bench.store.queues.topic_queue(b"line/7"))[-1]
    (segment,) = segment_paths(commit_log(bench.store).folder)
    bench.restart()
    flip(segment, last.log_offset + RECORD_HEADER_BYTES)
    bench.restart()
    client = bench.client()
    client.feed(encode(connect_packet("a", clean_start=False, session_expiry_interval=3_600), 5))
    acknowledged = []
    for _ in range(turns):
        bench.loop.turn()
        for packet in client.received():
            if isinstance(packet, Publish):
                acknowledged.append(packet.payload)
                client.feed(encode(acknowledgement(packet) or packet, 5))
    client.lose()
    assert acknowledged + bench.durable("a").take() == [b"0", b"1", b"2"]
