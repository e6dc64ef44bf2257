"""What the table has no use for goes after some hours, and nothing else does."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.tier import table as table_module
from penstock.tier import vacuum as vacuum_module
from penstock.tier.commits import commit_path
from penstock.tier.files import index_of
from penstock.tier.history import TableHistory
from penstock.tier.objects import ObjectFolder
from penstock.tier.reading import ScanQuestion, TableReader
from penstock.tier.table import TierTable
from penstock.tier.vacuum import Vacuum
from store.records.records import read_records
from tests.tier.logs import pieces, plain_rows
from tests.tier.places import TablePlace
from tests.tier.test_compaction import compact, delta, hourly, opened, rows, write

HOUR_S = 3600


def swept(place: TablePlace, table: TierTable, hours: int) -> int:
    """Look through all files once. Returns the number of steps."""
    vacuum, steps = Vacuum(ObjectFolder(place.url, place.options), table, hours, lambda: table.begun), 0
    while vacuum.step():
        steps += 1
    return steps


def files(place: TablePlace) -> set[str]:
    objects = ObjectFolder(place.url, place.options)
    return {*objects.names("_penstock/index"), *(name for name in objects.names() if name.startswith("day="))}


def needed(table: TierTable) -> set[str]:
    return {path for file in table.files() for path in (file.path, index_of(file.path))}


@contextmanager
def hours_later(monkeypatch: pytest.MonkeyPatch, hours: float) -> Iterator[None]:
    """What the tier's own clock shows is later; deltalake and the storage have theirs."""
    with monkeypatch.context() as patch:
        for module in (table_module, vacuum_module):
            patch.setattr(module, "time", _Later(hours))
        yield


class _Later:
    def __init__(self, hours: float) -> None:
        self._more_s = hours * HOUR_S

    def time(self) -> float:
        return time.time() + self._more_s


