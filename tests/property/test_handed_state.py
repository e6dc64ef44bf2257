"""The state of a connection, put into objects and taken out of them again, is the same; other bytes are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.handover.connections import handed_connection, put_into_connection, taken_identity
from gateway.handover.sessions import SessionParts, taken_session
from gateway.handover.state import (
    MOST_CONNECTIONS,
    VERSION,
    HandedBacklog,
    HandedBatch,
    HandedConnection,
    HandedIdentity,
    HandedList,
    HandedMessage,
    HandedReader,
    HandedReplay,
    HandedSession,
    HandOverRefused,
    decode_batch,
    encode_batch,
)
from gateway.mqtt._inflight import Inflight
from lightqueue.queues._queues import TOPIC, Queue
from store.state.changes import SubscriptionState, WillState
from tests.support.mqtt_bench import Bench, Client, WallClock

offsets = st.integers(0, 2**48)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
flags = st.booleans()
ids = st.lists(st.integers(1, 2**28 - 1), max_size=2).map(tuple)
subscriptions = st.builds(
    SubscriptionState, texts, st.integers(0, 2), flags, flags, st.integers(0, 2), st.integers(0, 9), offsets
)


def messages(packet_ids: st.SearchStrategy[int]) -> st.SearchStrategy[HandedMessage]:
    return st.builds(
        HandedMessage,
        packet_id=packet_ids,
        log_offset=offsets,
        qos=st.integers(1, 2),
        retain=flags,
        subscription_ids=ids,
        released=flags,
        owed=flags,
        lost=st.integers(0, 9),
    )


@st.composite
def listed(draw: st.DrawFn) -> HandedList:
    goes_on = draw(flags)
    return HandedList(
        log_offsets=draw(st.lists(offsets, min_size=1, max_size=3)),
        qos=draw(st.integers(0, 2)),
        subscription_ids=draw(ids),
        topic_filter=draw(texts),
        after=draw(texts) if goes_on else None,
        end=draw(offsets) if goes_on else 0,
        subscription=draw(subscriptions) if goes_on else None,
    )


@st.composite
def replays(draw: st.DrawFn) -> HandedReplay:
    start = draw(offsets)
    return HandedReplay(
        subscription=draw(subscriptions),
        start=start,
        next=start + draw(offsets),
        reached=draw(offsets),
        stop=draw(offsets),
        resumes=draw(flags),
        lost=draw(st.integers(0, 9)),
    )


@st.composite
def rings(draw: st.DrawFn) -> bytes:
    ring = Inflight(100)
    taken = [ring.put(each) for each in sorted(draw(st.lists(offsets, max_size=5)))]
    for packet_id in taken:
        if draw(flags):
            ring.ack(packet_id)
    return ring.dump()


readers = st.builds(
    HandedReader,
    ref=st.integers(1, 5),
    topic_filter=texts,
    qos=st.integers(0, 2),
    position=offsets,
    reached=offsets,
    since=offsets,
    skip_qos0_before=offsets,
    no_local=flags,
    retain_as_published=flags,
    subscription_id=st.integers(0, 9),
    only_live=flags,
)
backlogs = st.one_of(
    st.builds(HandedBacklog, packet_id=st.integers(1, 65_535)),
    st.builds(HandedBacklog, message=messages(st.just(0))),
    st.builds(HandedBacklog, listed=listed()),
)
sessions = st.builds(
    HandedSession,
    client_id=texts,
    expiry_s=st.integers(0, 2**32 - 1),
    logged=flags,
    frontier=offsets,
    acked=offsets,
    window=st.integers(1, 65_535),
    blocked=flags,
    inflight=rings(),
    held=st.lists(messages(st.integers(30_000, 65_535)), max_size=3, unique_by=lambda each: each.packet_id),
    readers=st.lists(readers, max_size=3, unique_by=lambda each: (each.topic_filter, each.only_live)),
    given_back=st.dictionaries(offsets, st.integers(1, 65_535), max_size=2),
    received=st.lists(st.integers(1, 65_535), unique=True, max_size=3).map(sorted),
    skip=st.lists(offsets, unique=True, max_size=3).map(sorted),
    will=st.none() | st.builds(WillState, texts, st.binary(), st.integers(0, 2), flags, st.binary(), st.integers(0, 9)),
    replays=st.lists(replays(), max_size=2),
    backlog=st.lists(backlogs, max_size=3),
)
rules = st.sampled_from(
    [
        {"topics": ["a/+", "b/%u/#"], "allow": ["publish", "subscribe"], "max_qos": 1},
        {"topics": ["#"], "deny": ["publish"]},
        {"topics": ["c"], "allow": ["subscribe"], "users": ["ann", "b*"], "groups": ["workers"]},
    ]
)
identities = st.builds(
    HandedIdentity,
    username=texts,
    rules=st.none() | st.lists(rules, max_size=2),
    expires_ms=st.none() | st.integers(0, 2**48),
    verifier=texts,
    namespace=texts,
    login=texts,
    key=st.binary(max_size=4),
    owns_client_id=flags,
)
connections = st.builds(
    HandedConnection,
    listener=st.just(3),
    address=st.just(("192.0.2.1", 40_000)),
    rest=st.binary(max_size=20),
    silent_s=st.integers(0, 100).map(float),
    session=sessions,
    version=st.sampled_from([4, 5]),
    keep_alive_s=st.integers(0, 100).map(float),
    max_packet_out=st.integers(1, 2**32 - 1),
    ack_limit=st.integers(1, 65_535),
    alias_limit=st.integers(0, 9),
    aliases_out=st.dictionaries(st.binary(min_size=1), st.integers(1, 9), max_size=2).map(lambda each: [*each.items()]),
    aliases_in=st.dictionaries(st.integers(1, 9), texts, max_size=2),
    opened_ms=st.integers(0, 2**48),
    lost=st.integers(0, 9),
    is_bridge=flags,
    keep_will=flags,
    tells_problems=flags,
    auth_method=texts,
    identity=st.none() | identities,
)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(tmp_path, WallClock(monkeypatch))
    yield bench
    bench.close()


@given(handed=connections)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_handed_connection_state_survives_a_round_trip(bench: Bench, handed: HandedConnection) -> None:
    (travelled,) = decode_batch(encode_batch([handed]))
    queues = {ref: Queue(b"t/%d" % ref, TOPIC, 0, 2**50) for ref in range(1, 6)}
    refs = {queue: ref for ref, queue in queues.items()}
    connection = Client(bench).connection
    broker = bench.broker

    def no_seat(*_: object) -> None:
        raise AssertionError("there is no share")

    parts = SessionParts(broker.deliverer, broker.shared, broker.subscriptions.retained, queues.__getitem__, no_seat)  # type: ignore[arg-type]
    assert travelled.session is not None
    connection.identity = taken_identity(travelled.identity) if travelled.identity is not None else None
    taken_session(travelled.session, connection, parts)
    put_into_connection(travelled, connection)
    assert handed_connection(connection, 3, refs.__getitem__, no_seat) == handed  # type: ignore[arg-type]


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(HandOverRefused):
        decode_batch(data)


@given(connections, st.data())
def test_a_state_that_is_cut_or_changed_is_refused_or_read(handed: HandedConnection, data: st.DataObject) -> None:
    packed = bytearray(encode_batch([handed]))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] = data.draw(st.integers(0, 255))
    with suppress(HandOverRefused):
        decode_batch(bytes(packed[: data.draw(st.integers(0, len(packed)))]))


@given(connections)
def test_text_that_is_not_utf_8_is_refused(handed: HandedConnection) -> None:
    """The decoder has an error of its own for that."""
    packed = encode_batch([msgspec.structs.replace(handed, auth_method="name-of-a-method")])
    with pytest.raises(HandOverRefused, match="cannot be read"):
        decode_batch(packed.replace(b"name-of-a-method", b"\x8fame-of-a-method"))


def test_handed_state_of_another_version_is_refused_with_both_numbers() -> None:
    other = msgspec.msgpack.encode(HandedBatch(version=VERSION + 1, connections=[]))
    with pytest.raises(HandOverRefused, match=f"version {VERSION + 1}, and this release knows version {VERSION}"):
        decode_batch(other)


def test_a_batch_is_bounded() -> None:
    blank = HandedConnection(listener=0, address=None)
    assert len(decode_batch(encode_batch([blank] * MOST_CONNECTIONS))) == MOST_CONNECTIONS
    larger = msgspec.msgpack.encode(HandedBatch(version=VERSION, connections=[blank] * (MOST_CONNECTIONS + 1)))
    with pytest.raises(HandOverRefused, match="251 connections"):
        decode_batch(larger)
