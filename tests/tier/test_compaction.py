"""The files of a day become few and large, in few steps, and every reader has the same rows all the while."""

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from deltalake import DeltaTable
from duckdb_extensions import import_extension

from penstock.tier.compaction import (
    COMMITS_PER_LOOK,
    Compactor,
    FileMerge,
    MergeRules,
    next_merge,
)
from penstock.tier.data_files import DataFile
from penstock.tier.errors import AnotherStoresTable, FilesReplaced, StorageUnreachable
from penstock.tier.files import index_of, is_merged, read_index
from penstock.tier.history import TableHistory
from penstock.tier.objects import ObjectFolder
from penstock.tier.reading import KeyQuestion, ScanQuestion, TableReader
from penstock.tier.table import TABLE_SCHEMA, TierTable, WrittenLog
from tests.tier.logs import FIRST, NOON_MS, SECOND, START, pieces, plain_rows, stamped, telemetry
from tests.tier.places import TablePlace

Piece = tuple[int, bytes]
FAR = 1 << 40
KB, MB = 1 << 10, 1 << 20
SMALL = MergeRules(
    growth=3,
    full_bytes=200 * KB,
    most_bytes=400 * KB,
    full_log_bytes=100 * KB,
    most_log_bytes=200 * KB,
    sorted_log_bytes=64 * KB,
    group_bytes=4 * KB,
    memory_bytes=64 * KB,
)


def opened(place: TablePlace, identity: str = FIRST, restored_from: dict[str, int] | None = None) -> TierTable:
    written = WrittenLog(identity, START, FAR, restored_from or {})
    return TierTable.open(ObjectFolder(place.url, place.options), written)


def write(table: TierTable, log: Sequence[Piece]) -> None:
    """A commit for each piece."""
    for at, data in log:
        writer = table.begin()
        writer.add(data, at)
        table.commit(writer.finish())


def compactor(place: TablePlace, table: TierTable, rules: MergeRules = SMALL) -> Compactor:
    return Compactor(ObjectFolder(place.url, place.options), table, rules)


def compact(place: TablePlace, table: TierTable, rules: MergeRules = SMALL) -> int:
    """Do all that there is to do. Returns the number of steps."""
    found, steps = compactor(place, table, rules), 0
    while found.step():
        steps += 1
    return steps


