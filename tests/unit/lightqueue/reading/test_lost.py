"""A lost message is counted once, and a reader is told of it with the next message."""

from pathlib import Path

import pytest

from lightqueue.errors import NoSuchPosition
from lightqueue.message_store import MessageStore
from lightqueue.reading import replay
from lightqueue.reading.replay import ScanQuery, scan
from store.records._records import RecordBatch, lost_before, marked, messages_in, records_bytes, verify
from store.records.records import Attribute, Record, RecordType, encode_attribute, lost_of, read_records
from store.recovery.quarantine import Finding, lost_bytes, lost_ranges
from tests.support.injuries import zero
from tests.support.stores import flip, small

END = 1 << 62


def store_of(data: Path, count: int, damaged: set[int], tag_of_odd: bytes = b"odd") -> MessageStore:
    """A store with messages to t/0 and t/1 in turn, those of t/1 with a tag, of which some are damaged."""
    store = MessageStore(small(data, flush="sync"))
    places = []
    for number in range(count):
        batch = RecordBatch()
        attributes = encode_attribute(Attribute.TAG, tag_of_odd) if number % 2 else b""
        topic = b"t/%d" % (number % 2)
        batch.append(RecordType.MESSAGE, b"%d" % number, topic=topic, attributes=attributes)
        places.append(store.append(batch))
    store.close()
    for number in damaged:
        flip(data / "log" / f"{0:020}.log", places[number] + 41)
    return MessageStore(small(data, flush="sync"))


def scanned(
    store: MessageStore, topic_filter: str, tag: bytes = b"", room_bytes: int = 1 << 20
) -> list[tuple[int, int]]:
    """Each message, and how many it says are lost."""
    found, start = [], store.log.first
    while start < store.end:
        page = scan(store, ScanQuery(topic_filter, start, END, tag), room_bytes, 1 << 20)
        found += [(int(record.payload), lost_of(record)) for record in read_records(memoryview(page.records))]
        start = page.next
    return found


@pytest.mark.parametrize("room_bytes", [1 << 20, 100])
def test_a_reader_is_told_with_the_next_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    monkeypatch.setattr(replay, "MOST_ENTRIES", 8)
    damaged = {5, 6, 7, 20, 29}
    store = store_of(tmp_path, 40, damaged)
    left = [number for number in range(40) if number not in damaged]
    assert scanned(store, "t/#", room_bytes=room_bytes) == [(n, {8: 3, 21: 1, 30: 1}.get(n, 0)) for n in left]
    odd = [(n, {9: 2, 31: 1}.get(n, 0)) for n in left if n % 2]
    assert scanned(store, "t/1", room_bytes=room_bytes) == odd
    assert scanned(store, "t/1", b"odd", room_bytes=room_bytes) == odd
    assert scanned(store, "t/#", b"odd", room_bytes=room_bytes) == odd
    assert scanned(store, "t/+", room_bytes=room_bytes) == scanned(store, "t/#")
    of_log = {8: 1, 21: 1, 30: 1}
    assert scanned(store, "+/+", room_bytes=room_bytes) == [(n, of_log.get(n, 0)) for n in left]
    store.close()


def test_each_lost_part_of_the_log_counts(tmp_path: Path) -> None:
    """Also two of them in front of the same message, where no queue says how many messages are lost."""
    store = store_of(tmp_path, 40, {5, 7, 20})
    assert [number for number in scanned(store, "+/1") if number[1]] == [(9, 2), (21, 1)]
    assert [number for number in scanned(store, "+/0") if number[1]] == [(6, 1), (8, 1), (22, 1)]
    store.close()


def test_a_level_s_reader_is_told_with_the_next_that_matches(tmp_path: Path) -> None:
    store = store_of(tmp_path, 20, {6, 7})
    assert [each for each in scanned(store, "+/1") if each[1]] == [(9, 1)]
    store.close()


def test_a_reader_that_begins_behind_it_is_told_as_well_once_that_is_known(tmp_path: Path) -> None:
    """The last ones are lost: whoever comes to the end is told with what is published next."""
    store = store_of(tmp_path, 10, {8, 9})
    end = store.end
    assert scanned(store, "t/#")[-1] == (7, 0)
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, b"10", topic=b"t/0")
    store.append(batch)
    page = scan(store, ScanQuery("t/#", end, END), 1 << 20, 1 << 20)
    assert [lost_of(record) for record in read_records(memoryview(page.records))] == [2]
    store.close()


@pytest.mark.parametrize("room_bytes", [1 << 20, 100])
@pytest.mark.parametrize("topic_filter", ["#", "+/+", "t/#"])
def test_damage_that_arises_while_the_store_runs_is_passed_over(
    tmp_path: Path, topic_filter: str, room_bytes: int
) -> None:
    store = store_of(tmp_path, 40, set())
    path = tmp_path / "log" / f"{0:020}.log"
    places = [record.log_offset for _, data in store.log.ranges(0, 1 << 20) for record in read_records(data)]
    flip(path, places[5] + 41)
    zero(path, places[20], places[22] - places[20])
    left = [number for number in range(40) if number not in {5, 20, 21}]
    of_log = {6: 1, 22: 2 if topic_filter == "t/#" else 1}
    assert scanned(store, topic_filter, room_bytes=room_bytes) == [(n, of_log.get(n, 0)) for n in left]
    with pytest.raises(NoSuchPosition):
        scan(store, ScanQuery("#", places[3] + 8, END), 1 << 20, 1 << 20)
    page = scan(store, ScanQuery("#", places[5], END), 1 << 20, 1 << 20)
    assert next(read_records(memoryview(page.records))).payload == b"6"
    zero(path, places[39], store.end - places[39])
    assert scanned(store, topic_filter, room_bytes=room_bytes)[-1][0] == 38
    store.close()


def test_a_mark_is_a_valid_record() -> None:
    batch = RecordBatch()
    for payload in (b"a", b"b"):
        batch.append(RecordType.MESSAGE, payload, topic=b"t", attributes=encode_attribute(Attribute.KEY, b"k"))
    records = messages_in(bytes(batch))
    told = marked(marked(records, 3, 1), 4, 1)
    assert [lost_before(told, i) for i in range(2)] == [0, 7]
    data = records_bytes(told, 1, 1)
    assert verify(data, 0)[2] in (None, "it bears another log_offset")
    record = Record._make(told[1])
    assert (record.payload, record.topic) == (b"b", b"t")
    lost, key = encode_attribute(Attribute.LOST, (7).to_bytes(8, "little")), encode_attribute(Attribute.KEY, b"k")
    assert record.attributes == lost + key  # and not twice
    assert marked(records, 0) is records


def test_overlapping_findings_count_once() -> None:
    findings = [
        Finding("damaged", "a", 0, 100, ""),
        Finding("missing", "a", 50, 80, ""),
        Finding("missing", "a", 90, 150, ""),
        Finding("torn", "a", 150, 300, ""),
        Finding("damaged", "a", 200, 240, ""),
    ]
    assert lost_bytes(findings) == {"damaged": 140, "missing": 50, "unconfirmed": 0}
    assert lost_ranges(findings) == [(0, 150), (200, 240)]
