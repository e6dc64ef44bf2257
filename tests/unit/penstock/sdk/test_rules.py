"""The client's rules without a store, a loop or a clock: gathering, requests that outlive connections, refusals."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.sdk.address import Address
from penstock.sdk.batch import BatchOfOneTopic, Whole
from penstock.sdk.compression import Compression
from penstock.sdk.errors import (
    AddressError,
    AlreadySettled,
    BadMessage,
    BadMessageId,
    BadPosition,
    BatchRefused,
    ConnectionLost,
    StoreRefused,
    TimedOut,
)
from penstock.sdk.filters import matches_any
from penstock.sdk.hands import ACK, GIVE_BACK, Answer, Hand, PendingVerdict, Place, SettledAs
from penstock.sdk.link import MOST_PUBLISHES, request_rules
from penstock.sdk.message import DelayedReceipt, Receipt, user_properties
from penstock.sdk.message_id import StorePlace, parse_message_id
from penstock.sdk.outgoing import Outgoing, PublishOptions, outgoing
from penstock.sdk.positions import where
from penstock.sdk.publishing import Entry, Outbox, receipts
from store.records._records import changes_in
from store.records.record_bytes import walk
from store.records.records import Attribute, RecordFlag, decode_attributes, read_records
from store.wire import group_messages
from store.wire import messages as wire
from store.wire.client.requests import Outcome, PendingRequests
from store.wire.frames import Frame, FrameReader, encode
from store.wire.messages import Role, Wait

PLACE = StorePlace.of("10.0.0.1", 7700)
WELCOME = wire.Welcome(1, "main", 0, 1 << 20, 256 << 10, 500, [], 64)


# --- batches


@pytest.mark.catalogue("D12")
def test_a_batch_takes_nothing_delayed_and_no_dead_letter() -> None:
    async def publish(_: Whole) -> list[Receipt]:
        raise AssertionError("nothing was to be sent")

    def make(topic: str, payload: bytes | str, _: PublishOptions) -> Outgoing:
        return outgoing(topic, payload, False, due_ms=1_800_000_000_000 if payload == b"later" else None)

    batch = BatchOfOneTopic(make, publish, 1_000)
    batch.publish("t", b"now")
    with pytest.raises(BatchRefused, match="takes no delayed message"):
        batch.publish("t", b"later")
    with pytest.raises(BatchRefused, match="consumer group gives up"):
        BatchOfOneTopic(make, publish, 1_000).publish("$dead/billing/t", b"x")
    assert len(batch) == 1


def test_a_batch_is_the_same_whether_its_messages_are_made_one_by_one_or_together() -> None:
    rng = random.Random(7)
    sent: list[Whole] = []

    async def publish(whole: Whole) -> list[Receipt]:
        sent.append(whole)
        return []

    def make(topic: str, payload: bytes | str, options: PublishOptions) -> Outgoing:
        return outgoing(topic, payload, True, Compression(200), **options)

    async def fill(most_plain_bytes: int, messages: list[tuple[bytes | str, PublishOptions]]) -> None:
        async with BatchOfOneTopic(make, publish, 100_000, most_plain_bytes) as batch:
            for payload, options in messages:
                batch.publish("t/é", payload, **options)
            assert len(batch) == len(messages)

    some: list[PublishOptions] = [{}, {}, {}, {"key": "k"}, {"qos": 0, "retain": True}]
    for _ in range(20):
        payloads: list[bytes | str] = [b"x" * rng.randrange(400) for _ in range(rng.randrange(1, 30))]
        messages = [(rng.choice((payload, "é")), rng.choice(some)) for payload in payloads]
        asyncio.run(fill(0, messages))
        asyncio.run(fill(200, messages))
        assert sent[-1] == sent[-2]
        assert sum(sent[-1].sizes) == len(sent[-1].records)
        assert [len(list(walk(sent[-1].records)))] == [len(messages)]


def test_a_full_batch_refuses_messages_that_are_made_together_as_well() -> None:
    async def publish(_: Whole) -> list[Receipt]:
        return []

    def make(topic: str, payload: bytes | str, options: PublishOptions) -> Outgoing:
        return outgoing(topic, payload, False, **options)

    batch = BatchOfOneTopic(make, publish, 1_000, 4_096)
    for _ in range(20):
        batch.publish("t", b"")
    with pytest.raises(BatchRefused, match="at most 1000 bytes"):
        batch.publish("t", b"")
    with pytest.raises(BatchRefused, match="need the same `wait`"):
        batch.publish("t", b"", wait="stored")


# --- requests


async def cancel(log_offset: int, due_ms: int) -> bool:
    return False


class Talk:
    """A store's end of what PendingRequests say."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.requests = PendingRequests(request_rules(30.0), lambda: self.now_s, lambda: None)
        self.outcomes: list[Outcome] = []

    def ask(self, message: wire.WireMessage, records: bytes = b"") -> None:
        self.requests.ask(message, lambda outcome, _: self.outcomes.append(outcome), records)

    def sent(self) -> list[Frame]:
        return FrameReader(WELCOME.max_frame_bytes, Role.CLIENT).feed(b"".join(self.requests.outgoing()))

    def answer(self, message: wire.WireMessage, request_id: int) -> None:
        (frame,) = FrameReader(WELCOME.max_frame_bytes, Role.STORE).feed(encode(message, request_id))
        self.requests.received(frame)


