"""Delayed messages over the wire: a delayed publish, what is pending, taking one back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.upkeep.dispatching import add_again
from store.records._records import RecordBatch
from store.records.record_bytes import walk
from store.records.records import Attribute, RecordFlag, RecordType, decode_attributes, encode_attribute
from store.wire.messages import (
    Append,
    Appended,
    CancelDelayed,
    DelayedCancelled,
    DelayedFound,
    Failed,
    Follow,
    Following,
    GetDelayed,
    Got,
    Grew,
    ListDelayed,
    Role,
)
from tests.support.mqtt_bench import SlowDisk, WallClock
from tests.support.store_protocol_bench import Talk, WireBench
from tests.support.stores import payloads


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(monkeypatch)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


@pytest.fixture
def talk(bench: WireBench) -> Talk:
    return bench.connect("sdk", Role.CLIENT)


def delayed(due_ms: int, topic: bytes = b"t", payload: bytes = b"x") -> bytes:
    batch = RecordBatch()
    attributes = encode_attribute(Attribute.DUE_MS, due_ms.to_bytes(8, "little"))
    batch.append(RecordType.MESSAGE, payload, topic=topic, attributes=attributes, flags=RecordFlag.DELAYED)
    return bytes(batch)


def publish(talk: Talk, sequence: int, records: bytes) -> int:
    """The position that the receipt names."""
    answer = talk.call(Append(sequence), records)
    assert isinstance(answer, Appended)
    return answer.start + 40  # in the batch record


def pages(talk: Talk, limit: int) -> list[tuple[int, int, str, bytes]]:
    found: list[tuple[int, int, str, bytes]] = []
    after: tuple[int, int] | None = (0, 0)
    while after is not None:
        page = talk.call(ListDelayed(after, limit))
        assert isinstance(page, DelayedFound)
        found += page.messages
        after = page.next
    return found


def test_followers_are_told_when_a_delayed_message_is_due(bench: WireBench, talk: Talk, clock: WallClock) -> None:
    following = talk.call(Follow("t", False, -1, False))
    assert isinstance(following, Following)
    publish(talk, 1, delayed(bench.store.now_ms() + 30_000))
    bench.tick()
    assert talk.events(Grew) == []
    clock.ahead_s = 30
    bench.tick()
    (grew,) = talk.events(Grew)
    assert grew.queues == [(following.queues[0].ref, 1)]
    assert payloads(bench.store, "t") == [b"x"]


@pytest.mark.parametrize("limit", [1, 2, 1_000])
def test_pending_delayed_messages_are_listed_by_due_time(bench: WireBench, talk: Talk, limit: int) -> None:
    now_ms = bench.store.now_ms()
    wanted = []
    for i in range(5):
        due_ms = now_ms + 60_000 - 1_000 * (i // 2)
        wanted.append((publish(talk, i + 1, delayed(due_ms, b"t/%d" % i)), due_ms, f"t/{i}", b""))
    assert pages(talk, limit) == sorted(wanted, key=lambda each: (each[1], each[0]))


def test_pages_are_no_longer_than_a_frame(bench: WireBench, talk: Talk) -> None:
    due_ms = bench.store.now_ms() + 60_000
    for i in range(40):
        publish(talk, i + 1, delayed(due_ms, b"t" * 60_000 + b"%d" % i))
    assert [topic[60_000:] for _, _, topic, _ in pages(talk, 1_000)] == [str(i) for i in range(40)]


def test_taking_one_back(bench: WireBench, talk: Talk, clock: WallClock) -> None:
    due_ms = bench.store.now_ms() + 60_000
    at = publish(talk, 1, delayed(due_ms))
    gone = publish(talk, 2, delayed(due_ms, payload=b"gone"))
    bench.restart()
    talk = bench.connect("another")
    assert talk.call(CancelDelayed(gone, due_ms)) == DelayedCancelled(True)
    assert talk.call(CancelDelayed(gone, due_ms)) == DelayedCancelled(False)
    assert talk.call(CancelDelayed(at, due_ms - 1)) == DelayedCancelled(False)
    clock.ahead_s = 61
    bench.tick()
    assert payloads(bench.store, "t") == [b"x"]
    assert talk.call(CancelDelayed(at, due_ms)) == DelayedCancelled(False)


def test_a_pending_message_is_read_as_it_would_be_published(bench: WireBench, talk: Talk) -> None:
    due_ms = bench.store.now_ms() + 30_000
    batch = RecordBatch()
    left_by = encode_attribute(Attribute.LEFT_BY, b"who")
    attributes = left_by + encode_attribute(Attribute.DUE_MS, due_ms.to_bytes(8, "little"))
    flags = RecordFlag.DELAYED | RecordFlag.RETAIN
    batch.append(RecordType.MESSAGE, b"x", topic=b"t", attributes=attributes, flags=flags)
    at = publish(talk, 1, bytes(batch))
    frame = talk.call_frame(GetDelayed(at, due_ms))
    assert frame.message == Got(0)
    (found,) = walk(frame.records)
    assert (found[5], found[9], found[4]) == (b"t", b"x", RecordFlag.RETAIN)
    assert Attribute.LEFT_BY not in decode_attributes(found[7])  # that is between the store and who judges
    for nothing in (GetDelayed(at, due_ms - 1), GetDelayed(at + 8, due_ms)):
        assert isinstance(talk.call(nothing), Failed)
    messages = bench.store
    (carried,) = messages.delayed.page(0, 0, 1)
    again = RecordBatch()
    assert add_again(again, messages.record(carried.log_offset), carried, is_pending=True)
    messages.append(again)
    assert messages.delayed.place(due_ms, at) != at
    assert talk.call_frame(GetDelayed(at, due_ms)).records == frame.records
    assert talk.call(CancelDelayed(at, due_ms)) == DelayedCancelled(True)
    assert isinstance(talk.call(GetDelayed(at, due_ms)), Failed)


def test_cancelled_delayed_message_is_answered_once_that_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = WireBench(tmp_path, flush="sync")
    talk = bench.connect("sdk", Role.CLIENT)
    due_ms = bench.store.now_ms() + 60_000
    at = bench.store.append(RecordBatch.adopt(delayed(due_ms), bytes((RecordType.MESSAGE,))))
    disk = SlowDisk(monkeypatch)
    request = talk.ask(CancelDelayed(at, due_ms))
    assert talk.answer(request) is None
    disk.finish()
    answer = None
    while answer is None:
        answer = talk.answer(request)
    assert answer == DelayedCancelled(True)
    bench.store.close()


def test_how_long_a_delay_may_be(tmp_path: Path) -> None:
    bench = WireBench(tmp_path, max_delay_s=3_600)
    talk = bench.connect("sdk", Role.CLIENT)
    assert talk.welcome.max_delay_s == 3_600
    now_ms = bench.store.now_ms()
    publish(talk, 1, delayed(now_ms + 3_600_000 + 50_000))
    assert isinstance(talk.call(Append(2), delayed(now_ms + 3_600_000 + 120_000)), Failed)
    bench.store.close()
