"""Which records a peer may append, and what is said of those that must not get into the log."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute
from store.state import changes
from store.state.changes import Progress, Sent, SessionOpened, Subscribed, SubscriptionState, WillState
from store.wire.messages import (
    Append,
    Appended,
    Failed,
    FailureCode,
    Role,
)
from tests.support.store_protocol_bench import Talk, WireBench, changes_of
from tests.support.stores import batch_of


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


@pytest.fixture
def talk(bench: WireBench) -> Talk:
    return bench.connect("gw")


def one(payload: bytes = b"x", kind: int = RecordType.MESSAGE, topic: bytes = b"t", **more: bytes | int) -> bytes:
    batch = RecordBatch()
    batch.append(kind, payload, topic=topic, **more)  # type: ignore[arg-type]
    return bytes(batch)


def in_a_batch() -> bytes:
    batch = RecordBatch()
    batch.begin_atomic()
    batch.append(RecordType.MESSAGE, b"x", topic=b"t")
    batch.end_atomic()
    return bytes(batch)


DUE = encode_attribute(Attribute.DUE_MS, bytes(8))
TOO_LATE = encode_attribute(Attribute.DUE_MS, (1 << 42).to_bytes(8, "little"))
FIRST = encode_attribute(Attribute.FIRST_OFFSET, bytes(8))
GOOD_MESSAGES = [
    one(),
    one(flags=RecordFlag.RETAIN | RecordFlag.LIVE_ONLY | 2, client_id="é".encode()),
    one(topic="ü/日本/𝄞".encode(), attributes=encode_attribute(Attribute.PACKET_ID, b"\1\0"), flags=2),
    one(topic=b"/" * 199),
    one(
        flags=RecordFlag.EXPIRES,
        properties=b"\1\1\2\0\0\0\5\3\0\1a\x08\0\3r/1\x09\0\2\0\xff\x26\0\1k\0\1v\x26\0\0\0\0",
    ),
    one(topic=b"$SYSTEM/x"),
    one(flags=RecordFlag.DELAYED, attributes=DUE),
    one(flags=RecordFlag.DELAYED | 2, attributes=encode_attribute(Attribute.PACKET_ID, b"\1\0") + DUE),
    b"",
]

BAD_MESSAGES = [
    (one(topic=b"a/+"), "wildcard in a topic"),
    (one(topic=b"#"), "wildcard in a topic"),
    (one(topic=b"a\0b"), "U+0000 in a text"),
    (one(topic=b"/" * 200), "topic of too many levels"),
    (one(topic=b"\xff"), "a text that is not UTF-8"),
    (one(topic=b"a\xc3"), "a text that is not UTF-8"),
    (one(topic=b"\xed\xa0\x80"), "a text that is not UTF-8"),
    (one(topic=b"\xc0\x80"), "a text that is not UTF-8"),
    (one(topic=b"\xf4\x90\x80\x80"), "a text that is not UTF-8"),
    (one(client_id=b"\xff"), "a text that is not UTF-8"),
    (one(client_id=b"\0"), "U+0000 in a text"),
    (one(flags=3), "QoS 3"),
    (one(flags=RecordFlag.CARRIED), "flags that a peer must not set"),
    (one(attributes=b"\1"), "attributes that are cut off"),
    (one(attributes=b"\3\3\0ab"), "attributes that are cut off"),
    (one(attributes=b"\1\3\0\1\1\1"), "attribute that a peer must not set"),
    (one(attributes=encode_attribute(Attribute.KEY, b"")), "attribute that a peer must not set"),
    (one(attributes=encode_attribute(Attribute.KEY, bytes(1025))), "attribute that a peer must not set"),
    (one(attributes=encode_attribute(Attribute.STORED_MS, bytes(8))), "attribute that a peer must not set"),
    (one(attributes=encode_attribute(Attribute.TAG, b"\0")), "U+0000 in a text"),
    (one(attributes=encode_attribute(Attribute.TAG, b"a") * 2), "attribute given twice"),
    (one(attributes=DUE), "attribute that a peer must not set"),
    (one(flags=RecordFlag.DELAYED), "delayed message whose last attribute is not DUE_MS"),
    (
        one(flags=RecordFlag.DELAYED, attributes=DUE + FIRST),
        "delayed message whose last attribute is not DUE_MS",
    ),
    (one(flags=RecordFlag.DELAYED, attributes=FIRST + DUE), "attribute that a peer must not set"),
    (one(flags=RecordFlag.DELAYED, attributes=TOO_LATE), "delayed for longer than store.max_delay_s"),
    (one(properties=b"\2"), "properties that are cut off"),
    (one(properties=b"\2\0\0\0"), "properties that are cut off"),
    (one(properties=b"\3\0\5a"), "properties that are cut off"),
    (one(properties=b"\x26\0\1k\0"), "properties that are cut off"),
    (one(properties=b"\x26\0\1\xff\0\0"), "a text that is not UTF-8"),
    (one(properties=b"\x08\0\1+"), "wildcard in a topic"),
    (one(properties=b"\x08\0\0"), "empty topic"),
    (one(properties=b"\x08\0\x06$ns:a/"), "response topic that begins with $ns:"),
    (one(properties=b"\x23\0\1"), "property that a stored message cannot have"),
    (one(properties=b"\x0b\1"), "property that a stored message cannot have"),
    (one(properties=b"\1\0\1\0"), "property given twice"),
    (in_a_batch(), "type that is not allowed"),
    (one(kind=RecordType.QUEUE_DROPPED, topic=b""), "type that is not allowed"),
    (one(kind=RecordType.PEER_APPENDED, topic=b""), "type that is not allowed"),
    (one(kind=RecordType.SESSION_ENDED, topic=b""), "type that is not allowed"),
    (one(kind=99, topic=b""), "type that is not allowed"),
]
WILL = WillState("w", b"", 1, False, b"", 0)


def will(**fields: object) -> SessionOpened:
    return SessionOpened("c", False, 60, msgspec.structs.replace(WILL, **fields))


def subscribed(topic_filter: str = "a", qos: int = 1, **more: int) -> Subscribed:
    return Subscribed("c", [SubscriptionState(topic_filter, qos, **more)])  # type: ignore[arg-type]


BAD_CHANGES = [
    (SessionOpened("c\0", False, 60), "SESSION_OPENED: client_id has a U+0000"),
    (SessionOpened("c", False, 1 << 32), "SESSION_OPENED: session_expiry_interval 4294967296"),
    (SessionOpened("c", False, -1), "SESSION_OPENED: session_expiry_interval -1"),
    (will(topic="a/+"), "SESSION_OPENED: topic of the will has a wildcard"),
    (will(topic=""), "SESSION_OPENED: topic of the will is empty"),
    (will(qos=3), "SESSION_OPENED: will with QoS 3 and a delay of 0 s"),
    (will(delay_s=-1), "SESSION_OPENED: will with QoS 1 and a delay of -1 s"),
    (will(properties=b"\2"), "SESSION_OPENED: will: record at byte 0: properties that are cut off"),
    (changes.SessionClosed("c", 60, False, -1), "SESSION_CLOSED: frontier or messages in flight that cannot be"),
    (changes.SessionClosed("c", 60, False, 1, b"1"), "SESSION_CLOSED: frontier or messages in flight that cannot be"),
    (changes.SessionClosed("c", -1, False), "SESSION_CLOSED: session_expiry_interval -1"),
    (subscribed("a/#/b"), "SUBSCRIBED: topic filter has a wildcard where none may be"),
    (subscribed("/" * 200), "SUBSCRIBED: topic filter has more than 200 levels"),
    (subscribed(qos=3), "SUBSCRIBED: QoS 3, retain handling 0"),
    (subscribed(since=-1), "SUBSCRIBED: subscription_id 0, since -1"),
    (changes.Unsubscribed("c", ["a", ""]), "UNSUBSCRIBED: topic filter is empty"),
    (Progress("c", acked=-1), "PROGRESS: acked -1"),
    (Progress("c", released=[0]), "PROGRESS: packet identifier that cannot be"),
    (Progress("c", completed=[65_536]), "PROGRESS: packet identifier that cannot be"),
    (Progress("c", sent=[Sent(0, 1, 2, False)]), "PROGRESS: message sent or owed that cannot be"),
    (Progress("c", owed=[Sent(0, -1, 2, False)]), "PROGRESS: message sent or owed that cannot be"),
    (Progress("c", sent=[Sent(1, 1, 3, False)]), "PROGRESS: message sent or owed that cannot be"),
]


@pytest.mark.parametrize("records", GOOD_MESSAGES)
def test_append_accepts_valid_records(bench: WireBench, talk: Talk, records: bytes) -> None:
    assert isinstance(talk.call(Append(1), records), Appended)
    assert isinstance(bench.connect("sdk", Role.CLIENT).call(Append(1), records), Appended)


def test_servers_alone_say_something_of_themselves(bench: WireBench, talk: Talk) -> None:
    records = one(topic=b"$SYS/x")
    assert isinstance(talk.call(Append(1), records), Appended)
    refused = bench.connect("sdk", Role.CLIENT).call(Append(1), records)
    assert refused == Failed(FailureCode.BAD_REQUEST, "the topic '$SYS/x': what begins with $SYS is the server's")


@pytest.mark.parametrize(("records", "fault"), BAD_MESSAGES)
def test_append_refuses_invalid_records(bench: WireBench, talk: Talk, records: bytes, fault: str) -> None:
    end = bench.store.end
    good = one(b"good")
    assert talk.call(Append(1), good + records) == Failed(
        FailureCode.BAD_REQUEST, f"record at byte {len(good)}: {fault}"
    )
    assert bench.store.end == end


@pytest.mark.parametrize(("change", "fault"), BAD_CHANGES)
def test_a_change_that_does_not_get_in(bench: WireBench, talk: Talk, change: changes.Change, fault: str) -> None:
    end = bench.store.end
    assert talk.tell_log(1, change) == Failed(FailureCode.BAD_REQUEST, fault)
    assert bench.store.end == end


@pytest.mark.parametrize("payload", [b"", b"\x90", b"\xc1", b"\x94\xa1c\xc2\xa1x\xc0", b"\x93\xa1\xff\xc2\x00"])
def test_a_change_that_is_none(talk: Talk, payload: bytes) -> None:
    answer = talk.call(Append(1), one(payload, RecordType.SESSION_OPENED, topic=b""))
    assert isinstance(answer, Failed)
    assert answer.code == FailureCode.BAD_REQUEST
    assert answer.message.startswith("SESSION_OPENED: ")


def test_a_change_with_a_topic(talk: Talk) -> None:
    answer = talk.call(Append(1), one(b"\x91\xa1c", RecordType.WILL_FIRED))
    assert answer == Failed(FailureCode.BAD_REQUEST, "WILL_FIRED: more than a payload")


def test_a_client_only_publishes(bench: WireBench) -> None:
    client = bench.connect("sdk", Role.CLIENT)
    assert client.tell_log(1, SessionOpened("c", False, 60)) == Failed(
        FailureCode.BAD_REQUEST, "record at byte 0: type that is not allowed"
    )
    assert isinstance(client.call(Append(2), bytes(batch_of(b"x"))), Appended)


def test_session_holder_is_the_peer_that_appends(bench: WireBench, talk: Talk) -> None:
    records = bytes(batch_of(b"1")) + changes_of(SessionOpened("c", False, 60, None, "other")) + bytes(batch_of(b"2"))
    assert isinstance(talk.call(Append(1), records), Appended)
    state = bench.store.sessions.get("c")
    assert state is not None
    assert state.holder == "gw"
