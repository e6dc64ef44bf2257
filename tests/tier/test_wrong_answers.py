"""One answer of the storage is wrong, or does not come: each message is in the table once all the same."""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.tier.errors import TierError
from penstock.tier.objects import ObjectFolder
from penstock.tier.table import TABLE_SCHEMA, TierTable, WrittenLog
from tests.tier.logs import FIRST, START, plain_rows, with_a_gap
from tests.tier.places import BUCKET, TablePlace, s3_options
from tests.tier.storage_wire import END, Mood, StorageWire, cut, wrong

PIECES, PIECES_PER_COMMIT = 9, 2
REQUESTS = 135
"""That it takes to write this log: some more."""
BY_DAY, BY_NIGHT = 2, 40
MOST_TRIES = 5
COMMITS_READ = 25
"""While it writes this log: some more."""
LOG = with_a_gap(39, PIECES)
LOG_END = LOG[-1][0] + len(LOG[-1][1])

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


class OneWrongCommit(StorageWire):
    """A wire where the `at`-th answer that has a commit from now on has another content."""

    def __init__(self, endpoint: str, is_older: bool) -> None:
        self.asked, self.at = 0, -1
        self._is_older = is_older
        super().__init__(endpoint, seed=0)

    async def _answer(self, mood: Mood, head: bytes, body: bytes) -> bytes:
        data = await super()._answer(mood, head, body)
        found = re.match(rb"GET (\S+/_delta_log/)(\d{20})\.json", head)
        if found is None or not data.startswith(b"HTTP/1.1 200"):
            return data
        number, self.asked = self.asked, self.asked + 1
        if number != self.at:
            return data
        older = b"%s%020d.json" % (found[1], max(0, int(found[2]) - 1))
        instead = await self._asked(head.replace(found[0].removeprefix(b"GET "), older, 1), b"")
        content = instead.partition(END)[2] if self._is_older else b""
        fields = [
            line for line in data.partition(END)[0].split(b"\r\n") if not line.lower().startswith(b"content-length")
        ]
        return b"\r\n".join([*fields, b"Content-Length: %d" % len(content)]) + END + content


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
            table = TierTable.open(objects, WrittenLog(FIRST, START, LOG_END), [(b"line/7/temp", 0)])
            try:
                while table.end < LOG_END:
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


@pytest.mark.parametrize("times", [BY_DAY, pytest.param(COMMITS_READ, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("is_older", [True, False], ids=["an older one", "nothing"])
def test_no_file_is_forgotten_after_a_commit_came_with_another_content(
    s3_endpoint: str, is_older: bool, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.tier.table.COMMITS_PER_CHECKPOINT", 3)
    expected = list(plain_rows(LOG))
    with closing(OneWrongCommit(s3_endpoint, is_older)) as wire:
        for at in random.Random(is_older).sample(range(COMMITS_READ), times):
            wire.asked, wire.at = 0, at
            url = f"s3://{BUCKET}/{tmp_path.parent.name}/{tmp_path.name}/{at}"
            write(TablePlace(url, {**s3_options(wire.endpoint), "max_retries": "0"}))
            rows = rows_of(url, s3_endpoint).sort_by("log_offset").select(TABLE_SCHEMA.names)
            assert rows.to_pylist() == expected, f"after commit {at} was read"
            assert wire.asked > at


def rows_of(url: str, s3_endpoint: str) -> pa.Table:
    return DeltaTable(url, storage_options=s3_options(s3_endpoint)).to_pyarrow_table()
