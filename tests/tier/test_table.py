"""The table has each message of the log once, whoever writes it and whatever was written before."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.tier.errors import (
    AnotherStoresTable,
    BadTierUrl,
    LogBehindTable,
    NotOurTable,
    ObjectMissing,
    RangeTaken,
    StorageRefuses,
    StorageUnreachable,
    TableTooNew,
    TierError,
)
from penstock.tier.files import RangeWriter, index_of, read_index
from penstock.tier.objects import ObjectFolder
from penstock.tier.table import TABLE_SCHEMA, TierTable, WrittenLog
from store.records._records import RecordBatch
from store.records.records import RecordType
from tests.tier.logs import FIRST, NOON_MS, SECOND, START, fnv1a, pieces, plain_rows, stamped
from tests.tier.places import BUCKET, TablePlace, judge_after, s3_options

pytestmark = pytest.mark.s3_by_day

Piece = tuple[int, bytes]
FAR = 1 << 40


def the_log(end: int = FAR, identity: str = FIRST, restored_from: dict[str, int] | None = None) -> WrittenLog:
    return WrittenLog(identity, START, end, restored_from or {})


def opened(place: TablePlace, written: WrittenLog | None = None, seed: Iterable[tuple[bytes, int]] = ()) -> TierTable:
    return TierTable.open(ObjectFolder(place.url, place.options), written or the_log(), seed)


def filled(writer: RangeWriter, log: Iterable[Piece]) -> RangeWriter:
    for at, data in log:
        writer.add(data, at)
    return writer


def skipped(writer: RangeWriter, end: int) -> RangeWriter:
    writer.skip(end)
    return writer


def write(table: TierTable, log: Iterable[Piece]) -> None:
    table.commit(filled(table.begin(), log).finish())


def rows(place: TablePlace) -> list[dict[str, Any]]:
    found = DeltaTable(place.url, storage_options=place.options).to_pyarrow_table().sort_by("log_offset")
    assert set(found.schema.names) == set(TABLE_SCHEMA.names)
    listed: list[dict[str, Any]] = found.select(TABLE_SCHEMA.names).to_pylist()
    return listed


def test_the_rows_are_those_of_the_log(place: TablePlace) -> None:
    log = pieces(1, 6)
    table = opened(place)
    write(table, log[:2])
    write(table, log[2:5])
    write(table, log[5:])
    assert rows(place) == list(plain_rows(log))
    assert table.end == log[-1][0] + len(log[-1][1])


def test_counting_goes_on_after_a_start_with_and_without_a_snapshot(
    place: TablePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = pieces(2, 6)
    write(opened(place), log[:2])
    monkeypatch.setattr("penstock.tier.table.COMMITS_PER_SNAPSHOT", 2)
    write(opened(place), log[2:3])  # with a snapshot
    names = ObjectFolder(place.url, place.options).names("_penstock/counters")
    assert len(names) == 1
    monkeypatch.setattr("penstock.tier.table.COMMITS_PER_SNAPSHOT", 100)
    write(opened(place), log[3:5])
    write(opened(place), log[5:])
    assert rows(place) == list(plain_rows(log))


def test_a_table_that_begins_late_counts_from_what_it_is_told(place: TablePlace) -> None:
    table = opened(place, seed=[(b"line/1/temp", 70), (b"line/#", 700)])
    log = pieces(3, 1)
    write(table, log)
    found = [row["queue_offset"] for row in rows(place) if row["topic"] == "line/1/temp"]
    assert found == list(range(70, 70 + len(found)))
    (file,) = DeltaTable(place.url, storage_options=place.options).get_add_actions(flatten=True)["path"].to_pylist()
    (index,) = read_index(ObjectFolder(place.url, place.options).get(index_of(file)))
    levels = {each["level"]: each for each in index["levels"][0].as_py()}
    assert levels[b"line"]["first_queue_offset"] == 700
    assert levels[b"$ns:acme"]["first_queue_offset"] == 0


def test_the_index_says_where_each_topic_is(place: TablePlace) -> None:
    log = pieces(4, 6)
    write(opened(place), log)
    objects = ObjectFolder(place.url, place.options)
    expected = list(plain_rows(log))
    found = 0
    for path in pa.table(DeltaTable(place.url, storage_options=place.options).get_add_actions())["path"].to_pylist():
        data = pa.parquet.ParquetFile(pa.BufferReader(objects.get(path)))
        for number, group in enumerate(read_index(objects.get(index_of(path)))):
            part = data.read_row_group(number).to_pylist()
            assert group["rows"][0].as_py() == len(part)
            in_group = [
                row for row in expected if group["start"][0].as_py() <= row["log_offset"] < group["end"][0].as_py()
            ]
            assert len(in_group) == len(part)
            topics = group["topics"][0].as_py()
            assert [each["topic"] for each in topics] == sorted(each["topic"] for each in topics)
            for each in topics:
                these = part[each["first_row"] : each["first_row"] + each["count"]]
                first = each["first_queue_offset"]
                assert [row["queue_offset"] for row in these] == list(range(first, first + each["count"]))
                assert len({(row["namespace"], row["topic"]) for row in these}) == 1
                found += len(these)
            keys = {row["key"].encode() for row in part if row["key"] is not None}
            assert group["keys"][0].as_py() == sorted(map(fnv1a, keys))
    assert found == len(expected)


def test_an_older_range_is_refused(place: TablePlace) -> None:
    log = pieces(5, 3)
    table = opened(place)
    again = filled(opened(place).begin(), log[:1]).finish()
    write(table, log[:2])
    late = opened(place)
    with pytest.raises(RangeTaken, match="stop one of them"):
        late.commit(again)
    assert rows(place) == list(plain_rows(log[:2]))


def test_of_two_writers_of_a_range_one_wins(place: TablePlace) -> None:
    log = pieces(6, 4)
    one, other = opened(place), opened(place)
    ranges = [filled(one.begin(), log[:2]).finish(), filled(other.begin(), log[:3]).finish()]
    one.commit(ranges[0])
    with pytest.raises(RangeTaken):
        other.commit(ranges[1])
    other.abandon()
    write(one, log[2:])
    assert rows(place) == list(plain_rows(log))
    files = ObjectFolder(place.url, place.options).names("day=2026-11-25")
    assert len(files) == 2, "the loser's file is gone"


def test_a_commit_whose_answer_was_lost_is_not_made_again(place: TablePlace) -> None:
    log = pieces(7, 2)
    table = opened(place)
    written = filled(table.begin(), log[:1]).finish()
    table.commit(written)
    table.commit(written)
    write(table, log[1:])
    assert rows(place) == list(plain_rows(log))


@pytest.mark.parametrize("is_put", [True, False])
def test_after_a_commit_without_an_answer_the_next_range_goes_on(
    place: TablePlace, monkeypatch: pytest.MonkeyPatch, is_put: bool
) -> None:
    """Whether or not it came through, its files are not deleted, and its messages are counted once."""
    log = pieces(18, 3)
    table = opened(place)
    put = DeltaTable.create_write_transaction

    def cut_off(*args: Any, **kwargs: Any) -> None:
        if is_put:
            put(*args, **kwargs)
        raise OSError("connection reset by peer")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", cut_off)
    with pytest.raises(StorageUnreachable):
        write(table, log[:1])
    table.abandon()
    monkeypatch.undo()
    write(table, log[1:])
    assert rows(place) == list(plain_rows(log))


def test_a_file_that_failed_is_written_anew_under_another_name(tmp_path: Path) -> None:
    place = TablePlace(str(tmp_path / "fleet"), {})
    log = pieces(19, 1)
    table = opened(place)
    in_the_way = tmp_path / "fleet/day=2026-11-25"
    in_the_way.touch()
    with pytest.raises(TierError, match="day=2026-11-25"):
        write(table, log)
    in_the_way.unlink()
    write(table, log)
    assert rows(place) == list(plain_rows(log))


def test_a_commit_is_on_the_disk_before_the_table_says_where_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files first, then the commit; and at a start, as the writer before may have been killed between the two."""
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    place = TablePlace(str(tmp_path), {})
    table = opened(place)
    assert synced[0] == "_delta_log/00000000000000000000.json"
    synced.clear()
    written = filled(table.begin(), pieces(20, 1)).finish()
    table.commit(written)
    assert synced.index("_delta_log/00000000000000000001.json") > max(synced.index(path) for path in written.paths)
    assert {"day=2026-11-25", "_penstock/index", "_delta_log", "."} <= set(synced)
    synced.clear()
    opened(place)
    assert synced[0] == "_delta_log/00000000000000000001.json"


