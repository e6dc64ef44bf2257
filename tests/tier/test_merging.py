"""Merged files have the rows of those that they were made from, sorted over wider ranges, and say where topics are."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.tier.compaction import FileMerge, MergeRules
from penstock.tier.counters import QueueCounters
from penstock.tier.data_files import DataFile
from penstock.tier.errors import MergeDiffers, ObjectMissing
from penstock.tier.files import RangeWriter, WrittenFile, index_of, read_index
from penstock.tier.merging import RangeMerge, SortedRows, joined, sorted_ranges
from penstock.tier.objects import ObjectFolder
from store.namespaces import Namespace
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordType, encode_attribute
from tests.tier.logs import NOON_MS, START, fnv1a, plain_rows, stamped

Piece = tuple[int, bytes]
KB = 1 << 10
RULES = MergeRules(sorted_log_bytes=128 * KB, group_bytes=8 * KB, memory_bytes=96 * KB)


def log_of(seed: int, count: int, start: int = START) -> list[Piece]:
    """Pieces of a log with topics that are busy by turns, now and then a large message, and messages with a key."""
    chance = random.Random(seed)
    topics = [b"line/%d" % n for n in range(30)] + [b"line", b"line-2/1", b"$ns:acme/a/b", b"$ns:acme/line/7", b"z"]
    found: list[Piece] = []
    at = start
    for _ in range(count):
        batch = RecordBatch()
        busy = chance.choice(topics)
        for _ in range(chance.randrange(1, 120)):
            topic = busy if chance.random() < 0.3 else chance.choice(topics)
            key = encode_attribute(Attribute.KEY, b"k%d" % chance.randrange(9)) if chance.random() < 0.1 else b""
            payload = chance.randbytes(chance.choice((0, 5, 40, 40, 40, 3000)))
            batch.append(RecordType.MESSAGE, payload, topic=topic, client_id=b"d%d" % (at % 7), attributes=key, flags=1)
        data = stamped(batch, at, NOON_MS + len(found) * 1000)
        found.append((at, data))
        at += len(data)
    return found


def files_of(objects: ObjectFolder, log: Iterable[Piece], per_range: int, chance: random.Random) -> list[DataFile]:
    """The log in files as the dispatcher writes them: with row groups of some pieces."""
    counters, found = QueueCounters(), []
    pieces = list(log)
    for at in range(0, len(pieces), per_range):
        writer = RangeWriter(objects, counters, pieces[at][0])
        for log_offset, data in pieces[at : at + per_range]:
            writer.add(data, log_offset)
            if chance.random() < 0.3:
                writer.skip(writer.end)  # so that a row group ends
        found += [listed(file) for file in writer.finish().files]
        counters.commit()
    return found


def listed(file: WrittenFile) -> DataFile:
    return DataFile(*file.log_offsets, file.path, file.size_bytes, file.times_ms[1])


def merged(objects: ObjectFolder, files: list[DataFile], rules: MergeRules) -> list[DataFile]:
    merge = FileMerge(objects, files, files, rules)
    for _ in merge.steps():
        pass
    return [listed(file) for file in merge.written]


def rows_of(objects: ObjectFolder, files: Iterable[DataFile]) -> list[dict[str, Any]]:
    tables = [pq.read_table(pa.BufferReader(objects.get(file.path))) for file in files]
    found: list[dict[str, Any]] = pa.concat_tables(tables).sort_by("log_offset").to_pylist()
    return found


def in_log(row: dict[str, Any]) -> bytes:
    topic: str = Namespace(row["namespace"]).topic(row["topic"])
    return topic.encode()


def groups_of(objects: ObjectFolder, file: DataFile) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Of each row group what the index says, and the rows."""
    data = pq.ParquetFile(pa.BufferReader(objects.get(file.path)))
    index = list(read_index(objects.get(index_of(file.path))))
    assert len(index) == data.num_row_groups
    for number, of in enumerate(index):
        yield {name: column[0].as_py() for name, column in of.items()}, data.read_row_group(number).to_pylist()


def check(objects: ObjectFolder, files: Iterable[DataFile], expected: list[dict[str, Any]], group_bytes: int) -> None:
    """The index is right, ranges do not overlap, and the rows of each range are sorted."""
    level_counts: dict[bytes, int] = {}
    numbers = {}
    for row in expected:
        level = in_log(row).partition(b"/")[0]
        numbers[row["log_offset"]] = level_counts.get(level, 0)
        level_counts[level] = numbers[row["log_offset"]] + 1
    behind = 0
    for file in sorted(files):
        found = list(groups_of(objects, file))
        for (start, end), of_range in groupby(found, lambda group: (group[0]["start"], group[0]["end"])):
            groups = list(of_range)
            assert behind <= start < end
            behind = end
            rows = [row for _, part in groups for row in part]
            assert rows == sorted(rows, key=lambda row: (in_log(row), row["log_offset"]))
            assert [row["log_offset"] for row in sorted(rows, key=lambda row: int(row["log_offset"]))] == [
                row["log_offset"] for row in expected if start <= row["log_offset"] < end
            ]
            for index, part in groups:
                check_group(index, part)
                assert len(part) == 1 or sum(len(row["payload"]) for row in part) <= group_bytes
            check_levels(groups, rows, numbers)