def test_requests_of_one_connection_end_with_it() -> None:
    talk = Talk()
    talk.requests.connected(WELCOME)
    for number in (1, 2):
        talk.requests.ask_once(wire.Get(number), lambda outcome, _: talk.outcomes.append(outcome))
        if number == 1:
            assert len(talk.sent()) == 1
    talk.requests.lost("gone")
    assert [type(outcome) for outcome in talk.outcomes] == [ConnectionLost, ConnectionLost]
    talk.requests.connected(WELCOME)
    assert talk.sent() == []


def test_verdicts_given_together_are_one_request() -> None:
    said = PendingVerdict(ACK, 30.0)
    for place in ((7, 0, 1), (7, 1, 1), (7, 2, 3), (8, 5, 1), (7, 9, 1)):
        said.add(*place)
    assert said.verdict.request(1, said.places) == group_messages.Ack(1, [(7, 0, 5), (8, 5, 1), (7, 9, 1)])  # type: ignore[list-item]
    assert GIVE_BACK.request(1, [(7, 0, 1)]) == group_messages.Reject(1, [(7, 0, 1)], 0, "", True)  # type: ignore[list-item]
    verdicts: list[SettledAs] = []

    def say(_: Hand, verdict: SettledAs, places: Sequence[Place]) -> Answer:
        verdicts.append(verdict)
        return Answer(said, places)

    hand = Hand((7, 2, 10, 4), 0.0, say)
    hand.settle(11, ACK)
    with pytest.raises(AlreadySettled):
        hand.settle(11, ACK)
    assert hand.settle_rest(SettledAs(invisible_ms=5)) == [(7, 10, 1), (7, 12, 1), (7, 13, 1)]
    assert hand.left == 3
    assert hand.settle_rest(ACK) == [(7, 10, 1), (7, 12, 1), (7, 13, 1)]
    assert (hand.left, hand.settle_rest(ACK), verdicts) == (0, [], [ACK])


def test_unanswered_requests_are_sent_again_in_order() -> None:
    talk = Talk()
    record = outgoing("t", b"x", False).record
    for sequence in (1, 2, 3):
        talk.ask(wire.Publish(sequence, Wait.POLICY), record)
    assert talk.sent() == []
    talk.requests.connected(WELCOME)
    first = talk.sent()
    talk.answer(wire.Published(64, [0]), first[0].request_id)
    talk.requests.lost("cut")
    talk.ask(wire.Publish(4, Wait.POLICY), record)
    assert talk.sent() == []
    talk.requests.connected(WELCOME)
    again = [frame.message for frame in talk.sent()]
    assert again == [wire.Publish(sequence, Wait.POLICY) for sequence in (2, 3, 4)]
    assert talk.outcomes == [wire.Published(64, [0])]


