"""Following queues over the wire: events that are merged, and what is pushed without being asked for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from notify.requests import reads
from store.log.commitlog import CommitLog
from store.records._records import ranges_from
from store.records.records import Record
from store.wire.messages import (
    Append,
    Claim,
    Claimed,
    Enough,
    FailureCode,
    Follow,
    Following,
    Goodbye,
    Grew,
    Pushed,
    Ranges,
    Read,
    Safe,
    Unfollow,
)
from tests.support.store_protocol_bench import Talk, WireBench, failure, message
from tests.support.stores import run_upkeep


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


def followed(talk: Talk, topic_filter: str = "t/#", **more: Any) -> Following:
    answer = talk.call(Follow(topic_filter, **({"history": True, "start": -1, "spills": False} | more)))
    assert isinstance(answer, Following)
    return answer


def pushed(talk: Talk) -> list[tuple[int, int, list[bytes]]]:
    """(ref, queue_offset of the first, payloads) of what was pushed since the last call."""
    talk.flush()
    found = []
    for frame in [frame for frame in talk.frames if isinstance(frame.message, Pushed)]:
        talk.frames.remove(frame)
        assert isinstance(frame.message, Pushed)
        came = ranges_from(frame.records, [(first, count) for _, first, count in frame.message.ranges])
        for (ref, first, _), records in zip(frame.message.ranges, came, strict=True):
            found.append((ref, first, [Record._make(records[i]).payload for i in range(records.count)]))
    return found


def test_refs_outlive_the_connection(bench: WireBench) -> None:
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    ref = followed(reader).queues[0].ref
    reader.cut()
    publisher.call(Append(1), message(b"1"))
    reader = bench.connect("gw-2")
    assert [grew.queues for grew in reader.events(Grew)] == [[(ref, 1)]]
    assert len(reader.call_frame(Read([(ref, 0)], 10, 1000)).records) == 48


def test_queue_read_to_its_end_is_pushed(bench: WireBench) -> None:
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    ref, other = followed(reader).queues[0].ref, followed(reader, "t/2").queues[0].ref
    reader.call(Read([(ref, 0)], 10, 1000))
    publisher.call(Append(1), message(b"1", topic=b"t/2"))
    assert pushed(reader) == [(ref, 0, [b"1"])]
    assert [grew.queues for grew in reader.events(Grew)] == [[(other, 1)]]
    publisher.call(Append(2), message(b"2") + message(b"3"))
    publisher.call(Append(3), message(b"4"))
    assert pushed(reader) == [(ref, 1, [b"2", b"3", b"4"])]
    assert reader.events(Grew) == []


def test_safe_offset_is_told_with_a_push_and_alone_when_it_advances_later(
    bench: WireBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    ref = followed(reader).queues[0].ref
    reader.call(Read([(ref, 0)], 10, 1000))
    assert reader.events(Safe) == [Safe(bench.store.end)]
    publisher.call(Append(1), message(b"1"))
    assert [event.safe for event in reader.events(Pushed)] == [bench.store.end]
    safe = bench.store.end
    monkeypatch.setattr(CommitLog, "safe", property(lambda _: safe))
    publisher.ask(Append(2), message(b"2"))
    assert [event.safe for event in reader.events(Pushed)] == [safe]
    assert reader.events(Safe) == []
    safe = bench.store.end
    bench.hub.safe_advanced()
    assert reader.events(Safe) == [Safe(safe)]
    assert publisher.events(Safe) == [], "it follows no queue"


def test_records_read_since_the_queue_grew_are_not_pushed(bench: WireBench) -> None:
    """An empty range would be taken for all that there is at its place, whatever comes there later."""
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    ref = followed(reader).queues[0].ref
    reader.call(Read([(ref, 0)], 10, 1000))
    publisher.call(Append(1), message(b"1"))
    reader.ask(Read([(ref, 0)], 10, 1000))
    assert (pushed(reader), reader.events(Grew)[-1].queues) == ([], [(ref, 1)])
    publisher.call(Append(2), message(b"2"))
    assert pushed(reader) == [(ref, 1, [b"2"])]


def test_push_of_one_queue_comes_with_the_ends_of_the_others(bench: WireBench) -> None:
    """A gateway merges queues that have the same messages: it would deliver one of them twice."""
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    whole, part = (followed(reader, name).queues[0].ref for name in ("t/#", "t/1"))
    publisher.call(Append(1), message(b"1"))
    reader.flush()
    reader.frames.clear()
    publisher.call(Append(2), message(b"2"))
    reader.ask(Read([(whole, 0)], 10, 1000))
    reader.flush()
    grew, ranges = (frame.message for frame in reader.frames if isinstance(frame.message, Grew | Ranges))
    assert isinstance(grew, Grew)
    assert sorted(grew.queues) == [(whole, 2), (part, 2)]
    assert ranges == Ranges([(whole, 0, 2)])


def test_queue_not_read_to_its_end_is_not_pushed(bench: WireBench) -> None:
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    ref = followed(reader).queues[0].ref
    publisher.call(Append(1), message(b"1") + message(b"2"))
    reader.call(Read([(ref, 0)], 1, 1000))
    publisher.call(Append(2), message(b"3"))
    assert (pushed(reader), reader.events(Grew)[-1].queues) == ([], [(ref, 3)])


def ends_told(talk: Talk) -> list[int]:
    """What the frames since the last call said of the log's end, in their order."""
    talk.flush()
    frames, talk.frames = talk.frames, []
    return [frame.message.log_end for frame in frames if isinstance(frame.message, Grew | Pushed | Claimed | Following)]


