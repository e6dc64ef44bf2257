"""What is read from the table is what the log had, byte for byte, whatever is asked for and in whatever pages."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from lightqueue.queues.matching import has_wildcard
from penstock.columns import NOT_HISTORY
from penstock.tier.errors import ObjectMissing
from penstock.tier.history import TableHistory
from penstock.tier.objects import ObjectFolder
from penstock.tier.reading import KeyQuestion, RecordsThere, ScanQuestion, TableReader
from penstock.tier.table import TierTable, WrittenLog
from penstock.tier.workers import answer_to
from store.records._records import RecordBatch, verify
from store.records.compression import compressed
from store.records.records import (
    Attribute,
    Record,
    RecordFlag,
    RecordType,
    decode_attributes,
    encode_attribute,
    read_records,
)
from store.topics import matches
from store.wire.tier_messages import ReadPlaces, TierFault
from tests.tier.logs import FIRST, NOON_MS, START, pieces, stamped
from tests.tier.places import TablePlace

Piece = tuple[int, bytes]
FAR = 1 << 40
FILTERS = (
    "#",
    "line/#",
    "line/+/temp",
    "line/7/temp",
    "+/7/#",
    "$ns:acme/#",
    "$ns:acme/line/5",
    "nothing/here",
    "line",
)


def written(place: TablePlace, log: Iterable[Piece], per_commit: int = 2) -> TableReader:
    objects = ObjectFolder(place.url, place.options)
    table = TierTable.open(objects, WrittenLog(FIRST, START, FAR))
    log = list(log)
    for at in range(0, len(log), per_commit):
        writer = table.begin()
        for log_offset, data in log[at : at + per_commit]:
            writer.add(data, log_offset)
        table.commit(writer.finish())
    return TableReader(TableHistory(objects, 64 << 20))


def history(log: Iterable[Piece]) -> list[Record]:
    """The messages of a log that are history."""
    records = (record for _, data in log for record in read_records(memoryview(data)))
    return [each for each in records if each.type == RecordType.MESSAGE and not each.flags & NOT_HISTORY]


def scanned(reader: TableReader, wanted: ScanQuestion, max_bytes: int = 4096) -> Iterator[Record]:
    at = wanted.start
    while at < wanted.stop:
        page = reader.scan(wanted._replace(start=at), max_bytes, 1 << 20)
        assert page.next > at
        records = list(read_records(memoryview(page.records)))
        assert len(records) == page.number
        yield from records
        at = page.next


@pytest.mark.catalogue("N47")
@pytest.mark.parametrize("topic_filter", FILTERS)
def test_the_messages_of_a_filter_come_as_the_log_had_them(place: TablePlace, topic_filter: str) -> None:
    log = pieces(1, 7)
    reader = written(place, log)
    expected = [each for each in history(log) if matches(topic_filter, each.topic.decode())]
    assert list(scanned(reader, ScanQuestion(topic_filter, 0, FAR))) == expected
    assert list(scanned(reader, ScanQuestion(topic_filter, 0, FAR), max_bytes=1)) == expected


def test_each_record_has_a_checksum_that_is_right(tmp_path: Path) -> None:
    log = pieces(2, 3)
    reader = written(TablePlace(str(tmp_path / "t"), {}), log)
    page = reader.scan(ScanQuestion("#", 0, FAR), 1 << 20, 1 << 20)
    data, at = memoryview(page.records), 0
    for record in read_records(data):
        verify(data[at : at + record.length], record.log_offset)
        at += record.length
    assert at == len(data)


def test_tier_reading_begins_and_ends_at_any_place(tmp_path: Path) -> None:
    log = pieces(3, 5)
    reader = written(TablePlace(str(tmp_path / "t"), {}), log)
    messages = history(log)
    chance = random.Random(3)
    for _ in range(40):
        start, stop = sorted(chance.randrange(0, messages[-1].log_offset + 500) for _ in range(2))
        expected = [each for each in messages if start <= each.log_offset < stop and not each.topic.startswith(b"$")]
        assert list(scanned(reader, ScanQuestion("#", start, stop))) == expected


def test_a_page_of_a_topic_says_which_of_its_messages_is_the_first(tmp_path: Path) -> None:
    log = pieces(4, 4)
    reader = written(TablePlace(str(tmp_path / "t"), {}), log)
    messages = [each for each in history(log) if each.topic == b"line/7/temp"]
    for number, message in enumerate(messages):
        assert reader.scan(ScanQuestion("line/7/temp", message.log_offset, FAR), 1, 1 << 20).queue_offset == number
    assert reader.scan(ScanQuestion("line/#", 0, FAR), 1, 1 << 20).queue_offset == -1


def tagged(seed: int, count: int) -> Piece:
    batch = RecordBatch()
    for number in range(count):
        attributes = encode_attribute(Attribute.TAG, b"red" if number % 3 else b"blue") if number % 2 else b""
        batch.append(RecordType.MESSAGE, b"%d" % number, topic=b"a", attributes=attributes)
    return START, stamped(batch, START, NOON_MS + seed)


def test_only_messages_with_a_tag(tmp_path: Path) -> None:
    log = [tagged(0, 100)]
    reader = written(TablePlace(str(tmp_path / "t"), {}), log)
    expected = [each for each in history(log) if decode_attributes(each.attributes).get(Attribute.TAG) == b"red"]
    assert list(scanned(reader, ScanQuestion("a", 0, FAR, "red"), max_bytes=1)) == expected
    assert reader.scan(ScanQuestion("a", 0, FAR, "red"), 1 << 20, 1 << 20).queue_offset == -1  # they are not adjacent


def test_a_compressed_payload_comes_plain(tmp_path: Path) -> None:
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, compressed(b"21.5 " * 40, 3), topic=b"a", flags=RecordFlag.COMPRESSED)
    reader = written(TablePlace(str(tmp_path / "t"), {}), [(START, stamped(batch, START, NOON_MS))])
    (record,) = scanned(reader, ScanQuestion("a", 0, FAR))
    assert record.payload == b"21.5 " * 40
    assert not record.flags


def test_message_larger_than_an_answer_is_left_out(tmp_path: Path) -> None:
    batch = RecordBatch()
    for size in (10, 70_000, 10):
        batch.append(RecordType.MESSAGE, bytes(size), topic=b"a")
    reader = written(TablePlace(str(tmp_path / "t"), {}), [(START, stamped(batch, START, NOON_MS))])
    page = reader.scan(ScanQuestion("a", 0, FAR), 1 << 20, 65_536)
    assert [len(each.payload) for each in read_records(memoryview(page.records))] == [10, 10]


def test_messages_by_their_places(place: TablePlace) -> None:
    log = pieces(5, 5)
    reader = written(place, log)
    messages = history(log)
    chance = random.Random(5)
    wanted = chance.sample(messages, 30)
    places = [each.log_offset for each in wanted] + [messages[3].log_offset + 8, 0, FAR]
    there = reader.at(places, 1 << 20)
    assert there.found == [True] * 30 + [False] * 3
    assert list(read_records(memoryview(there.records))) == wanted
    few = reader.at(places, 3 * 120)
    assert 0 < len(few.found) < 30
    for number, message in enumerate(each for each in messages if each.topic == b"line/7/temp"):
        assert reader.at([message.log_offset], 1 << 20).queue_offset == number


@pytest.mark.parametrize("topic_filter", ["line/7/temp", "#", "line/+/temp"])
def test_a_time_leads_to_the_first_message_since_then(tmp_path: Path, topic_filter: str) -> None:
    log = pieces(6, 6)
    reader = written(TablePlace(str(tmp_path / "t"), {}), log)
    messages = [each for each in history(log) if matches(topic_filter, each.topic.decode())]
    for hours in range(0, 30, 3):
        at_ms = NOON_MS + hours * 3_600_000 + 1
        expected = next((each.log_offset for each in messages if each.timestamp_ms >= at_ms), FAR)
        assert reader.seek(topic_filter, at_ms, 0, 0, FAR) == (expected, True)


def test_a_queue_offset_leads_to_its_message(tmp_path: Path) -> None:
    log = pieces(7, 6)
    reader = written(TablePlace(str(tmp_path / "t"), {}), log)
    messages = [each for each in history(log) if each.topic == b"line/7/temp"]
    for number, message in enumerate(messages):
        assert reader.seek("line/7/temp", None, number, 0, FAR) == (message.log_offset, True)
    assert reader.seek("line/7/temp", None, len(messages), 0, FAR) == (FAR, True)


def keyed(count: int) -> list[Piece]:
    found, at = [], START
    for number in range(count):
        batch = RecordBatch()
        for i in range(20):
            key = encode_attribute(Attribute.KEY, b"order-%d" % (i % 4)) if i % 2 else b""
            batch.append(RecordType.MESSAGE, b"%d" % i, topic=b"a/%d" % (i % 3), attributes=key)
        data = stamped(batch, at, NOON_MS + number * 3_600_000)
        found.append((at, data))
        at += len(data)
    return found


def test_messages_with_a_key_come_newest_first(place: TablePlace) -> None:
    log = keyed(6)
    reader = written(place, log)
    for topic_filter, since_ms, until_ms in (("", 0, FAR), ("a/1", 0, FAR), ("a/#", NOON_MS + 1, NOON_MS + 9_000_000)):
        expected = [
            each
            for each in reversed(history(log))
            if decode_attributes(each.attributes).get(Attribute.KEY) == b"order-3"
            and (not topic_filter or matches(topic_filter, each.topic.decode()))
            and since_ms <= each.timestamp_ms < until_ms
        ]
        found, before = [], FAR
        while before:
            page = reader.find(KeyQuestion("order-3", topic_filter, since_ms, until_ms, before, 3), 1 << 20)
            records = list(read_records(memoryview(page.records)))
            assert len(records) == page.number <= 3
            found += records
            before = page.before
        assert found == expected


def test_ranges_committed_later_are_seen(place: TablePlace) -> None:
    log = pieces(8, 6)
    objects = ObjectFolder(place.url, place.options)
    table = TierTable.open(objects, WrittenLog(FIRST, START, FAR))
    reader = TableReader(TableHistory(objects, 64 << 20))
    for number, (at, data) in enumerate(log, 1):
        writer = table.begin()
        writer.add(data, at)
        table.commit(writer.finish())
        assert len(list(scanned(reader, ScanQuestion("line/#", 0, table.end)))) == len(
            [each for each in history(log[:number]) if each.topic.startswith(b"line/")]
        )


def test_a_file_that_is_missing_is_named(place: TablePlace) -> None:
    log = pieces(9, 4)
    reader = written(place, log)
    objects = ObjectFolder(place.url, place.options)
    data = [each for each in objects.names() if each.endswith(".parquet")]
    objects.delete(data[:1])
    with pytest.raises(ObjectMissing, match=data[0].rpartition("/")[2]):
        list(scanned(reader, ScanQuestion("#", 0, FAR)))
    messages = history(log)
    last = [each for each in messages if each.log_offset >= log[-1][0] and not each.topic.startswith(b"$")]
    assert list(scanned(reader, ScanQuestion("#", log[-1][0], FAR))) == last


def test_memory_has_a_bound(tmp_path: Path) -> None:
    log = pieces(10, 12, messages=500)
    place = TablePlace(str(tmp_path / "t"), {})
    written(place, log, per_commit=1)
    history_ = TableHistory(ObjectFolder(place.url, place.options), 200_000)
    reader = TableReader(history_)
    expected = [each for each in history(log) if not has_wildcard(each.topic.decode()) and each.topic[:1] != b"$"]
    assert list(scanned(reader, ScanQuestion("#", 0, FAR))) == expected
    assert history_.cache.used_bytes <= 200_000 + 400_000  # what was read last stays


def test_reading_of_an_empty_or_missing_table(tmp_path: Path) -> None:
    place = TablePlace(str(tmp_path / "t"), {})
    reader = TableReader(TableHistory(ObjectFolder(place.url, place.options), 1 << 20))
    with pytest.raises(ObjectMissing, match="no table"):
        reader.scan(ScanQuestion("#", 0, FAR), 1 << 20, 1 << 20)
    TierTable.open(ObjectFolder(place.url, place.options), WrittenLog(FIRST, START, FAR))
    assert reader.scan(ScanQuestion("#", 0, FAR), 1 << 20, 1 << 20).next == FAR


def test_a_question_that_cannot_be_read_ends_no_worker(tmp_path: Path) -> None:
    class Broken(TableReader):
        def at(self, log_offsets: list[int], limit_bytes: int) -> RecordsThere:
            raise IndexError("what nobody thought of")

    history = TableHistory(ObjectFolder(str(tmp_path / "t")), 1 << 20)
    assert answer_to(Broken(history), ReadPlaces([64]), 1 << 20) == (
        TierFault("the tier cannot read this; its log says more"),
        b"",
    )