def test_no_more_publishes_than_the_store_remembers_and_no_more_than_the_credit() -> None:
    talk = Talk()
    talk.requests.connected(WELCOME)
    record = outgoing("t", b"x", False).record
    for sequence in range(1, MOST_PUBLISHES + 10):
        talk.ask(wire.Publish(sequence, Wait.POLICY), record)
    talk.ask(wire.Get(64))
    sent = talk.sent()
    assert sum(isinstance(frame.message, wire.Publish) for frame in sent) == MOST_PUBLISHES
    assert wire.Get(64) in [frame.message for frame in sent]
    talk.answer(wire.Published(64, [0]), sent[-1].request_id)
    assert len(talk.sent()) == 1
    large = Talk()
    large.requests.connected(WELCOME)
    for sequence in range(1, 7):
        large.ask(wire.Publish(sequence, Wait.POLICY), outgoing("t", bytes(200 << 10), False).record)
    assert len(large.sent()) == 5


@pytest.mark.parametrize(("most", "sizes"), [(0, [40]), (2_000, [40]), (60, [10, 10, 10, 10]), (1, [1] * 40)])
def test_publishes_are_gathered_up_to_the_stores_most_changes(most: int, sizes: list[int]) -> None:
    """An older store does not say, and takes all."""
    talk = Talk()
    talk.requests.connected(msgspec.structs.replace(WELCOME, max_changes=most))
    outbox = Outbox(talk.requests, lambda: PLACE, lambda: None, cancel)
    for number in range(40):
        outbox.add(Entry(outgoing(f"t/{number % 20}", b"x", False, retain=True), lambda _: None))
    outbox.flush()
    records = [frame.records for frame in talk.sent()]
    assert [len(list(walk(each))) for each in records] == sizes
    assert all(changes_in(each) <= max(6, most or 240) for each in records)


def test_topics_that_change_count_as_the_store_counts_them() -> None:
    talk = Talk()
    talk.requests.connected(msgspec.structs.replace(WELCOME, max_changes=30))
    outbox = Outbox(talk.requests, lambda: PLACE, lambda: None, cancel)
    randomly = random.Random(1)
    for _ in range(1_000):
        topic = randomly.choice(["a", "b", "x" * 200])
        due_ms = randomly.choice([None, None, 1_000])
        message = outgoing(topic, b"x", False, retain=randomly.random() < 0.3, due_ms=due_ms)
        outbox.add(Entry(message, lambda _: None))
    outbox.flush(everything=True)
    found = [frame.records for frame in talk.sent()]
    assert all(changes_in(each) <= 30 for each in found)
    assert len(found) == MOST_PUBLISHES
    for one, other in itertools.pairwise(found):
        first = other[: int.from_bytes(other[:4], "little")]
        assert changes_in(bytes(one) + bytes(first)) > 30


def test_oversized_publish_is_refused_and_others_go_on() -> None:
    talk = Talk()
    talk.requests.connected(WELCOME)
    talk.ask(wire.Publish(1, Wait.POLICY), outgoing("t", bytes(300 << 10), False).record)
    talk.ask(wire.Publish(2, Wait.POLICY), outgoing("t", b"x", False).record)
    assert [frame.message for frame in talk.sent()] == [wire.Publish(2, Wait.POLICY)]
    (refused,) = talk.outcomes
    assert isinstance(refused, StoreRefused)
    assert "wire.max_frame_bytes" in str(refused)