def test_a_disk_that_does_not_sync_is_named_and_its_files_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TablePlace(str(tmp_path / "fleet"), {})
    log = pieces(21, 1)
    table = opened(place)

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    written = filled(table.begin(), log).finish()
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageUnreachable, match="day=2026-11-25"):
        table.commit(written)
    monkeypatch.undo()
    assert rows(place) == []
    write(table, log)
    assert rows(place) == list(plain_rows(log))


def test_a_commit_goes_on_behind_one_of_somebody_else(place: TablePlace) -> None:
    log = pieces(8, 2)
    table = opened(place)
    written = filled(table.begin(), log).finish()
    DeltaTable(place.url, storage_options=place.options).alter.set_table_description("a fleet")
    table.commit(written)
    assert rows(place) == list(plain_rows(log))


def test_an_unfinished_range_leaves_nothing(place: TablePlace) -> None:
    log = pieces(9, 3)
    table = opened(place)
    filled(table.begin(), log).finish()
    write(table, log)  # begins anew
    assert rows(place) == list(plain_rows(log))
    objects = ObjectFolder(place.url, place.options)
    assert len(objects.names("_penstock/index")) == len(
        objects.names("day=2026-11-25") + objects.names("day=2026-11-26")
    )


def test_a_piece_that_is_not_the_next_one_is_refused(place: TablePlace) -> None:
    log = pieces(10, 3)
    writer = opened(place).begin()
    writer.add(log[0][1], log[0][0])
    with pytest.raises(ValueError, match="range ends at"):
        writer.add(log[2][1], log[2][0])


