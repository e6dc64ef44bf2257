"""Requests of a store's clients: where a Publish is, however often it was sent; messages that were stored before."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lightqueue.queues._queues import unpacked
from lightqueue.reading import replay
from notify.server import peers as peers_module
from notify.settings import WireSettings
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute, read_records
from store.wire.log_messages import Topics, TopicsFound
from store.wire.messages import (
    Append,
    Appended,
    Failed,
    FailureCode,
    Get,
    Goodbye,
    Got,
    Publish,
    Published,
    Role,
    Scan,
    Scanned,
    Seek,
    Sought,
    Wait,
    WireMessage,
)
from tests.support.store_protocol_bench import Talk, WireBench
from tests.support.stores import batch_of, commit_log, fill, run_upkeep

NO_END = 2**63 - 1


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path, WireSettings(client_memory_s=1), segment_bytes=512 << 10)
    yield bench
    bench.store.close()


@pytest.fixture
def talk(bench: WireBench) -> Talk:
    return bench.connect("c", Role.CLIENT)


def messages(*topics: str, flags: int = 1) -> bytes:
    batch = RecordBatch()
    for number, topic in enumerate(topics):
        batch.append(RecordType.MESSAGE, b"%d" % number, topic=topic.encode(), flags=flags)
    return bytes(batch)


def publish(talk: Talk, sequence: int, *topics: str, wait: Wait = Wait.POLICY) -> Published:
    answer = talk.call(Publish(sequence, wait), messages(*topics))
    assert isinstance(answer, Published)
    return answer


def scan(talk: Talk, topic_filter: str, start: int = 0, stop: int = NO_END, max_bytes: int = 1 << 20) -> list[str]:
    """What every Scan of a filter finds, as `topic payload`, and with the queue_offset if it is told."""
    found = []
    while True:
        frame = talk.call_frame(Scan(topic_filter, start, stop, max_bytes))
        answer = frame.message
        assert isinstance(answer, Scanned)
        assert answer.next >= start
        records = list(read_records(frame.records))
        assert len(records) == answer.count
        for number, record in enumerate(records):
            place = f" {answer.queue_offset + number}" if answer.queue_offset >= 0 else ""
            found.append(f"{record.topic.decode()} {record.payload.decode()}{place}")
        if answer.next >= min(stop, answer.log_end):
            return found
        assert answer.next > start
        start = answer.next


def seek(talk: Talk, topic_filter: str, where: str) -> int:
    start = 0
    while True:
        answer = talk.call(Seek(topic_filter, where, start))
        assert isinstance(answer, Sought)
        if answer.found:
            return answer.log_offset
        start = answer.log_offset


# --- publishing


def test_an_answer_says_where_each_run_of_messages_is(talk: Talk) -> None:
    first = publish(talk, 1, "a", "a", "b", "a")
    assert first.queue_offsets == [0, 0, 2]
    second = publish(talk, 2, "b", "a")
    assert second.queue_offsets == [1, 3]
    assert second.log_offset > first.log_offset
    got = talk.call_frame(Get(second.log_offset + 48))
    assert got.message == Got(3)
    (record,) = read_records(got.records)
    assert (record.topic, record.payload, record.log_offset) == (b"a", b"1", second.log_offset + 48)


def test_resent_publish_is_stored_once_and_answered_alike(bench: WireBench, talk: Talk) -> None:
    answers = [publish(talk, sequence, "a", "b") for sequence in (1, 2, 3)]
    assert [publish(talk, sequence, "a", "b") for sequence in (1, 2, 3)] == answers
    talk.cut()
    talk = bench.connect("c", Role.CLIENT)
    assert publish(talk, 2, "a", "b") == answers[1]
    bench.restart()
    talk = bench.connect("c", Role.CLIENT)
    assert [publish(talk, sequence, "a", "b") for sequence in (1, 2, 3)] == answers
    assert publish(talk, 4, "a", "b").queue_offsets == [3, 3]
    assert len(scan(talk, "#")) == 8


def test_a_client_that_was_away_for_longer_than_its_lease_is_still_known(bench: WireBench, talk: Talk) -> None:
    answer = publish(talk, 1, "a")
    talk.cut()
    bench.wait(bench.wire.lease_ms / 1000 + 1)
    assert len(bench.peers) == 0
    assert publish(bench.connect("c", Role.CLIENT), 1, "a") == answer
    bench.restart()
    bench.wait(bench.wire.lease_ms / 1000 + 1)
    assert publish(bench.connect("c", Role.CLIENT), 1, "a") == answer


def test_a_client_is_forgotten_with_its_goodbye(bench: WireBench, talk: Talk) -> None:
    publish(talk, 1, "a")
    talk.tell(Goodbye("done"))
    assert bench.store.peers.get("c") is None


def test_a_producer_is_remembered_longer_and_beyond_its_goodbye(
    bench: WireBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "CLIENTS_REMEMBERED", 2)
    for number in range(4):
        talk = bench.connect(f"producer:{number}", Role.CLIENT)
        publish(talk, 1, "a")
        talk.tell(Goodbye("stored"))
        publish(bench.connect(f"c{number}", Role.CLIENT), 1, "a")
    assert bench.store.peers.get("producer:0") is not None
    bench.wait(bench.wire.lease_ms / 1000 + peers_module.CHECK_CLIENTS_S + 1)
    assert sorted(bench.store.peers) == ["c2", "c3", "producer:2", "producer:3"]


def test_of_too_many_clients_the_oldest_are_forgotten(bench: WireBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "CLIENTS_REMEMBERED", 2)
    bench.wire = WireSettings()
    bench.restart()
    for number in range(4):
        talk = bench.connect(f"c{number}", Role.CLIENT)
        publish(talk, 1, "a")
        talk.cut()
    bench.wait(bench.wire.lease_ms / 1000 + peers_module.CHECK_CLIENTS_S + 1)
    assert sorted(bench.store.peers) == ["c2", "c3"]


def test_resent_publish_older_than_the_memory_has_no_position(bench: WireBench, talk: Talk) -> None:
    for sequence in range(1, 100):
        publish(talk, sequence, "a")
    answer = talk.call(Publish(1, Wait.POLICY), messages("a"))
    assert isinstance(answer, Failed)
    assert answer.code == FailureCode.NO_SUCH_POSITION
    assert publish(talk, 36, "a").queue_offsets == [35]


def test_publish_with_a_used_sequence_and_other_messages_is_refused(talk: Talk) -> None:
    publish(talk, 1, "a")
    for other in (messages("b"), messages("a", "b"), messages("+"), messages("a") * 50):
        assert isinstance(talk.call(Publish(1, Wait.POLICY), other), Failed)
    assert scan(talk, "#") == ["a 0"]


def test_the_same_sequence_counts_appends_and_publishes(talk: Talk) -> None:
    publish(talk, 1, "a")
    assert talk.call(Append(1), messages("a")) == Appended(0, 0)
    assert isinstance(talk.call(Append(2), messages("a")), Appended)
    assert publish(talk, 2, "a").queue_offsets == [1]


def test_live_only_messages_are_in_no_queue(talk: Talk) -> None:
    answer = talk.call(Publish(1, Wait.POLICY), messages("a", flags=RecordFlag.LIVE_ONLY) + messages("a"))
    assert isinstance(answer, Published)
    assert answer.queue_offsets == [-1, 0]
    assert isinstance(talk.call(Get(answer.log_offset)), Failed)


@pytest.mark.parametrize("flush", ["async", "buffered", "sync"])
def test_waiting_for_the_disk(tmp_path: Path, flush: str) -> None:
    bench = WireBench(tmp_path, flush=flush)
    talk = bench.connect("c", Role.CLIENT)
    stored = publish(talk, 1, "a", wait=Wait.STORED)
    log = commit_log(bench.store)
    assert log.committed == log.end > stored.log_offset
    asked = talk.ask(Publish(2, Wait.FLUSHED), messages("a"))
    assert talk.conversation.has_unanswered or log.flusher.flushed == log.end
    log.flusher.flush_now()
    answer = talk.answer(asked)
    assert isinstance(answer, Published)
    assert answer.log_offset < log.flusher.flushed
    bench.store.close()


def test_a_disk_that_fails_is_told_to_who_waits_for_it(bench: WireBench, talk: Talk) -> None:
    commit_log(bench.store).flusher.error = OSError(5, "Input/output error")
    commit_log(bench.store).flusher.flushed = 0
    answer = talk.call(Publish(1, Wait.FLUSHED), messages("a"))
    assert isinstance(answer, Failed)
    commit_log(bench.store).flusher.error = None


# --- reading


def test_scans_of_every_kind_of_filter(talk: Talk) -> None:
    publish(talk, 1, "a/1", "a/2", "b/1", "a", "$x/1")
    publish(talk, 2, "a/1", "c")
    assert scan(talk, "a/1") == ["a/1 0 0", "a/1 0 1"]
    assert scan(talk, "a/#") == ["a/1 0", "a/2 1", "a 3", "a/1 0"]
    assert scan(talk, "a/+") == ["a/1 0", "a/2 1", "a/1 0"]
    assert scan(talk, "+/1") == ["a/1 0", "b/1 2", "a/1 0"]
    assert scan(talk, "#") == ["a/1 0", "a/2 1", "b/1 2", "a 3", "a/1 0", "c 1"]
    assert scan(talk, "$x/#") == ["$x/1 4"]
    assert scan(talk, "nobody") == []


@pytest.mark.parametrize("topic_filter", ["t/1", "t/#", "t/+", "#", "+/1"])
def test_long_scans_go_on_where_they_ended(
    bench: WireBench, talk: Talk, topic_filter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "LOG_BYTES", 32 << 10)
    monkeypatch.setattr(replay, "ROUND_BYTES", 8 << 10)
    monkeypatch.setattr(replay, "MOST_RECORDS", 100)
    for sequence in range(1, 41):
        publish(talk, sequence, *(["t/1", "u"] * 50))
        if sequence % 10 == 0:
            bench.store.write_index()
            fill(bench.store, 1)
    wanted = [f"t/1 {number % 100}" for _ in range(40) for number in range(0, 100, 2)]
    found = [each for each in scan(talk, topic_filter, max_bytes=2_000) if each.startswith("t/")]
    assert [each.rsplit(" ", topic_filter == "t/1")[0] for each in found] == wanted
    bench.restart()
    talk = bench.connect("d", Role.CLIENT)
    middle = seek(talk, topic_filter, f"={bench.store.end // 2}")
    first = scan(talk, topic_filter, stop=middle)
    assert first + scan(talk, topic_filter, start=middle) == scan(talk, topic_filter)


def test_a_message_larger_than_an_answer_is_passed_over(bench: WireBench, talk: Talk) -> None:
    for size in (100, 300 << 10, 200):
        bench.store.append(batch_of(bytes(size), topic=b"t"))
    for topic_filter in ("t", "#"):
        assert len(scan(talk, topic_filter, max_bytes=1_000)) == 3
    bench.peers.max_frame_bytes = 256 << 10
    for topic_filter in ("t", "#"):
        assert len(scan(talk, topic_filter)) == 2


def test_seeking_by_time_and_position(bench: WireBench, talk: Talk) -> None:
    at = [publish(talk, number, "a", "b").log_offset for number in (1, 2, 3)]
    stored_ms = bench.store.log.memory.timestamp_ms(at[2])
    while bench.store.log.memory.timestamp_ms(at[-1]) == stored_ms:
        at.append(publish(talk, len(at) + 1, "a", "b").log_offset)
    later_ms = bench.store.log.memory.timestamp_ms(at[-1])
    for topic_filter in ("a", "a/#", "#"):
        beginning = seek(talk, topic_filter, "1970-01-01T00:00:00+00:00")
        assert scan(talk, topic_filter, start=beginning) == scan(talk, topic_filter)
        assert seek(talk, topic_filter, "earliest") <= at[0]
        assert seek(talk, topic_filter, "now") == bench.store.end
        assert seek(talk, topic_filter, "2999-01-01T00:00:00Z") == bench.store.end
        place = seek(talk, topic_filter, _rfc3339(later_ms))
        assert at[-2] < place <= at[-1]
    assert seek(talk, "a", "@1") == at[1]
    assert seek(talk, "a", "@99") == bench.store.end
    for topic_filter, where in (("+/a", "@1"), ("#", "@1"), ("a/+", "@1"), ("a", "soon")):
        answer = talk.call(Seek(topic_filter, where, 0))
        assert isinstance(answer, Failed)
        assert answer.code == FailureCode.NO_SUCH_POSITION


def _rfc3339(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def test_scan_skips_messages_that_retention_dropped(bench: WireBench, tmp_path: Path) -> None:
    bench = WireBench(tmp_path / "small", segment_bytes=512 << 10, retention_bytes=1 << 20)
    talk = bench.connect("c", Role.CLIENT)
    old = publish(talk, 1, "a", "a")
    fill(bench.store, 5)
    run_upkeep(bench.store)
    assert bench.store.log.first > old.log_offset
    new = publish(talk, 2, "a")
    assert scan(talk, "a") == ["a 0 2"]
    assert scan(talk, "#")[-1] == "a 0"
    assert isinstance(talk.call(Get(old.log_offset)), Failed)
    assert talk.call(Get(new.log_offset)) == Got(2)
    assert seek(talk, "a", "earliest") == bench.store.log.first
    bench.store.close()


# --- one message


def test_no_message_is_made_up_by_a_payload(bench: WireBench, talk: Talk) -> None:
    """The payload is a whole record that bears the very log_offset at which it stands."""
    probe = publish(talk, 1, "a")
    inner = RecordBatch()
    inner.append(RecordType.MESSAGE, b"forged", topic=b"a")
    end = bench.store.end
    outer_header = 40 + 40 + 8  # of the batch, of the record, and its topic, which keeps the payload aligned
    memory = bytearray(bytes(inner))
    memory[8:16] = (end + outer_header).to_bytes(8, "little")
    outer = RecordBatch()
    outer.append(RecordType.MESSAGE, bytes(memory), topic=b"12345678")
    answer = talk.call(Publish(2, Wait.POLICY), bytes(outer))
    assert isinstance(answer, Published)
    assert bench.store.record(end + outer_header).payload == b"forged"
    for log_offset in (end + outer_header, probe.log_offset + 8, probe.log_offset + 1, 0, 2**60, bench.store.end):
        refused = talk.call(Get(log_offset))
        assert isinstance(refused, Failed)
        assert refused.code == FailureCode.NO_SUCH_POSITION
    assert talk.call(Get(answer.log_offset)) == Got(0)


def test_key_and_tag_outlive_the_message_that_retention_carries(tmp_path: Path) -> None:
    bench = WireBench(tmp_path, segment_bytes=512 << 10, retention_bytes=1 << 20)
    talk = bench.connect("c", Role.CLIENT)
    batch = RecordBatch()
    attributes = encode_attribute(Attribute.KEY, b"k") + encode_attribute(Attribute.TAG, b"t")
    batch.append(RecordType.MESSAGE, b"on", topic=b"r", attributes=attributes, flags=RecordFlag.RETAIN)
    talk.call(Publish(1, Wait.POLICY), bytes(batch))
    fill(bench.store, 5)
    run_upkeep(bench.store)
    log_offset = bench.store.retained.get(b"r")
    assert log_offset is not None
    assert bench.store.log.first <= log_offset
    assert bench.store.record(log_offset).attributes.endswith(attributes)
    bench.store.close()


def test_a_tag_is_hashed_into_the_entries(bench: WireBench, talk: Talk) -> None:
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, b"x", topic=b"a", attributes=encode_attribute(Attribute.TAG, b"foobar"))
    talk.call(Publish(1, Wait.POLICY), bytes(batch))
    queue = bench.store.queues.stored("a")
    assert queue is not None
    puts: list[tuple[bytes, bytes]] = []
    assert queue.stage(10, puts) == 1
    pack = unpacked(puts[-1][1])
    assert int.from_bytes(pack[12:20], "little") == 0x85944171F73967E8  # FNV-1a of "foobar", from its authors' page


def test_gateways_do_not_ask_for_these(bench: WireBench) -> None:
    asked: list[WireMessage] = [Publish(1, Wait.POLICY), Get(64)]
    for message in asked:
        gateway = bench.connect("gw")
        with pytest.raises(Exception, match="is not for a gateway to send"):
            gateway.ask(message)


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_topics_that_match_a_filter(
    bench: WireBench, talk: Talk, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "MOST_NAMES", at_once)
    published = publish(talk, 1, "a", "a/1", "a/2", "a/2/x", "a/é", "ab/1", "b/2", "$s/2", "/2")
    assert matching(talk, "a/#") == ([], 0, 0)  # none is in the index so far
    bench.store.write_index()
    end = bench.store.end
    assert end > published.log_offset
    assert matching(talk, "a/#") == (["a", "a/1", "a/2", "a/2/x", "a/é"], 6, end)
    assert matching(talk, "a/+") == (["a/1", "a/2", "a/é"], 4, end)
    assert matching(talk, "+/2") == (["/2", "a/2", "b/2"], 9, end)
    assert matching(talk, "$s/+") == (["$s/2"], 1, end)
    assert matching(talk, "c/#") == ([], 0, end)


def matching(talk: Talk, topic_filter: str) -> tuple[list[str], int, int]:
    """All topics; how many were looked at; and up to where they are known, which nothing moves meanwhile."""
    topics: list[str] = []
    looked_at, after = 0, ""
    while True:
        answer = talk.call(Topics(topic_filter, after))
        assert isinstance(answer, TopicsFound)
        topics += answer.topics
        looked_at += answer.looked_at
        if not answer.next:
            return topics, looked_at, answer.known_until
        assert answer.next > after
        after = answer.next


def test_topics_fill_no_more_than_a_frame(tmp_path: Path) -> None:
    bench = WireBench(tmp_path, WireSettings(max_frame_bytes=1 << 20))
    talk = bench.connect("c", Role.CLIENT)
    names = [f"long/{number:02}/" + "x" * 60_000 for number in range(40)]
    for sequence, name in enumerate(names, 1):
        publish(talk, sequence, name)
    bench.store.write_index()
    assert matching(talk, "long/#")[0] == names
    bench.store.close()