def check_group(index: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    assert index["rows"] == len(rows)
    names = [each["topic"] for each in index["topics"]]
    assert names == sorted(set(names))
    at = 0
    for each in index["topics"]:
        assert each["first_row"] == at
        these = rows[at : at + each["count"]]
        assert {in_log(row) for row in these} == {each["topic"]}
        first = each["first_queue_offset"]
        assert [row["queue_offset"] for row in these] == list(range(first, first + len(these)))
        at += len(these)
    assert at == len(rows)
    assert index["keys"] == sorted({fnv1a(row["key"].encode()) for row in rows if row["key"]})


def check_levels(groups: list[Any], rows: list[dict[str, Any]], numbers: dict[int, int]) -> None:
    firsts: dict[bytes, int] = {}
    for row in sorted(rows, key=lambda row: int(row["log_offset"])):
        firsts.setdefault(in_log(row).partition(b"/")[0], numbers[row["log_offset"]])
    for index, part in groups:
        counts = Counter(in_log(row).partition(b"/")[0] for row in part)
        assert index["levels"] == [
            {"level": level, "first_queue_offset": firsts[level], "count": counts[level]} for level in sorted(counts)
        ]


@pytest.mark.parametrize("seed", range(8))
def test_merged_files_have_the_same_rows_sorted_over_wider_ranges(tmp_path: Path, seed: int) -> None:
    objects = ObjectFolder(str(tmp_path))
    chance = random.Random(seed)
    log = log_of(seed, 24)
    expected = [{name: value for name, value in row.items() if name != "day"} for row in plain_rows(log)]
    files = files_of(objects, log, chance.randrange(1, 5), chance)
    wide = 0
    while len(files) > 1:
        number = chance.randrange(2, 7)
        rules = MergeRules(
            sorted_log_bytes=chance.choice((32, 128, 4000)) * KB,
            group_bytes=chance.choice((1, 8, 64)) * KB,
            memory_bytes=chance.choice((1, 48, 500)) * KB,
        )
        once = [files[at : at + number] for at in range(0, len(files), number)]
        files = [each for part in once for each in merged(objects, part, rules)]
        check(objects, files, expected, rules.group_bytes)
        wide = max(len(each.groups) for file in files for each in sorted_ranges(objects, file))
    assert wide > 1
    assert rows_of(objects, files) == expected


def test_a_file_that_is_too_large_is_merged_into_several(tmp_path: Path) -> None:
    objects = ObjectFolder(str(tmp_path))
    log = log_of(20, 12)
    files = merged(objects, files_of(objects, log, 12, random.Random(2)), MergeRules(most_bytes=160 * KB))
    assert len(files) > 2
    assert max(file.size_bytes for file in files) <= 300 * KB
    assert [each["log_offset"] for each in rows_of(objects, files)] == [row["log_offset"] for row in plain_rows(log)]


def test_a_merge_holds_one_row_group_of_each_range(tmp_path: Path) -> None:
    """What is in memory: at most that, what comes out next, and a copy of it."""
    objects = ObjectFolder(str(tmp_path))
    chance = random.Random(4)
    log, at = [], START
    for _ in range(120):
        batch = RecordBatch()
        for number in range(1000):  # in each range the same, so all come to the end of a row group at once
            batch.append(RecordType.MESSAGE, chance.randbytes(1000), topic=b"t/%d" % number)
        log.append((at, stamped(batch, at, NOON_MS)))
        at += len(log[-1][1])
    files = files_of(objects, log, 1, random.Random(1))
    before = pa.default_memory_pool()
    for most_ranges in (6, 20):
        rules = MergeRules(group_bytes=1024 * KB, memory_bytes=most_ranges * 1200 * KB, sorted_log_bytes=1 << 40)
        pool = pa.proxy_memory_pool(before)
        pa.set_memory_pool(pool)
        try:
            files = merged(objects, files, rules)
        finally:
            pa.set_memory_pool(before)
        assert pool.max_memory() < rules.memory_bytes + 3 * rules.group_bytes
    assert len(sorted_ranges(objects, files[0])) == 1


def test_an_index_of_another_file_is_named(tmp_path: Path) -> None:
    objects = ObjectFolder(str(tmp_path))
    one, other = files_of(objects, log_of(5, 4), 2, random.Random(5))
    objects.put(index_of(one.path), objects.get(index_of(other.path)))
    with pytest.raises(ObjectMissing, match=index_of(one.path)):
        merged(objects, [one, other], RULES)


def test_a_merge_that_loses_a_row_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = ObjectFolder(str(tmp_path))
    files = files_of(objects, log_of(6, 4), 2, random.Random(6))
    row_groups = RangeMerge.row_groups

    def without_one(merge: RangeMerge, day: int) -> Iterator[Any]:
        for number, group in enumerate(each for each in row_groups(merge, day) if each is not None):
            if number:
                yield group

    monkeypatch.setattr(RangeMerge, "row_groups", without_one)
    with pytest.raises(MergeDiffers):
        merged(objects, files, RULES)


def test_parts_are_cut_and_joined_again() -> None:
    payloads = [b"x" * n for n in (1, 1, 500, 1, 1, 1, 2000, 1)]
    rows = pa.RecordBatch.from_pydict({"payload": pa.array(payloads, pa.binary())})
    whole = SortedRows(rows, [b"a", b"b", b"c"], pa.array([3, 4, 1]).to_numpy())
    parts = list(whole.cut(600))
    assert [part.rows["payload"].to_pylist() for part in parts] == [payloads[:6], payloads[6:7], payloads[7:]]
    assert [part.topics for part in parts] == [[b"a", b"b"], [b"b"], [b"c"]]
    again = joined(parts)
    assert again.topics == whole.topics
    assert again.counts.tolist() == [3, 4, 1]
    assert again.rows.equals(rows)