def test_the_log_s_end_is_told_once_all_queues_are(bench: WireBench) -> None:
    """A gateway that knows of the end takes its readers for having come that far."""
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    ref = followed(reader).queues[0].ref
    followed(reader, "t/1")
    reader.call(Read([(ref, 0)], 10, 1000))
    publisher.call(Append(1), message(b"1"))
    first_end = bench.store.end
    told = ends_told(reader)
    assert told[1] == first_end > told[0]
    publisher.call(Append(2), message(b"2"))
    reader.ask(Claim("c1", False))
    reader.ask(Follow("t/2", True, -1, False))
    assert ends_told(reader) == [first_end, first_end, bench.store.end, bench.store.end]


def test_returning_peer_is_told_the_log_end_after_its_queues(bench: WireBench) -> None:
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    followed(reader)
    followed(reader, "t/1")
    reader.cut()
    publisher.call(Append(1), message(b"1"))
    assert ends_told(bench.connect("gw-2")) == [bench.store.end]


def test_peer_with_enough_pushes_is_told_of_queue_ends_only(bench: WireBench) -> None:
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    ref = followed(reader).queues[0].ref
    reader.call(Read([(ref, 0)], 10, 1000))
    reader.tell(Enough([ref, 99]))
    publisher.call(Append(1), message(b"1"))
    assert (pushed(reader), reader.events(Grew)[-1].queues) == ([], [(ref, 1)])
    reader.call(Read([(ref, 0)], 10, 1000))
    publisher.call(Append(2), message(b"2"))
    assert pushed(reader) == [(ref, 1, [b"2"])]


def test_more_than_an_answer_may_have_is_left_to_be_asked_for(
    bench: WireBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "ANSWER_BYTES", 200)
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    refs = [followed(reader, topic_filter).queues[0].ref for topic_filter in ("t/#", "t/1", "t/2")]
    reader.call(Read([(ref, 0) for ref in refs], 10, 1000))
    publisher.call(Append(1), message(b"1", topic=b"t/1") * 10 + message(b"2", topic=b"t/2"))
    came = pushed(reader)
    (grew,) = reader.events(Grew)
    assert sum(len(payloads) for _, _, payloads in came) < 10
    whole = {ref for ref, first, payloads in came if first + len(payloads) == (11, 10, 1)[refs.index(ref)]}
    assert dict(grew.queues) == {ref: end for ref, end in zip(refs, (11, 10, 1), strict=True) if ref not in whole}
    publisher.call(Append(2), message(b"3", topic=b"t/1"))
    assert {ref for ref, _ in reader.events(Grew)[-1].queues} == {refs[0], refs[1]} - whole


@pytest.mark.parametrize("max_bytes", [1 << 20, 50_000])
def test_a_read_goes_on_where_one_pack_ends(bench: WireBench, max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the entries in memory are those in RocksDB, in packs of some hundreds."""
    monkeypatch.setattr(reads, "ANSWER_S", 60)  # a busy machine is not to end the answer
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    ref = followed(reader, spills=True).queues[0].ref
    for sequence in range(1, 21):
        publisher.call(Append(sequence), b"".join(message(b"%d" % (100 * sequence + i)) for i in range(100)))
        run_upkeep(bench.store)
    frame = reader.call_frame(Read([(ref, 0)], 1_950, max_bytes))
    assert isinstance(frame.message, Ranges)
    ((_, first, count),) = frame.message.ranges
    assert (first, count == 1_950, len(frame.records) < max_bytes + 100) == (0, max_bytes > 50_000, True)
    (records,) = ranges_from(frame.records, [(first, count)])
    assert [Record._make(records[i]).payload for i in range(count)] == [b"%d" % (100 + i) for i in range(count)]
    rest = reader.call(Read([(ref, 1_990)], 8_192, max_bytes))
    assert rest == Ranges([(ref, 1_990, 10)])


def test_new_connection_gets_no_pushes_before_it_reads(bench: WireBench) -> None:
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    ref = followed(reader).queues[0].ref
    reader.call(Read([(ref, 0)], 10, 1000))
    reader.cut()
    reader = bench.connect("gw-2")
    reader.events(Grew)
    publisher.call(Append(1), message(b"1"))
    assert (pushed(reader), reader.events(Grew)[-1].queues) == ([], [(ref, 1)])


def test_events_are_merged(bench: WireBench) -> None:
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    one, two = followed(reader).queues[0].ref, followed(reader, "t/2").queues[0].ref
    reader.events(Grew)
    for sequence in range(1, 11):
        publisher.call(Append(sequence), message(b"x", topic=b"t/%d" % (sequence % 3)))
    assert reader.woken
    (grew,) = reader.events(Grew)
    assert sorted(grew.queues) == [(one, 10), (two, 3)]
    assert grew.log_end == bench.store.end
    assert publisher.events(Grew) == []


def test_a_queue_is_followed_as_often_as_it_was_asked_for(bench: WireBench) -> None:
    publisher, reader = bench.connect("gw-1"), bench.connect("gw-2")
    ref = followed(reader).queues[0].ref
    assert followed(reader).queues[0].ref == ref
    reader.tell(Unfollow([ref]))
    publisher.call(Append(1), message(b"1"))
    assert len(reader.events(Grew)) == 1
    reader.tell(Unfollow([ref, ref, 99]))
    publisher.call(Append(2), message(b"2"))
    assert reader.events(Grew) == []
    assert failure(reader.call(Read([(ref, 0)], 1, 1))) == FailureCode.BAD_REQUEST
    assert followed(reader).queues[0].ref != ref


def test_departed_peer_follows_no_queues(bench: WireBench) -> None:
    reader = bench.connect("gw-2")
    followed(reader, "t/+/x")
    assert bench.store.queues.counts()["live"] == 1
    reader.tell(Goodbye("bye"))
    assert bench.store.queues.counts()["live"] == 0
