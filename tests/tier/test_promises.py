"""What the tier builds on of deltalake, pyarrow, the object store and the table's readers: tried to be broken."""

import json
import os
import threading
import time
from collections import Counter
from pathlib import Path

import duckdb
import obstore
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction
from duckdb_extensions import import_extension
from obstore.exceptions import AlreadyExistsError

from penstock.tier.objects import ObjectFolder
from tests.tier.places import TablePlace

pytestmark = pytest.mark.s3_by_day

COLUMNS = pa.schema([("day", pa.date32()), ("x", pa.int64())])
SCHEMA = Schema.from_arrow(COLUMNS)
DAY = "2026-11-25"
LOG = "ab12"


def create(place: TablePlace, **configuration: str) -> DeltaTable:
    return DeltaTable.create(
        place.url,
        SCHEMA,
        partition_by=["day"],
        configuration=configuration,
        raise_if_key_not_exists=False,
        storage_options=place.options,
        commit_properties=properties(0),
    )


def opened(place: TablePlace) -> DeltaTable:
    return DeltaTable(place.url, storage_options=place.options)


def properties(version: int, retries: int = 0) -> CommitProperties:
    return CommitProperties(max_commit_retries=retries, app_transactions=[Transaction(LOG, version)])


def add(place: TablePlace, name: str, *values: int) -> AddAction:
    """A file of the table, which is written, but not of it yet. Its statistics are ours."""
    path = f"day={DAY}/{name}.parquet"
    objects = ObjectFolder(place.url, place.options)
    with objects.writer(path) as file:
        pq.write_table(pa.table({"x": values}), file)
    stats = {
        "numRecords": len(values),
        "minValues": {"x": min(values)},
        "maxValues": {"x": max(values)},
        "nullCount": {"x": 0},
    }
    return AddAction(path, file.size_bytes, {"day": DAY}, 0, True, json.dumps(stats))


def commit(table: DeltaTable, file: AddAction, version: int, retries: int = 0) -> None:
    table.create_write_transaction([file], "append", SCHEMA, ["day"], commit_properties=properties(version, retries))


def values(place: TablePlace) -> list[int]:
    found: list[int] = sorted(opened(place).to_pyarrow_table()["x"].to_pylist())
    return found


def test_a_commit_has_our_statistics_and_partition_and_the_version_of_the_application(place: TablePlace) -> None:
    table = create(place)
    commit(table, add(place, "a", 1, 2), 10)
    found = opened(place)
    assert found.transaction_version(LOG) == 10
    assert found.transaction_version("another") is None
    actions = pa.table(found.get_add_actions(flatten=True)).to_pylist()
    assert [(each["min.x"], each["max.x"], str(each["partition.day"])) for each in actions] == [(1, 2, DAY)]
    assert table.version() == 0, "who committed still has the view of before: it has to look again"


def test_a_writer_with_a_stale_view_is_refused_with_and_without_retries(place: TablePlace) -> None:
    create(place)
    stale = opened(place)
    commit(opened(place), add(place, "a", 1), 10)
    for retries in (0, 1, 15):
        with pytest.raises(CommitFailedError):
            commit(stale, add(place, f"late-{retries}", 2), 20, retries)
    assert values(place) == [1]


def test_a_writer_with_a_fresh_view_may_let_the_version_fall(place: TablePlace) -> None:
    """So it is not guarded by deltalake: the tier looks itself. If this fails one day, all the better."""
    create(place)
    commit(opened(place), add(place, "a", 1), 10)
    commit(opened(place), add(place, "b", 2), 5)
    assert opened(place).transaction_version(LOG) == 5


def test_without_retries_a_commit_of_anybody_else_is_a_refusal(place: TablePlace) -> None:
    """Also of one that would not collide, such as a setting of the table."""
    create(place)
    stale = opened(place)
    opened(place).alter.set_table_description("something else")
    with pytest.raises(CommitFailedError):
        commit(stale, add(place, "a", 1), 10)
    commit(opened(place), add(place, "b", 1), 10)