def test_a_request_that_waits_for_too_long() -> None:
    talk = Talk()
    talk.requests.connected(WELCOME)
    talk.ask(wire.Publish(1, Wait.POLICY), outgoing("t", b"x", False).record)
    (sent,) = talk.sent()
    talk.requests.lost("cannot connect")
    talk.now_s = 10.0
    talk.ask(wire.Publish(2, Wait.POLICY), outgoing("t", b"x", False).record)
    talk.now_s = 30.0
    talk.requests.tick()
    (sure,) = talk.outcomes
    assert isinstance(sure, TimedOut)
    assert "within 30 s (cannot connect); the message may be stored or not" in str(sure)
    talk.now_s = 40.0
    talk.requests.tick()
    assert "the message was not sent" in str(talk.outcomes[1])
    talk.requests.connected(WELCOME)
    assert talk.sent() == []
    with pytest.raises(Exception, match="which nobody asked for"):
        talk.answer(wire.Published(64, [0]), sent.request_id)


def test_messages_of_one_turn_go_together_and_each_has_its_receipt() -> None:
    talk = Talk()
    talk.requests.connected(WELCOME)
    outbox = Outbox(talk.requests, lambda: PLACE, lambda: None, cancel)
    got: list[Any] = []
    for topic, wait in (("a", Wait.POLICY), ("b", Wait.POLICY), ("b", Wait.FLUSHED)):
        message = Outgoing(topic, outgoing(topic, b"x", False).record, wait)
        outbox.add(Entry(message, got.append))
    outbox.flush()
    first, second = talk.sent()
    assert (first.message, second.message) == (wire.Publish(1, Wait.POLICY), wire.Publish(2, Wait.FLUSHED))
    talk.answer(wire.Failed(wire.FailureCode.STORE_FULL, "full"), second.request_id)
    talk.answer(wire.Published(104, [7, 3]), first.request_id)
    refused, one, other = got
    assert isinstance(refused, StoreRefused)
    assert (one.queue, one.log_offset, one.queue_offset) == ("a", 104, 7)
    assert (other.queue, other.log_offset, other.queue_offset) == ("b", 104 + len(first.records) // 2, 3)
    assert outbox.unanswered_bytes == 0


def test_delayed_messages_are_runs_of_their_own() -> None:
    now, later = outgoing("t", b"x", False), outgoing("t", b"x", False, due_ms=61_000)
    assert (now.due_ms, later.due_ms) == (None, 61_000)
    found = receipts([now, later, now], wire.Published(64, [5, -1, 6]), PLACE)
    assert [receipt.queue_offset for receipt in found] == [5, None, 6]
    assert receipts([later, now], wire.Published(64, [-1, 7]), PLACE)[1].queue_offset == 7
    receipt = DelayedReceipt.of(found[1], 61_000, cancel)
    assert (receipt.log_offset, receipt.due_at) == (found[1].log_offset, datetime(1970, 1, 1, 0, 1, 1, tzinfo=UTC))


def test_receipts_of_runs_and_of_topics_that_are_in_no_queue() -> None:
    sent = [Outgoing(topic, bytes(48), Wait.POLICY) for topic in ("a", "a", "live", "a")]
    found = receipts(sent, wire.Published(104, [5, -1, 7]), PLACE)
    assert [(each.log_offset, each.queue_offset) for each in found] == [(104, 5), (152, 6), (200, None), (248, 7)]


# --- what a message is


def test_a_message_in_log_format() -> None:
    options: dict[str, Any] = {"key": "m-7", "tag": "C", "headers": {"unit": "C", "é": ""}, "retain": True}
    message = outgoing("line/7", "21.5", True, expires_after=timedelta(seconds=70), wait="flushed", **options)
    (record,) = read_records(memoryview(message.record))
    assert (record.topic, record.payload, record.qos, record.retain) == (b"line/7", b"21.5", 1, True)
    assert decode_attributes(record.attributes) == {Attribute.KEY: b"m-7", Attribute.TAG: b"C"}
    assert record.properties.startswith(b"\x02\0\0\0\x46")
    assert list(user_properties(record.properties)) == [("unit", "C"), ("é", "")]
    assert record.flags & (RecordFlag.EXPIRES | RecordFlag.LIVE_ONLY) == RecordFlag.EXPIRES | RecordFlag.LIVE_ONLY
    assert message.wait is Wait.FLUSHED


@pytest.mark.parametrize(
    ("topic", "options", "fault"),
    [
        ("", {}, "use the name of one topic"),
        ("a/+", {}, "use the name of one topic"),
        ("$SYS/x", {}, "use another first level"),
        ("$dead/g/x", {}, "use another first level"),
        ("$ns:acme$SYS/x", {}, "use another first level"),
        ("/" * 200, {}, "use fewer /"),
        ("a\0", {}, "U+0000"),
        ("a\ud800", {}, "is not Unicode text"),
        ("a" * 65_536, {}, "at most 65535 are possible"),
        ("a", {"key": ""}, "use None where there is none"),
        ("a", {"key": "k" * 1_025}, "at most 1024 are possible"),
        ("a", {"tag": "k" * 256}, "at most 255 are possible"),
        ("a", {"qos": 3}, "use 0, 1 or 2"),
        ("a", {"wait": "later"}, "use 'stored', 'flushed' or None"),
        ("a", {"expires_after": timedelta(0)}, "use 1 second to"),
        ("a", {"headers": {"a": "\0"}}, "U+0000"),
    ],
)
def test_invalid_messages_are_refused(topic: str, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadMessage) as error:
        outgoing(topic, b"", False, **options)
    assert fault in str(error.value)
    for bad in ({"key": 7}, {"headers": {"a": 1}}):
        with pytest.raises(TypeError, match="give a str"):
            outgoing("a", b"", False, **bad)
    with pytest.raises(TypeError, match="give bytes or str"):
        outgoing("a", 7, False)  # type: ignore[arg-type]


# --- ids, positions, addresses


@pytest.mark.parametrize("ip", ["10.0.0.1", "::1", "fe80::1%eth0", "::ffff:10.0.0.1"])
@pytest.mark.catalogue("B9")
def test_a_message_id_names_its_store_and_its_place(ip: str) -> None:
    place = StorePlace.of(ip, 7700)
    message_id = place.message_id(4096)
    assert len(message_id) == (56 if ":" in ip and "ffff" not in ip else 32)
    assert parse_message_id(message_id) == parse_message_id(message_id.lower()) == (place, 4096)
    assert StorePlace.parse(str(place)) == place
    for at, digit in enumerate(message_id):
        with pytest.raises(BadMessageId, match="it was changed"):
            parse_message_id(message_id[:at] + ("0" if digit != "0" else "1") + message_id[at + 1 :])


@pytest.mark.parametrize("text", ["", "7F", "x" * 32, "0" * 30, " " * 32, "0 " * 32, "٠" * 32])
@pytest.mark.catalogue("B9")
def test_invalid_message_ids_are_refused(text: str) -> None:
    with pytest.raises(BadMessageId, match="32 or 56 hexadecimal digits"):
        parse_message_id(text)


def test_positions() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert where(at) == where("2026-01-02T03:04:05Z") == "2026-01-02T03:04:05+00:00"
    assert [where(each) for each in ("earliest", "now", "-1h", "@7", 0, timedelta(minutes=1))] == [
        "earliest",
        "now",
        "-1h",
        "@7",
        "=0",
        "-60s",
    ]
    for bad in ("", "soon", "-1y", -5, True, 1 << 60, "=5", 1.5):
        with pytest.raises(BadPosition, match="is no place in the log; use 'earliest'"):
            where(bad)  # type: ignore[arg-type]


def test_addresses() -> None:
    assert Address.parse("penstocks://[::1]:9") == Address("penstocks://[::1]:9", "::1", 9, is_tls=True)
    assert Address.parse("unix:///run/penstock").path == "/run/penstock"
    for bad in (
        "localhost:7700",
        "tcp://localhost",
        "penstock://",
        "penstock://h:x",
        "penstock://t@h",
        "penstock://h/x",
    ):
        with pytest.raises(AddressError, match="use penstock://HOST:PORT"):
            Address.parse(bad)


def test_filters() -> None:
    assert matches_any(["a/+/c", "live/#"], "live")
    assert matches_any(["a/+/c"], "a/b/c")
    assert not matches_any(["#", "+/b"], "$x/b")
    assert not matches_any(["a/+"], "a")
