"""How far ahead of a reader is read: more whenever it had to wait, half of it once memory is too small for that."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from penstock.tier.history import TableHistory
from penstock.tier.objects import ObjectFolder
from penstock.tier.part_reading import PartReading
from penstock.tier.read_ahead import MOST_AHEAD, AheadOfReader, ReadAhead
from penstock.tier.reading import ScanQuestion, TableReader
from penstock.tier.table import TierTable, WrittenLog
from tests.support.stores import wait_until
from tests.tier.logs import FIRST, START, pieces

FAR = 1 << 40
RANGES = 30


@pytest.fixture
def objects(tmp_path: Path) -> ObjectFolder:
    """A table of 30 ranges."""
    objects = ObjectFolder(str(tmp_path / "fleet"))
    table = TierTable.open(objects, WrittenLog(FIRST, START, FAR))
    for at, data in pieces(1, RANGES):
        writer = table.begin()
        writer.add(data, at)
        table.commit(writer.finish())
    return objects


def opened(objects: ObjectFolder, cache_bytes: int = 64 << 20) -> TableHistory:
    history = TableHistory(objects, cache_bytes)
    history.refresh()
    return history


def ahead_of(history: TableHistory) -> ReadAhead:
    return ReadAhead(history, PartReading(history))


def test_a_first_page_reads_nothing_ahead(objects: ObjectFolder) -> None:
    ahead = ahead_of(opened(objects))
    assert ahead.came("#", "", 0) is None
    ahead.goes_on(None, True, ("#", "", 100), FAR)
    assert ahead.came("#", "", 100) == AheadOfReader(0, ())
    assert ahead.came("#", "", 100) is None  # one who goes on there is known by the next page


@pytest.mark.catalogue("N52")
def test_read_ahead_grows_by_a_range_when_a_reader_waited(objects: ObjectFolder) -> None:
    ahead = ahead_of(opened(objects))
    before = AheadOfReader(0, ())
    depths = []
    for number, waited in enumerate((False, True, True, False, True)):
        ahead.goes_on(before, waited, ("#", "", number), FAR)
        came = ahead.came("#", "", number)
        assert came is not None
        before = AheadOfReader(came.depth, ())
        depths.append(came.depth)
    assert depths == [2, 3, 4, 4, 5]
    ahead.goes_on(AheadOfReader(MOST_AHEAD, ()), True, ("#", "", 0), FAR)
    most = ahead.came("#", "", 0)
    assert most is not None
    assert most.depth == MOST_AHEAD


def test_read_ahead_is_checked_at_the_next_range(objects: ObjectFolder) -> None:
    history = opened(objects)
    first, second = islice(history.spans_from(0), 2)
    reading = PartReading(history)
    for span in (first, second):
        reading.prepare(span, "#")
    ahead = ReadAhead(history, reading)
    before = AheadOfReader(2, (*first.places, *second.places), first.end)
    ahead.goes_on(before, False, ("#", "", first.start + 100), FAR)
    assert ahead.came("#", "", first.start + 100) is before
    ahead.goes_on(before, False, ("#", "", first.end), FAR)
    came = ahead.came("#", "", first.end)
    assert came is not None
    assert came.until == 0  # it is being read
    ahead.close()


@pytest.mark.catalogue("N52")
def test_read_ahead_halves_when_its_ranges_were_evicted(objects: ObjectFolder) -> None:
    history = opened(objects)
    gone = tuple(next(history.spans_from(0)).places)
    ahead = ahead_of(history)
    ahead.goes_on(AheadOfReader(8, gone), True, ("#", "", 0), FAR)
    came = ahead.came("#", "", 0)
    assert came is not None
    assert came.depth == 4


def test_a_reader_that_goes_on_finds_its_ranges_there(objects: ObjectFolder) -> None:
    history = opened(objects)
    reader = TableReader(history)
    at, pages = 0, 0
    while at < FAR and pages < 6:
        at = reader.scan(ScanQuestion("#", at, FAR), 2_000, 1 << 20).next
        pages += 1
    spans = history.spans_from(at)
    next(spans)
    second = next(spans).places[0]
    wait_until(lambda: history.has_selected(second, "#"))
    reader.close()


def test_a_topic_is_not_fetched_where_it_is_not(objects: ObjectFolder) -> None:
    history = opened(objects)
    reader = TableReader(history)
    assert reader.scan(ScanQuestion("nothing/here", 0, FAR), 2_000, 1 << 20).next == FAR
    assert not any(history.has_read(place) for span in history.spans_from(0) for place in span.places)
    reader.close()