def test_merged_files_go_after_their_time(place: TablePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    log = hourly(1, 20)
    table = opened(place)
    write(table, log)
    before = delta(place)
    with hours_later(monkeypatch, -30):
        compact(place, table)
    old = files(place) - needed(table)
    assert len(old) > 20
    with hours_later(monkeypatch, 200):
        swept(place, table, 31)
        assert old <= files(place), "they were removed 30 hours ago"
        assert rows(before) == list(plain_rows(log))
        swept(place, table, 30)
    assert files(place) == needed(table)
    assert rows(delta(place)) == list(plain_rows(log))


def test_a_reader_whose_files_went_goes_on_in_the_newest_version(place: TablePlace) -> None:
    log = hourly(12, 20)
    table = opened(place)
    write(table, log)
    reader = TableReader(TableHistory(ObjectFolder(place.url, place.options), 1 << 16))
    wanted = ScanQuestion("line/#", 0, table.end)
    page = reader.scan(wanted, 2_000, 1 << 20)
    found = list(read_records(memoryview(page.records)))
    compact(place, table)
    swept(place, table, 0)
    while page.next < wanted.stop:
        page = reader.scan(wanted._replace(start=page.next), 2_000, 1 << 20)
        found += read_records(memoryview(page.records))
    assert [each.log_offset for each in found] == [
        row["log_offset"] for row in plain_rows(log) if not row["namespace"] and row["topic"].startswith("line/")
    ]


def test_uncommitted_files_are_deleted_by_age(place: TablePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(place)
    write(table, pieces(2, 3))
    before = files(place)
    left = opened(place)  # of a process that was killed
    writer = left.begin()
    writer.add(pieces(3, 1, start=left.end)[0][1], left.end)
    writer.finish()
    assert len(files(place)) == len(before) + 2
    with hours_later(monkeypatch, 47):
        swept(place, table, 48)
        assert len(files(place)) == len(before) + 2
    with hours_later(monkeypatch, 49):
        swept(place, table, 48)
    assert files(place) == before


def test_a_range_that_takes_long_keeps_its_files(place: TablePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    log = pieces(4, 2)
    table = opened(place)
    writer = table.begin()
    for at, data in log:
        writer.add(data, at)
    written = writer.finish()
    with hours_later(monkeypatch, 5):
        swept(place, table, 1)
    table.commit(written)
    assert rows(delta(place)) == list(plain_rows(log))


def test_objects_of_others_stay(place: TablePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(place)
    write(table, pieces(5, 1))
    objects = ObjectFolder(place.url, place.options)
    theirs = ["day=2026-11-25/part-0.parquet", "_penstock/index/notes.txt", "holiday.jpg", "day=1/x-y.parquet"]
    for name in theirs:
        objects.put(name, b"")
    before = set(objects.names())
    with hours_later(monkeypatch, 500):
        swept(place, table, 1)
    found = set(objects.names())
    assert set(theirs) <= found
    assert before - found == set()


def test_the_table_says_how_long_removed_files_are_kept(place: TablePlace) -> None:
    """So that a checkpoint does not forget them, and VACUUM of another program does not delete them."""
    table = opened(place)
    write(table, pieces(6, 1))
    name = "delta.deletedFileRetentionDuration"
    swept(place, table, 168)
    version = delta(place).version()
    assert name not in delta(place).metadata().configuration, "that is what it is without it"
    swept(place, table, 400)
    assert delta(place).metadata().configuration[name] == "interval 400 hours"
    assert delta(place).version() == version + 1
    swept(place, table, 400)
    assert delta(place).version() == version + 1
    assert table.end == delta(place).transaction_version("ab" * 16)


def test_commit_is_on_the_disk_before_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later commit that is there while this one is torn would make the table unreadable."""
    place = TablePlace(str(tmp_path / "t"), {})
    table = opened(place)
    settled: list[str] = []
    settle = ObjectFolder.make_durable

    def noted(objects: ObjectFolder, paths: list[str]) -> None:
        settled.extend(paths)
        settle(objects, paths)

    monkeypatch.setattr(ObjectFolder, "make_durable", noted)
    swept(place, table, 400)
    assert settled == [commit_path(delta(place).version())]


def test_a_checkpoint_does_not_make_files_go_early(place: TablePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    log = hourly(7, 12)
    table = opened(place)
    write(table, log)
    swept(place, table, 400)
    before = delta(place)
    with hours_later(monkeypatch, -300):
        compact(place, table)
    delta(place).create_checkpoint()
    table = opened(place)
    write(table, pieces(8, 1, start=table.end))
    with hours_later(monkeypatch, 500):
        swept(place, table, 400)
    assert rows(before) == list(plain_rows(log))


def test_leftovers_of_a_killed_process_are_deleted(tmp_path: Path) -> None:
    place = TablePlace(str(tmp_path / "t"), {})
    table = opened(place)
    write(table, pieces(9, 1))
    data, index = (tmp_path / "t" / path for path in sorted(needed(table), reverse=True))
    commit = tmp_path / "t" / commit_path(2)
    left = [path.with_name(f"{path.name}#1") for path in (data, index, commit)]
    for path in left:
        path.touch()
    swept(place, table, 2)
    assert all(path.exists() for path in left)
    for path in left:
        os.utime(path, (0, time.time() - 3 * HOUR_S))
    swept(place, table, 2)
    assert not any(path.exists() for path in left)


def test_vacuum_goes_on_step_by_step_and_then_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TablePlace(str(tmp_path / "t"), {})
    table = opened(place)
    write(table, hourly(10, 40))
    compact(place, table)
    monkeypatch.setattr("penstock.tier.objects.LISTED_AT_ONCE", 10)
    vacuum = Vacuum(ObjectFolder(place.url), table, 0, list)
    most, steps = 0, 0
    before = len(files(place))
    while vacuum.step():
        now = len(files(place))
        most, before, steps = max(most, before - now), now, steps + 1
    assert 0 < most <= vacuum_module.DELETED_AT_ONCE
    assert steps > 10
    assert files(place) == needed(table)
    assert not vacuum.step(), "it looks again a day later"


def test_a_failure_is_told_and_the_next_look_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = TablePlace(str(tmp_path / "t"), {})
    table = opened(place)
    write(table, hourly(11, 20))
    compact(place, table)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError("403 Forbidden")

    vacuum = Vacuum(ObjectFolder(place.url), table, 0, list)
    monkeypatch.setattr("obstore.delete", refused)
    while vacuum.step():
        pass
    assert "are deleted later" in caplog.text
    assert "give this process the rights" in caplog.text
    monkeypatch.undo()
    assert not vacuum.step()
    vacuum._not_before_s = 0.0
    while vacuum.step():
        pass
    assert files(place) == needed(table)
    assert isinstance(delta(place), DeltaTable)
