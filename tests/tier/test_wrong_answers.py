"""One answer of the storage is wrong, or does not come: each message is in the table once all the same."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.tier.errors import TierError
from penstock.tier.objects import ObjectFolder
from penstock.tier.table import TABLE_SCHEMA, TierTable, WrittenLog
from tests.tier.logs import FIRST, START, plain_rows, with_a_gap
from tests.tier.places import BUCKET, TablePlace, s3_options
from tests.tier.storage_wire import Mood, StorageWire, cut, wrong

PIECES, PIECES_PER_COMMIT = 9, 2
REQUESTS = 135
"""That it takes to write this log: some more."""
BY_DAY, BY_NIGHT = 2, 40
MOST_TRIES = 5
LOG = with_a_gap(39, PIECES)
END = LOG[-1][0] + len(LOG[-1][1])

Way = Callable[[bytes], bytes]
WAYS: dict[str, tuple[bool, Way]] = {
    "a page, and it is not done": (False, lambda _: wrong(b"", is_page=True)),
    "a page, and it is done": (True, lambda data: wrong(data, is_page=True)),
    "half of it": (True, lambda data: wrong(data, is_page=False)),
    "cut off": (True, cut),
    "nothing, and it is not done": (False, lambda _: b""),
}
"""What comes in place of the answer, and whether what was asked for is done."""


class OneWrongAnswer(StorageWire):
    """A wire whose `at`-th answer from now is wrong."""

    def __init__(self, endpoint: str, way: str) -> None:
        self.asked = 0
        self.at = -1
        self._is_done, self._way = WAYS[way]
        super().__init__(endpoint, seed=0)

    async def _answer(self, mood: Mood, head: bytes, body: bytes) -> bytes:
        number, self.asked = self.asked, self.asked + 1
        if number != self.at:
            return await super()._answer(mood, head, body)
        return self._way(await self._asked(head, body) if self._is_done else b"")

    def go_wrong(self, at: int) -> None:
        self.asked, self.at = 0, at


@pytest.fixture
def wire(s3_endpoint: str, way: str) -> Iterator[OneWrongAnswer]:
    wire = OneWrongAnswer(s3_endpoint, way)
    yield wire
    wire.close()


def write(place: TablePlace) -> None:
    """As the dispatcher does: after an error it opens the table anew."""
    for _ in range(MOST_TRIES):
        try:
            objects = ObjectFolder(place.url, place.options)
            table = TierTable.open(objects, WrittenLog(FIRST, START, END), [(b"line/7/temp", 0)])
            try:
                while table.end < END:
                    write_range(table)
                return
            finally:
                table.abandon()
        except TierError as error:
            told = error
    raise told


def write_range(table: TierTable) -> None:
    left = [piece for piece in LOG if piece[0] >= table.end]
    writer = table.begin()
    for at, data in left[:PIECES_PER_COMMIT]:
        writer.add(data, at)
    table.commit(writer.finish())


@pytest.mark.parametrize("times", [BY_DAY, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("way", WAYS)
def test_each_message_is_there_once_after_a_wrong_answer(
    wire: OneWrongAnswer, s3_endpoint: str, way: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.tier.table.COMMITS_PER_SNAPSHOT", 2)
    monkeypatch.setattr("penstock.tier.table.COMMITS_PER_CHECKPOINT", 3)
    expected = list(plain_rows(LOG))
    gap, data = LOG[PIECES // 2]
    for at in random.Random(way).sample(range(REQUESTS), times):
        wire.go_wrong(at)
        url = f"s3://{BUCKET}/{tmp_path.parent.name}/{tmp_path.name}/{at}"
        write(TablePlace(url, {**s3_options(wire.endpoint), "max_retries": "0"}))
        assert wire.asked > at
        rows = rows_of(url, s3_endpoint).sort_by("log_offset").select(TABLE_SCHEMA.names)
        assert rows.to_pylist() == expected, f"after answer {at}"
        lost = rows_of(f"{url}/_penstock/lost", s3_endpoint).select(["log_offset", "until"])
        assert lost.to_pylist() == [{"log_offset": gap, "until": gap + len(data)}]


def rows_of(url: str, s3_endpoint: str) -> pa.Table:
    return DeltaTable(url, storage_options=s3_options(s3_endpoint)).to_pyarrow_table()
