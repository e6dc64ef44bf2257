"""Objects of the table are torn, damaged or deleted by hand: one line names them and the remedy, which works."""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock.tier.compaction import Compactor, MergeRules
from penstock.tier.errors import ObjectMissing, TornCommit
from penstock.tier.files import read_index
from penstock.tier.history import TableHistory
from penstock.tier.objects import ObjectFolder
from penstock.tier.reading import ScanQuestion, TableReader
from penstock.tier.table import TABLE_SCHEMA, TierTable, WrittenLog
from tests.support.store_process import StoreProcess
from tests.tier.logs import FIRST, SECOND, START, pieces, plain_rows
from tests.tier.places import TablePlace
from tests.tier.tier_process import SMALL, Tier, publish, wait_until

pytestmark = pytest.mark.s3_by_day

Piece = tuple[int, bytes]
FAR = 1 << 40
LOG = pieces(39, 6)
END = LOG[-1][0] + len(LOG[-1][1])
PAGE = b"<html>sorry</html>"


def opened(place: TablePlace, written: WrittenLog | None = None) -> TierTable:
    return TierTable.open(ObjectFolder(place.url, place.options), written or WrittenLog(FIRST, START, FAR))


def write(table: TierTable, log: Sequence[Piece]) -> None:
    """A commit for each piece."""
    for at, data in log:
        writer = table.begin()
        writer.add(data, at)
        table.commit(writer.finish())


def rows(place: TablePlace) -> list[dict[str, Any]]:
    found = DeltaTable(place.url, storage_options=place.options).to_pyarrow_table().sort_by("log_offset")
    listed: list[dict[str, Any]] = found.select(TABLE_SCHEMA.names).to_pylist()
    return listed


def expected(log: Sequence[Piece]) -> list[dict[str, Any]]:
    return list(plain_rows(log))


def newest_commit(objects: ObjectFolder) -> str:
    return [name for name in objects.names("_delta_log") if name.endswith(".json")][-1]


def history_of(place: TablePlace) -> TableHistory:
    return TableHistory(ObjectFolder(place.url, place.options), 64 << 20)


def scanned(history: TableHistory, end: int, start: int = 0) -> int:
    """How many messages of the default namespace are read between two places."""
    reader, found = TableReader(history), 0
    while start < end:
        page = reader.scan(ScanQuestion("#", start, end), 1 << 20, 1 << 20)
        start, found = page.next, found + page.number
    return found


def readable(log: Sequence[Piece]) -> int:
    """As scanned() should find."""
    return [row["namespace"] for row in expected(log)].count("")


# --- the newest commit


def line_ends(data: bytes) -> list[bytes]:
    """A commit as far as the end of each of its lines but the last, with and without what ends the line."""
    ends = [at for at, byte in enumerate(data) if byte == ord("\n")]
    return [data[:end] for at in ends for end in (at, at + 1)]