def rows(table: DeltaTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pyarrow_table().sort_by("log_offset").select(TABLE_SCHEMA.names).to_pylist()
    return found


def delta(place: TablePlace) -> DeltaTable:
    return DeltaTable(place.url, storage_options=place.options)


def hourly(seed: int, count: int, messages: int = 60) -> list[Piece]:
    """Pieces of a log of three days."""
    found: list[Piece] = []
    at = START
    for number in range(count):
        data = stamped(telemetry(seed + number, messages), at, NOON_MS - 43_000_000 + number * 3 * 86_000_000 // count)
        found.append((at, data))
        at += len(data)
    return found


# --- which files are merged


class Written(NamedTuple):
    """What a day of commits came to: files at its end, the most there were, and how often a byte was written anew."""

    files: list[DataFile]
    most_files: int
    rewritten: float


def lived(sizes: Sequence[int], log_bytes: int, days: Sequence[int], rules: MergeRules) -> Written:
    """Commits of files of these sizes, merged as the compactor does, one look after another."""
    files: list[DataFile] = []
    rewritten, most, at = 0, 0, 0
    for number, (size, day) in enumerate(zip(sizes, days, strict=True)):
        files.append(DataFile(at, at + log_bytes - 1, f"day=2026-11-{day:02}/{at:020}-{number:012x}.parquet", size, 0))
        at += log_bytes
        most = max(most, len(files))
        while number % COMMITS_PER_LOOK == 0 and (chosen := next_merge(files, rules)):
            total = sum(file.size_bytes for file in chosen)
            assert len(chosen) == 1 or total <= rules.most_bytes
            assert len({file.day for file in chosen}) == 1
            rewritten += total
            files = [file for file in files if file not in chosen]
            path = f"day={chosen[0].day}/{chosen[0].first:020}-merged-{number:012x}.parquet"
            files.append(DataFile(chosen[0].first, chosen[-1].last, path, total, 0))
    return Written(files, most, rewritten / sum(sizes))


@pytest.mark.parametrize(
    ("size", "log_bytes", "most_files", "most_rewritten"),
    [
        (20 * KB, 10 * KB, 60, 2.9),  # an idle store: what a file takes at least
        (60 * KB, 600 * KB, 60, 2.9),
        (6 * MB, 58 * MB, 120, 1.8),  # 10,000 messages a second
        (29 * MB, 256 * MB, 250, 1.1),  # 44,000 a second
        (230 * MB, 256 * MB, 1500, 1.1),  # of payloads that do not compress
    ],
)
def test_a_day_of_commits_becomes_few_files_that_are_seldom_written_anew(
    size: int, log_bytes: int, most_files: int, most_rewritten: float
) -> None:
    chance = random.Random(size)
    sizes = [chance.randrange(size * 9 // 10, size) for _ in range(2880 + COMMITS_PER_LOOK)]
    days = [25] * 2880 + [26] * COMMITS_PER_LOOK
    found = lived(sizes, log_bytes, days, MergeRules())
    rules = MergeRules()
    of_the_day = [file for file in found.files if file.day == "2026-11-25"]
    full = [file for file in of_the_day if rules.is_done(file)]
    assert found.most_files <= most_files
    assert found.rewritten <= most_rewritten
    assert len(of_the_day) - len(full) <= 4
    assert not any(rules.is_narrow(file) for file in of_the_day)


@pytest.mark.parametrize("seed", range(5))
def test_commits_of_any_sizes_and_days_come_to_an_end(seed: int) -> None:
    """A clock that goes back puts small files into days that are over."""
    chance = random.Random(seed)
    sizes = [int(MB * 2 ** chance.uniform(-6, 8)) for _ in range(1000)]
    days = [25 + number // 400 - (chance.random() < 0.05) for number in range(1000)]
    found = lived(sizes, 20 * MB, days, MergeRules())
    assert found.most_files < 150
    assert found.rewritten < 6


def test_files_of_others_and_unreadable_ones_stay(tmp_path: Path) -> None:
    files = [DataFile(n * 10, n * 10 + 9, f"day=2026-11-25/{n * 10:020}-{n:012x}.parquet", MB, 0) for n in range(40)]
    assert next_merge(files, MergeRules()) == files
    assert next_merge([], MergeRules()) == ()
    files[20] = files[20]._replace(path="day=2026-11-25/part-00000-54c1c2a6.c000.snappy.parquet")
    assert next_merge(files, MergeRules()) == files[:20]
    assert next_merge(files, MergeRules(), {files[9].path}) == files[21:]


# --- that nothing changes for readers


@pytest.mark.catalogue("N53")
def test_rows_stay_the_same_while_files_become_few(place: TablePlace) -> None:
    log = hourly(1, 30)
    expected = list(plain_rows(log))
    table = opened(place)
    write(table, log[:20])
    before = delta(place)
    files = len(table.files())
    merging = compactor(place, table)
    done, steps = 20, 0
    while merging.step():
        steps += 1
        if done < len(log):  # the dispatcher goes on between the steps
            write(table, log[done : done + 1])
            done += 1
            merging.range_committed()
        if steps % 9 == 0:
            assert rows(delta(place)) == list(plain_rows(log[:done]))
    write(table, log[done:])
    compact(place, table)
    assert rows(delta(place)) == expected
    assert rows(before) == list(plain_rows(log[:20]))
    assert files >= 20
    assert len(table.files()) < 12
    assert any(is_merged(file.path) for file in table.files())


def test_readers_at_the_same_time_see_each_message_once(tmp_path: Path) -> None:
    """DuckDB and pyarrow, again and again while files are merged."""
    place = TablePlace(str(tmp_path / "t"), {})
    table = opened(place)
    log = hourly(13, 40)
    write(table, log)
    expected = [row["log_offset"] for row in plain_rows(log)]
    found: list[list[int]] = []
    is_merged = threading.Event()
    import_extension("delta")

    def read() -> None:
        with duckdb.connect() as connection:
            connection.execute("LOAD delta")
            while True:
                is_last = is_merged.is_set()
                query = f"SELECT log_offset FROM delta_scan('{place.url}') ORDER BY 1"
                found.append([number for (number,) in connection.execute(query).fetchall()])
                found.append(sorted(delta(place).to_pyarrow_table(columns=["log_offset"])["log_offset"].to_pylist()))
                if is_last:
                    return

    reader = threading.Thread(target=read)
    reader.start()
    compact(place, table)
    is_merged.set()
    reader.join()
    assert len(table.files()) < 15
    assert len(found) >= 4
    assert all(each == expected for each in found)


def test_merges_are_commits_that_change_no_data(tmp_path: Path) -> None:
    place = TablePlace(str(tmp_path), {})
    table = opened(place)
    write(table, hourly(2, 12))
    before = delta(place).version()
    compact(place, table)
    found = delta(place)
    assert found.version() > before
    assert found.transaction_version(FIRST) == table.end
    for version in range(before + 1, found.version() + 1):
        text = (tmp_path / f"_delta_log/{version:020}.json").read_text()
        assert '"dataChange":true' not in text
        assert '"remove"' in text


def test_devices_read_the_same(place: TablePlace) -> None:
    log = hourly(3, 16)
    table = opened(place)
    write(table, log)
    objects = ObjectFolder(place.url, place.options)
    before = TableReader(TableHistory(objects, 64 * MB))
    compact(place, table)
    after = TableReader(TableHistory(objects, 64 * MB))
    for topic_filter in ("#", "line/7/temp", "line/+/temp", "$ns:acme/#", "nothing"):
        question = ScanQuestion(topic_filter, 0, table.end)
        assert after.scan(question, MB, MB).records == before.scan(question, MB, MB).records
        at = 0
        while at < table.end:
            small = [reader.scan(question._replace(start=at), 2000, MB) for reader in (before, after)]
            assert small[0] == small[1]
            at = small[0].next
    places = [row["log_offset"] for row in plain_rows(log)][::37]
    assert after.at(places, MB) == before.at(places, MB)
    for number in range(0, 40, 3):
        assert after.seek("line/7/temp", None, number, 0, FAR) == before.seek("line/7/temp", None, number, 0, FAR)
    for hours in range(0, 80, 7):
        at_ms = NOON_MS - 43_000_000 + hours * 3_600_000
        assert after.seek("#", at_ms, 0, 0, FAR) == before.seek("#", at_ms, 0, 0, FAR)
    for key in ("k3", "k17", "k31"):
        wanted = KeyQuestion(key, "", 0, FAR, FAR, 100)
        assert after.find(wanted, MB) == before.find(wanted, MB)


def test_counting_goes_on_from_merged_files(place: TablePlace) -> None:
    log = pieces(4, 16, messages=60)
    table = opened(place)
    write(table, log[:12])
    compact(place, table)
    assert any(is_merged(file.path) for file in table.files())
    table = opened(place)
    write(table, log[12:])
    assert rows(delta(place)) == list(plain_rows(log))
    objects = ObjectFolder(place.url, place.options)
    newest = max(table.files(), key=lambda file: file.last)
    (index,) = read_index(objects.get(index_of(newest.path)))
    of_level = [row for row in plain_rows(log) if not row["namespace"]]
    first = sum(row["log_offset"] < newest.first for row in of_level)
    levels = {each["level"]: each["first_queue_offset"] for each in index["levels"][0].as_py()}
    assert levels[b"line"] == first


def test_rows_of_a_day_that_comes_back_are_not_in_the_range_of_another(tmp_path: Path) -> None:
    """A clock that is set back at midnight. Sorted ranges must not overlap: what is in one is read as one."""
    place = TablePlace(str(tmp_path), {})
    table = opened(place)
    log, at = [], START
    for number in range(24):
        midnight_ms = NOON_MS + 43_200_000
        data = stamped(telemetry(number, 30), at, midnight_ms + (10 if number % 3 == 2 else -10) * 1000 + number)
        log.append((at, data))
        at += len(data)
    write(table, log)
    rules = MergeRules(growth=3, group_bytes=4 * KB)
    compact(place, table, rules)
    objects = ObjectFolder(place.url, place.options)
    ranges = {
        (group["start"][0].as_py(), group["end"][0].as_py())
        for file in table.files()
        for group in read_index(objects.get(index_of(file.path)))
    }
    behind = 0
    for start, end in sorted(ranges):
        assert start >= behind
        behind = end
    assert len(table.files()) < 24
    assert rows(delta(place)) == list(plain_rows(log))


# --- beside another writer, and when storage fails


def test_of_two_that_merge_the_same_files_one_wins(place: TablePlace) -> None:
    log = pieces(5, 12, messages=30)
    one, other = opened(place), opened(place)
    write(one, log)
    objects = ObjectFolder(place.url, place.options)
    merges = [FileMerge(objects, one.files()[:4], one.files(), SMALL) for _ in range(2)]
    for merge in merges:
        for _ in merge.steps():
            pass
    one.replace(merges[0].files, merges[0].written)
    with pytest.raises(FilesReplaced, match="one tier for each table"):
        other.replace(merges[1].files, merges[1].written)
    assert rows(delta(place)) == list(plain_rows(log))


def test_a_log_that_no_longer_writes_merges_nothing(place: TablePlace) -> None:
    table = opened(place)
    write(table, pieces(6, 6, messages=30))
    objects = ObjectFolder(place.url, place.options)
    merge = FileMerge(objects, table.files()[:2], table.files(), SMALL)
    for _ in merge.steps():
        pass
    opened(place, SECOND, {FIRST: table.end})
    with pytest.raises(AnotherStoresTable):
        table.replace(merge.files, merge.written)


@pytest.mark.parametrize("is_put", [True, False])
def test_a_merge_whose_answer_was_lost_is_made_once(
    place: TablePlace, monkeypatch: pytest.MonkeyPatch, is_put: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = pieces(7, 8, messages=30)
    table = opened(place)
    write(table, log)
    put = DeltaTable.create_write_transaction

    def cut_off(*args: Any, **kwargs: Any) -> None:
        if is_put:
            put(*args, **kwargs)
        raise OSError("connection reset by peer")

    merging = compactor(place, table)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", cut_off)
    while merging.step():
        pass
    monkeypatch.undo()
    assert "not merged" in caplog.text
    assert not merging.step(), "it waits before it tries again"
    assert rows(delta(place)) == list(plain_rows(log))
    compact(place, table)
    assert rows(delta(place)) == list(plain_rows(log))
    assert len(table.files()) < 8


def test_a_commit_in_front_of_a_merge_does_no_harm(place: TablePlace) -> None:
    log = pieces(8, 8, messages=30)
    table, other = opened(place), opened(place)
    write(table, log[:7])
    merge = FileMerge(ObjectFolder(place.url, place.options), table.files()[:3], table.files(), SMALL)
    for _ in merge.steps():
        pass
    other = opened(place)
    write(other, log[7:])
    table.replace(merge.files, merge.written)
    assert rows(delta(place)) == list(plain_rows(log))


def test_files_that_cannot_be_read_stay_and_others_are_merged(
    place: TablePlace, caplog: pytest.LogCaptureFixture
) -> None:
    log = hourly(9, 15)
    table = opened(place)
    write(table, log)
    objects = ObjectFolder(place.url, place.options)
    files = sorted(table.files())
    objects.delete([files[2].path, index_of(files[7].path)])
    objects.put(files[12].path, bytes(files[12].size_bytes))
    merging = compactor(place, table)
    for _ in range(4):
        while merging.step():
            pass
    for number in (2, 12):
        assert files[number].path in caplog.text
    assert index_of(files[7].path) in caplog.text
    left = {file.path for file in table.files()}
    assert {files[2].path, files[7].path, files[12].path} <= left
    assert len(left) < 12
    assert len(objects.names("_penstock/index")) >= 15


def test_an_unfinished_merge_leaves_nothing(place: TablePlace) -> None:
    table = opened(place)
    write(table, pieces(10, 12, messages=60))
    objects = ObjectFolder(place.url, place.options)
    before = objects.names()
    merging = compactor(place, table)
    for _ in range(14):
        assert merging.step()
    merging.abandon()
    assert objects.names() == before


def test_merged_files_are_on_the_disk_before_they_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TablePlace(str(tmp_path / "t"), {})
    table = opened(place)
    write(table, pieces(11, 8, messages=30))
    settled: list[list[str]] = []
    settle = ObjectFolder.make_durable

    def noted(objects: ObjectFolder, paths: list[str]) -> None:
        settled.append(paths)
        settle(objects, paths)

    monkeypatch.setattr(ObjectFolder, "make_durable", noted)
    compact(place, table)
    for files, commit in zip(settled[::2], settled[1::2], strict=True):
        assert all(path.endswith((".parquet", ".arrow")) for path in files)
        assert commit[0].startswith("_delta_log/")
    assert settled


def test_an_outage_is_told_once_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = TablePlace(str(tmp_path / "t"), {})
    table = opened(place)
    write(table, pieces(12, 8, messages=30))
    merging = compactor(place, table)

    def away(_: TierTable) -> list[DataFile]:
        raise StorageUnreachable(place.url, "it is away")

    monkeypatch.setattr(TierTable, "files", away)
    assert not merging.step()
    assert not merging.step()
    monkeypatch.undo()
    assert caplog.text.count("it is away") == 1
    assert not merging.step()
    merging._not_before_s = 0.0
    assert merging.step()
