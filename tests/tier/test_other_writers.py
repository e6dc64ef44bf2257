"""Another program rewrites the table: what goes on all the same, and what does not."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from penstock.tier.compaction import Compactor
from penstock.tier.errors import ObjectMissing
from penstock.tier.files import index_of
from penstock.tier.objects import ObjectFolder
from penstock.tier.reading import ScanQuestion, TableReader
from tests.tier.logs import pieces
from tests.tier.places import TablePlace
from tests.tier.test_bad_state import END, LOG, expected, history_of, opened, rows, write

pytestmark = pytest.mark.s3_by_day


def optimized(place: TablePlace) -> list[str]:
    """Names of the indexes that the files of another program's OPTIMIZE lack."""
    before = set(DeltaTable(place.url, storage_options=place.options).file_uris())
    DeltaTable(place.url, storage_options=place.options).optimize.compact()
    after = set(DeltaTable(place.url, storage_options=place.options).file_uris())
    found = [index_of(f"day={uri.partition('/day=')[2]}") for uri in after - before]
    assert found
    return found


def test_the_writer_starts_and_goes_on_behind_an_optimize(place: TablePlace) -> None:
    """Queues are counted by the rows; files are merged without those that have no index."""
    write(opened(place), LOG[:4])
    optimized(place)
    table = opened(place)
    write(table, LOG[4:])
    assert rows(place) == expected(LOG)
    compactor = Compactor(ObjectFolder(place.url, place.options), table)
    while compactor.step():
        pass
    optimized(place)  # while a writer has the table open
    write(table, more := pieces(40, 2, start=END))
    assert rows(place) == expected([*LOG, *more])
    assert opened(place).end == more[-1][0] + len(more[-1][1])


def test_reads_through_the_store_name_the_index_that_is_missing(place: TablePlace) -> None:
    """Of what was rewritten; what was written since is read."""
    write(opened(place), LOG[:4])
    (missing,) = optimized(place)
    write(opened(place), LOG[4:])
    reader = TableReader(history_of(place))
    with pytest.raises(ObjectMissing, match=missing):
        reader.scan(ScanQuestion("#", 0, END), 1 << 20, 1 << 20)
    assert reader.scan(ScanQuestion("#", LOG[4][0], END), 1 << 20, 1 << 20).number > 0