TEARS: dict[str, Callable[[bytes], Sequence[bytes]]] = {
    "at the end of a line": line_ends,
    "in a line": lambda data: [data[: len(data) // 3], data[:-1]],
    "zeros": lambda data: [bytes(len(data)), data[: len(data) // 2] + bytes(len(data) - len(data) // 2)],
}


def assert_deleting_helps(place: TablePlace, written: WrittenLog, torn: Sequence[bytes], log: Sequence[Piece]) -> None:
    """The newest commit is torn in each way: the line names it; without it what it said is written again."""
    objects = ObjectFolder(place.url, place.options)
    path = newest_commit(objects)
    whole = objects.get(path)
    objects.delete([path])
    history = history_of(place)
    with suppress(ObjectMissing):  # a table that was not made
        history.refresh()
    for data in torn:
        objects.put(path, data)
        with pytest.raises(TornCommit, match=rf"{path}: .*delete it"):
            opened(place, written)
        with pytest.raises(TornCommit, match=path):
            history.refresh()
    objects.delete([path])
    table = opened(place, written)
    left = [piece for piece in log if piece[0] >= table.end]
    write(table, left[:1])
    assert objects.get(path) != whole
    history.refresh()
    assert history.end == table.end
    assert scanned(history, table.end) == readable(log[: len(log) - len(left) + 1])
    write(table, left[1:])
    assert rows(place) == expected(log)


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_commit_is_named_and_written_again(place: TablePlace, tear: str) -> None:
    write(opened(place), LOG[:3])
    objects = ObjectFolder(place.url, place.options)
    torn = TEARS[tear](objects.get(newest_commit(objects)))
    assert_deleting_helps(place, WrittenLog(FIRST, START, FAR), torn, LOG)


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_commit_that_made_the_table(place: TablePlace, tear: str) -> None:
    opened(place)
    objects = ObjectFolder(place.url, place.options)
    torn = TEARS[tear](objects.get(newest_commit(objects)))
    assert_deleting_helps(place, WrittenLog(FIRST, START, FAR), torn, LOG)


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_commit_of_a_log_that_joined(place: TablePlace, tear: str) -> None:
    table = opened(place)
    write(table, LOG[:3])
    restored = WrittenLog(SECOND, START, FAR, {FIRST: table.end})
    opened(place, restored)
    objects = ObjectFolder(place.url, place.options)
    torn = TEARS[tear](objects.get(newest_commit(objects)))
    assert_deleting_helps(place, restored, torn, LOG)


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_commit_of_merged_files(place: TablePlace, tear: str) -> None:
    table = opened(place)
    write(table, LOG[:3])
    objects = ObjectFolder(place.url, place.options)
    compactor = Compactor(objects, table, MergeRules(growth=2))
    while compactor.step():
        pass
    data = objects.get(newest_commit(objects))
    assert b'"remove"' in data
    assert_deleting_helps(place, WrittenLog(FIRST, START, FAR), TEARS[tear](data), LOG)


def test_an_empty_commit_in_a_folder_counts_for_nothing(tmp_path: Path) -> None:
    """As a power cut mostly leaves it: nobody has to do anything."""
    place = TablePlace(str(tmp_path), {})
    write(opened(place), LOG[:3])
    objects = ObjectFolder(place.url)
    objects.put(newest_commit(objects), b"")
    table = opened(place)
    assert table.end == LOG[2][0]
    write(table, LOG[2:])
    assert rows(place) == expected(LOG)


# --- what is counted


@pytest.mark.parametrize("what", ["deleted", "damaged"])
def test_counting_goes_on_without_counters(
    place: TablePlace, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.tier.table.COMMITS_PER_SNAPSHOT", 2)
    write(opened(place), LOG[:5])
    objects = ObjectFolder(place.url, place.options)
    newest = objects.names("_penstock/counters")[-1]
    for data in (PAGE, b"", objects.get(newest)[:-100]):
        objects.put(newest, data)
        if what == "deleted":
            objects.delete([newest])
        opened(place)
    assert (f"{newest}: is damaged" in caplog.text) == (what == "damaged")
    write(opened(place), LOG[5:])
    assert rows(place) == expected(LOG)


@pytest.mark.parametrize("what", ["deleted", "damaged"])
def test_counting_goes_on_without_an_index(place: TablePlace, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of topics by their rows, and of levels, whose numbers are in indexes alone. Reads want the index back."""
    write(opened(place), LOG[:4])
    objects = ObjectFolder(place.url, place.options)
    names = objects.names("_penstock/index")
    kept = {name: objects.get(name) for name in names}
    for name in names[1:]:
        objects.put(name, kept[name][:-100])
        if what == "deleted":
            objects.delete([name])
    write(opened(place), LOG[4:])
    assert all(name in caplog.text for name in names[1:])
    assert rows(place) == expected(LOG)
    (group,) = read_index(objects.get(objects.names("_penstock/index")[-1]))
    levels = {each["level"]: each["first_queue_offset"] for each in group["levels"][0].as_py()}
    before = [row["namespace"] for row in expected(LOG[:5])]
    assert levels == {b"line": before.count(""), b"$ns:acme": before.count("acme")}
    with pytest.raises(ObjectMissing, match=names[1]):
        scanned(history_of(place), END)
    for name in names:
        objects.put(name, kept[name])
    assert scanned(history_of(place), END) == readable(LOG)


# --- data files


@pytest.mark.parametrize("remedy", ["brought back", "given up"])
def test_a_data_file_that_is_gone_is_named(place: TablePlace, remedy: str) -> None:
    """The history goes on without it, and what is behind it is read."""
    write(opened(place), LOG[:4])
    objects = ObjectFolder(place.url, place.options)
    gone = objects.names("day=2026-11-25")[1]
    data = objects.get(gone)
    objects.delete([gone])
    write(opened(place), LOG[4:])
    with pytest.raises(ObjectMissing, match=f"{gone}: .* bring the object back"):
        scanned(history_of(place), END)
    assert scanned(history_of(place), END, LOG[2][0]) == readable(LOG) - readable(LOG[:2])
    if remedy == "brought back":
        objects.put(gone, data)
        assert scanned(history_of(place), END) == readable(LOG)
        assert rows(place) == expected(LOG)
    else:
        DeltaTable(place.url, storage_options=place.options).repair()
        left = [row for row in expected(LOG) if not LOG[1][0] <= row["log_offset"] < LOG[2][0]]
        assert scanned(history_of(place), END) == readable(LOG) - readable(LOG[:2]) + readable(LOG[:1])
        assert opened(place).end == END
        assert rows(place) == left


# --- as a process


def test_the_tier_says_so_and_goes_on_once_it_is_deleted(tmp_path: Path, seed: int) -> None:
    """The store takes messages meanwhile, and keeps them for the table."""
    rng = random.Random(seed)
    store = StoreProcess(tmp_path, settings=SMALL)
    tier = Tier(tmp_path / "tier.log", store, TablePlace(str(tmp_path / "fleet"), {}))
    try:
        sent = publish(store, 0, 20, rng)
        wait_until(lambda: tier.has(sent))
        tier.kill()
        objects = ObjectFolder(tier.place.url)
        path = newest_commit(objects)
        objects.put(path, objects.get(path)[:-1])
        tier.start()
        wait_until(lambda: "is a part of a commit" in tier.log_text())
        sent = publish(store, sent, 20, rng)
        objects.delete([path])
        wait_until(lambda: tier.has(sent))
        assert [int(row["payload"][:6]) for row in tier.rows()] == list(range(sent))  # type: ignore[index]
        assert tier.log_text().count("is a part of a commit") == 1
    finally:
        tier.kill()
        store.close()