def test_of_writers_at_once_exactly_one_wins(place: TablePlace) -> None:
    create(place)
    results: Counter[str] = Counter()

    def write(number: int, round_: int, together: threading.Barrier) -> None:
        table, file = opened(place), add(place, f"{round_}-{number}", round_)
        together.wait()
        try:
            commit(table, file, round_ + 1)
            results["won"] += 1
        except CommitFailedError:
            results["refused"] += 1

    for round_ in range(5):
        together = threading.Barrier(4)
        threads = [threading.Thread(target=write, args=(number, round_, together)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {"won": 5, "refused": 15}
    assert values(place) == [0, 1, 2, 3, 4]


def test_the_store_refuses_a_second_object_of_a_name(place: TablePlace) -> None:
    """What the table's once-only commit stands on; of eight writers at once, one wins."""
    objects = ObjectFolder(place.url, place.options)
    results: Counter[str] = Counter()

    def put(number: int, name: str, together: threading.Barrier) -> None:
        together.wait()
        try:
            obstore.put(objects.store, name, str(number).encode(), mode="create")
            results["won"] += 1
        except AlreadyExistsError:
            results["refused"] += 1

    for round_ in range(10):
        together = threading.Barrier(8)
        threads = [threading.Thread(target=put, args=(n, f"one/{round_}", together)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {"won": 10, "refused": 70}


def test_properties_of_ours_are_kept_and_change_with_a_transaction_in_one_commit(place: TablePlace) -> None:
    create(place, **{"penstock.logs": "a 0"})
    stale, table = opened(place), opened(place)
    change = {"penstock.logs": "a 0 b 64"}
    table.alter.set_table_properties(change, raise_if_not_exists=False, commit_properties=properties(64))
    found = opened(place)
    assert found.metadata().configuration["penstock.logs"] == "a 0 b 64"
    assert found.transaction_version(LOG) == 64
    with pytest.raises(CommitFailedError):
        stale.alter.set_table_properties(change, raise_if_not_exists=False, commit_properties=properties(65))


def test_a_table_is_made_once(place: TablePlace) -> None:
    with pytest.raises(TableNotFoundError):
        opened(place)
    create(place)
    with pytest.raises(DeltaError):
        create(place)


def test_a_checkpoint_keeps_files_and_transactions(place: TablePlace) -> None:
    create(place, **{"delta.checkpointInterval": "3"})
    for number in range(5):
        commit(opened(place), add(place, str(number), number), 1 + number)
    objects = ObjectFolder(place.url, place.options)
    assert any(name.endswith(".checkpoint.parquet") for name in objects.names("_delta_log"))
    for version in range(3):
        obstore.delete(objects.store, f"_delta_log/{version:020}.json")
    assert opened(place).transaction_version(LOG) == 5
    assert values(place) == [0, 1, 2, 3, 4]


def replace(table: DeltaTable, place: TablePlace, old: tuple[str, ...], new: str, *values: int, at_ms: int = 0) -> None:
    """One commit, by which a file takes the place of others."""
    file = add(place, new, *values)
    file.data_change = False
    removed = [RemoveAction(f"day={DAY}/{name}.parquet", False, at_ms, 492, {"day": DAY}) for name in old]
    table.create_write_transaction(
        [file, *removed], "append", SCHEMA, ["day"], commit_properties=CommitProperties(max_commit_retries=0)
    )


def test_files_are_replaced_in_one_commit_that_changes_no_data(place: TablePlace) -> None:
    """A reader of an older version still has the files of that version; position and properties stay."""
    create(place, **{"penstock.logs": "a 0"})
    commit(opened(place), add(place, "a", 1, 2), 10)
    commit(opened(place), add(place, "b", 3), 20)
    before = opened(place)
    replace(opened(place), place, ("a", "b"), "ab", 1, 2, 3)
    assert values(place) == [1, 2, 3]
    assert sorted(before.to_pyarrow_table()["x"].to_pylist()) == [1, 2, 3]
    assert opened(place).transaction_version(LOG) == 20
    assert opened(place).metadata().configuration["penstock.logs"] == "a 0"
    text = ObjectFolder(place.url, place.options).get(f"_delta_log/{opened(place).version():020}.json").decode()
    assert text.count('"dataChange":false') == 3
    assert '"dataChange":true' not in text
    with pytest.raises(CommitFailedError):  # without retries, whoever has a stale view looks again
        commit(before, add(place, "c", 4), 30)
    with pytest.raises(CommitFailedError):
        replace(before, place, ("a", "b"), "ab-2", 1, 2, 3)
    assert values(place) == [1, 2, 3]


def test_a_file_that_is_no_longer_there_may_be_replaced_once_more(place: TablePlace) -> None:
    """So it is not guarded by deltalake: the tier looks itself whether each is still there."""
    create(place)
    commit(opened(place), add(place, "a", 1), 10)
    replace(opened(place), place, ("a",), "a-2", 1)
    replace(opened(place), place, ("a",), "a-3", 1)
    assert values(place) == [1, 1]


def removed(place: TablePlace, hours: int) -> list[str]:
    """Files that were removed so long ago, as the log and its checkpoint know them. Nothing is deleted or committed."""
    table = opened(place)
    found = table.vacuum(hours, dry_run=True, enforce_retention_duration=False)
    assert opened(place).version() == table.version()
    return sorted({Path(name).stem for name in found})


@pytest.mark.parametrize("retention_h", [50, 1000])
def test_removed_files_are_known_as_long_as_the_table_says(place: TablePlace, retention_h: int) -> None:
    """By when they were removed, not by their own age. A checkpoint forgets those that are older than that."""
    create(place, **{"delta.deletedFileRetentionDuration": f"interval {retention_h} hours"})
    now_ms = int(time.time() * 1000)
    for name, hours in (("a", 300), ("b", 100), ("c", 10)):
        commit(opened(place), add(place, name, hours), 1000 - hours)
        replace(opened(place), place, (name,), f"{name}-2", hours, at_ms=now_ms - hours * 3_600_000)
    assert [removed(place, hours) for hours in (0, 50, 200)] == [["a", "b", "c"], ["a", "b"], ["a"]]
    opened(place).create_checkpoint()
    remembered = ["a", "b", "c"] if retention_h == 1000 else ["c"]
    assert removed(place, 0) == remembered
    assert removed(place, 50) == [name for name in remembered if name != "c"]
    assert values(place) == [10, 100, 300]


def test_vacuum_leaves_our_own_objects(place: TablePlace) -> None:
    table = create(place)
    commit(table, add(place, "a", 1), 10)
    add(place, "orphan", 2)
    objects = ObjectFolder(place.url, place.options)
    obstore.put(objects.store, "_penstock/index/a.arrow", b"ours")
    gone = opened(place).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert [Path(name).name for name in gone] == ["orphan.parquet"]
    assert objects.names("_penstock") == ["_penstock/index/a.arrow"]


def test_files_of_a_killed_writer_are_in_no_table(place: TablePlace) -> None:
    """Files without a commit; and, in a folder, a commit that was not given its name yet."""
    table = create(place)
    commit(table, add(place, "a", 1), 10)
    add(place, "orphan", 2)
    objects = ObjectFolder(place.url, place.options)
    obstore.put(objects.store, "_delta_log/00000000000000000002.json.tmp", b"{")
    assert values(place) == [1]
    commit(opened(place), add(place, "b", 3), 20)
    assert values(place) == [1, 3]


def test_an_empty_commit_after_a_power_cut_counts_for_nothing(tmp_path: Path) -> None:
    """deltalake syncs nothing. The name of a commit may outlive its bytes; then the version is still the old one."""
    place = TablePlace(str(tmp_path / "t"), {})
    commit(create(place), add(place, "a", 1), 10)
    (tmp_path / "t/_delta_log/00000000000000000002.json").touch()
    assert opened(place).transaction_version(LOG) == 10
    commit(opened(place), add(place, "b", 2), 20)
    assert values(place) == [1, 2]


def test_a_part_of_a_commit_counts_as_if_it_were_all(tmp_path: Path) -> None:
    """If it ends at the end of a line. So the tier counts the lines itself."""
    place = TablePlace(str(tmp_path / "t"), {})
    commit(create(place), add(place, "a", 1), 10)
    newest = tmp_path / "t/_delta_log/00000000000000000001.json"
    lines = newest.read_bytes().splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["commitInfo", "add", "txn"]
    newest.write_bytes(b"\n".join(lines[:2]))
    assert values(place) == [1]
    assert opened(place).transaction_version(LOG) == 0


def test_duckdb_and_polars_read_the_rows(place: TablePlace) -> None:
    commit(create(place), add(place, "a", 1, 2), 10)
    commit(opened(place), add(place, "b", 3), 20)
    options = {name: text for name, text in place.options.items() if "retr" not in name}  # polars has its own
    frame = polars.scan_delta(place.url, storage_options=options).filter(polars.col("x") > 1)
    assert sorted(frame.collect()["x"]) == [2, 3]
    if not place.options:
        import_extension("delta")
        with duckdb.connect() as connection:
            connection.execute("LOAD delta")
            rows = connection.execute(f"SELECT sum(x), min(day)::VARCHAR FROM delta_scan('{place.url}')").fetchall()
        assert rows == [(6, DAY)]


def test_pyarrow_writes_bloom_filters_that_skip_row_groups(tmp_path: Path) -> None:
    names = [str(number) for number in range(100_000)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"key": names}), path, bloom_filter_options={"key": {"ndv": 100_000, "fpp": 0.01}})
    without = tmp_path / "b.parquet"
    pq.write_table(pa.table({"key": names}), without)
    assert os.path.getsize(path) - os.path.getsize(without) > 100_000 * 0.8
    with duckdb.connect() as connection:
        query = f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{path}', 'key', '$')"
        assert connection.execute(query.replace("$", "77")).fetchall() == [(False,)]
        assert connection.execute(query.replace("$", "not there")).fetchall() == [(True,)]