def test_lost_ranges_have_a_table(place: TablePlace) -> None:
    batch = RecordBatch()
    for _ in range(2):
        batch.append(RecordType.GAP, bytes(104))
    gaps = stamped(batch, START, NOON_MS)
    behind = pieces(11, 1, start=START + len(gaps))
    table = opened(place)
    writer = table.begin()
    writer.add(gaps, START)
    filled(writer, behind)
    end = writer.end
    writer.lose(end + 4096)
    table.commit(writer.finish())
    more = pieces(12, 1, start=end + 4096)
    write(table, more)
    assert rows(place) == list(plain_rows([*behind, *more]))
    lost = DeltaTable(f"{place.url}/_penstock/lost", storage_options=place.options).to_pyarrow_table().to_pylist()
    assert sorted((each["log_offset"], each["until"]) for each in lost) == [
        (START, START + len(gaps)),
        (end, end + 4096),
    ]
    assert {each["log"] for each in lost} == {FIRST}


# --- whose table it is


def test_a_restored_log_goes_on_behind_the_table(place: TablePlace) -> None:
    log = pieces(13, 2)
    table = opened(place)
    write(table, log)
    leap = table.end + 1_000_000
    with pytest.raises(LogBehindTable):
        opened(place, the_log(identity=SECOND, restored_from={FIRST: table.end - 8}))
    with pytest.raises(AnotherStoresTable):
        opened(place, the_log(identity=SECOND, restored_from={"33" * 16: leap}))
    restored = opened(place, the_log(identity=SECOND, restored_from={"33" * 16: leap, FIRST: leap}))
    assert restored.end == table.end, "it goes on where the other log ended"
    more = pieces(14, 1, start=leap)
    written = filled(table.begin(), pieces(14, 1, start=table.end)).finish()
    restored.commit(filled(skipped(restored.begin(), leap), more).finish())
    assert [row["log_offset"] for row in rows(place)] == [row["log_offset"] for row in plain_rows([*log, *more])]
    assert rows(place) == list(plain_rows([*log, *more])), "counting goes on"
    with pytest.raises(AnotherStoresTable):
        table.commit(written)
    with pytest.raises(AnotherStoresTable):
        opened(place)
    with pytest.raises(AnotherStoresTable):  # a second one of the same backup: it has other messages at these places
        opened(place, the_log(identity="44" * 16, restored_from={FIRST: leap}))
    write(opened(place, the_log(identity=SECOND)), pieces(15, 1, start=restored.end))


