"""A queue is read in the table from any queue_offset on: the messages that have these numbers, and no others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from penstock.tier.history import TableHistory
from penstock.tier.objects import ObjectFolder
from penstock.tier.queue_reading import QueuePage, QueueQuestion
from penstock.tier.reading import TableReader
from penstock.tier.table import TierTable
from store.records.records import Record, read_records
from store.topics import matches
from tests.tier.logs import NOON_MS, START, stamped, telemetry
from tests.tier.places import TablePlace
from tests.tier.test_compaction import FAR, SMALL, Piece, compact, hourly, opened, write
from tests.tier.test_reading import history

QUEUES = ("line/7/temp", "line/5", "line/#", "$ns:acme/#", "nothing/#", "nothing")
ROOM = 1 << 20
WIDE = replace(SMALL, sorted_log_bytes=ROOM, full_log_bytes=ROOM, most_log_bytes=2 * ROOM, memory_bytes=ROOM)


def queue_of(log: Iterable[Piece], topic_filter: str) -> list[Record]:
    return [each for each in history(log) if matches(topic_filter, each.topic.decode())]


def records(page: QueuePage) -> list[Record]:
    found = list(read_records(memoryview(page.records)))
    assert len(found) == page.number
    return found


def read_on(reader: TableReader, wanted: QueueQuestion, max_bytes: int) -> list[tuple[int, Record]]:
    """All messages from a queue_offset on, each with its own."""
    found: list[tuple[int, Record]] = []
    number, start = wanted.queue_offset, wanted.start
    while start < wanted.stop:
        page = reader.queue(wanted._replace(queue_offset=number, start=start), max_bytes, ROOM)
        assert page.number == 0 or page.number <= wanted.most
        found += enumerate(records(page), page.queue_offset)
        number = page.queue_offset + page.number if page.number else number
        assert page.next > start or page.number
        if page.next < wanted.stop and page.next >= reader._history.end:
            break
        start = page.next
    return found


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("topic_filter", QUEUES)
def test_a_queue_is_read_on_from_any_number(place: TablePlace, topic_filter: str, is_merged: bool, seed: int) -> None:
    log = hourly(seed, 12)
    table = opened(place)
    write(table, log)
    if is_merged:
        compact(place, table)
    reader = TableReader(TableHistory(ObjectFolder(place.url, place.options), 64 << 20))
    expected = list(enumerate(queue_of(log, topic_filter)))
    chance = random.Random(seed)
    for most, max_bytes in ((8_192, ROOM), (7, ROOM), (8_192, 700)):
        number = chance.randrange(len(expected) + 1)
        assert read_on(reader, QueueQuestion(topic_filter, number, 0, FAR, most), max_bytes) == expected[number:]
    stop = chance.randrange(log[0][0], log[-1][0] + len(log[-1][1]))
    before = [each for each in expected if each[1].log_offset < stop]
    assert read_on(reader, QueueQuestion(topic_filter, 0, 0, stop, 50), ROOM) == before
    later = [each for each in expected if each[1].log_offset >= stop]
    assert read_on(reader, QueueQuestion(topic_filter, 0, stop, FAR, 50), ROOM) == later


def test_a_message_that_no_answer_has_room_for_is_left_out(place: TablePlace) -> None:
    log = hourly(3, 4)
    write(opened(place), log)
    reader = TableReader(TableHistory(ObjectFolder(place.url, place.options), 64 << 20))
    expected = list(enumerate(queue_of(log, "line/#")))
    limit = max(each.length for _, each in expected) - 1
    found: list[tuple[int, Record]] = []
    number = start = 0
    while True:
        page = reader.queue(QueueQuestion("line/#", number, start, FAR, 8_192), ROOM, limit)
        found += enumerate(records(page), page.queue_offset)
        number, start = (page.queue_offset + page.number if page.number else number), page.next
        if page.next >= reader._history.end:
            break
    assert found == [each for each in expected if each[1].length <= limit]
    assert len(found) < len(expected)


def test_messages_not_in_the_table_yet_do_not_count_as_missing(place: TablePlace) -> None:
    log = hourly(4, 4)
    table = opened(place)
    write(table, log[:2])
    reader = TableReader(TableHistory(ObjectFolder(place.url, place.options), 64 << 20))
    written = len(queue_of(log[:2], "line/#"))
    question = QueueQuestion("line/#", written, 0, log[-1][0], 10)
    assert reader.queue(question, ROOM, ROOM) == QueuePage(b"", 0, log[2][0], -1)
    write(table, log[2:])
    page = reader.queue(question._replace(start=log[2][0]), ROOM, ROOM)
    assert (page.queue_offset, records(page)[0]) == (written, queue_of(log, "line/#")[written])


@pytest.mark.parametrize("topic_filter", ["line/7/temp", "line/#"])
def test_messages_behind_lost_ones_keep_their_numbers(place: TablePlace, topic_filter: str, seed: int) -> None:
    """The store counted what retention dropped before it was written; so does the table, also after a kill."""
    log = [(at, stamped(telemetry(seed + at, 60, 10), at, NOON_MS)) for at in range(START, START + (8 << 16), 1 << 16)]
    lost = log[3]
    table = opened(place)
    for at, data in log[:3]:
        add(table, at, data)
    writer = table.begin()
    writer.lose(log[4][0])
    table.commit(writer.finish())
    assert table.is_behind_loss
    table = opened(place)  # it was killed here
    assert table.is_behind_loss
    counted = Counter(each.topic for each in history(log[:4]))
    levels = Counter(topic.partition(b"/")[0] + b"/#" for topic in counted.elements())
    table.count_on([*counted.items(), *levels.items()])
    table = opened(place)
    for at, data in log[4:]:
        add(table, at, data)
    assert not table.is_behind_loss
    expected = [
        each for each in enumerate(queue_of(log, topic_filter)) if not lost[0] <= each[1].log_offset < log[4][0]
    ]
    for is_merged in (False, True):
        if is_merged:
            assert compact(place, table, WIDE) > 0
        reader = TableReader(TableHistory(ObjectFolder(place.url, place.options), 64 << 20))
        assert read_on(reader, QueueQuestion(topic_filter, 0, 0, FAR, 8_192), ROOM) == expected
        last = expected[-1]
        assert read_on(reader, QueueQuestion(topic_filter, last[0], 0, FAR, 8_192), ROOM) == [last]


def add(table: TierTable, at: int, data: bytes) -> None:
    writer = table.begin()
    if writer.end < at:
        writer.skip(at)
    writer.add(data, at)
    table.commit(writer.finish())


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("topic_filter", QUEUES)
def test_queue_reading_tells_the_next_queue_offset(
    place: TablePlace, topic_filter: str, is_merged: bool, seed: int
) -> None:
    log = hourly(seed, 6)
    table = opened(place)
    write(table, log)
    if is_merged:
        compact(place, table)
    reader = TableReader(TableHistory(ObjectFolder(place.url, place.options), 64 << 20))
    expected = [each.log_offset for each in queue_of(log, topic_filter)]
    end = log[-1][0] + len(log[-1][1])
    chance = random.Random(seed)
    for start in (end, *(chance.randrange(log[0][0], end) for _ in range(30))):
        if start in expected:
            continue
        page = reader.queue(QueueQuestion(topic_filter, 0, start, start + 1, 1), 1, ROOM)
        before = sum(each < start for each in expected)
        assert page[1:] == (0, page.next, -1, before or -1)
    behind_lost = reader.queue(QueueQuestion(topic_filter, 0, end + 4096, end + 4097, 1), 1, ROOM)
    assert behind_lost.upcoming == -1