def test_an_older_copy_of_the_log_is_refused(place: TablePlace) -> None:
    table = opened(place)
    write(table, pieces(16, 2))
    with pytest.raises(LogBehindTable, match="penstock store restore"):
        opened(place, the_log(end=table.end - 8))


def test_the_table_of_another_store_is_refused(place: TablePlace) -> None:
    opened(place)
    with pytest.raises(AnotherStoresTable, match="a place of its own"):
        opened(place, the_log(identity=SECOND))


def test_foreign_table_is_refused(place: TablePlace) -> None:
    ObjectFolder(place.url, place.options).put("holiday.jpg", b"a beach")
    with pytest.raises(NotOurTable, match="an empty place"):
        opened(place)


def test_a_table_of_something_else_is_refused(place: TablePlace) -> None:
    write_deltalake(place.url, pa.table({"x": [1]}), storage_options=place.options)
    with pytest.raises(NotOurTable, match="something else"):
        opened(place)


def test_a_newer_table_is_refused(place: TablePlace) -> None:
    opened(place)
    table = DeltaTable(place.url, storage_options=place.options)
    table.alter.set_table_properties({"penstock.format": "2"}, raise_if_not_exists=False)
    with pytest.raises(TableTooNew, match="format 2"):
        opened(place)


@pytest.mark.parametrize("url", ["s4://fleet/x", "ftp://fleet"])
def test_a_wrong_url_is_named(url: str) -> None:
    with pytest.raises(BadTierUrl, match=r"tier\.url wants"):
        ObjectFolder(url)


def test_a_url_with_credentials_is_refused() -> None:
    with pytest.raises(BadTierUrl, match=r"^s3:\.\.\.: is not a folder, or .* keys are in the environment") as error:
        ObjectFolder("s3://key:hidden@bucket/fleet", {})
    assert "hidden" not in str(error.value)


def test_a_bucket_that_is_not_there_is_named(s3_endpoint: str) -> None:
    with pytest.raises(ObjectMissing, match="make the bucket"):
        opened(TablePlace("s3://nobody-made-it/fleet", s3_options(s3_endpoint)))


def test_storage_that_does_not_answer_is_named(free_port: int) -> None:
    options = {**s3_options(f"http://127.0.0.1:{free_port}"), "max_retries": "0"}
    with pytest.raises(StorageUnreachable, match="it is tried again") as failed:
        opened(TablePlace("s3://fleet/x", options))
    assert "\n" not in str(failed.value)


def test_a_key_without_rights_is_named(s3_endpoint: str) -> None:
    judge_after(s3_endpoint, "0")
    try:
        with pytest.raises(StorageRefuses, match="give this process the rights"):
            opened(TablePlace(f"s3://{BUCKET}/no-rights", s3_options(s3_endpoint)))
    finally:
        judge_after(s3_endpoint, "inf")
