"""`python -m penstock.spark.export`: the files have what the store has, and the manifest is never half of anything."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from lightqueue.message_store import MessageStore
from penstock.spark import manifest
from penstock.spark.errors import ExportUnusable
from penstock.spark.export import Export, read_export
from penstock.spark.manifest import (
    FILES,
    ExportedFile,
    ExportManifest,
    delete_leftovers,
    locked,
    read_manifest,
    write_manifest,
)
from tests.support.server_process import ROOT
from tests.support.stores import KEPT_BYTES, Stores, publish, run_upkeep, wait_until

TIMEOUT_S = 300
STEP_BYTES = 30_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    stores = Stores(tmp_path / "data")
    store = stores()
    fill(store, 0)
    yield store
    stores.close()


def fill(store: MessageStore, round_: int) -> None:
    for i in range(200):
        topic = ("line/1/temp", "plant/7", "x", "line/2/temp", "", "/1", "a b/ü=%/1")[i % 7]
        publish(store, topic, b"%d-%d" % (round_, i) * 50, properties=b"\x26\0\1k\0\1v" * (i % 3))


def export(store: MessageStore, target: Path, spark: SparkSession, **options: bool) -> tuple[ExportManifest, list[str]]:
    said: list[str] = []
    export = Export(str(store.settings.data), target, STEP_BYTES, **options)
    return export.run(spark, said.append), said


def stored(store: MessageStore, spark: SparkSession) -> DataFrame:
    return spark.read.format("penstock").load(str(store.settings.data))


def hashable(frame: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(tuple(map(str, row)) for row in frame.collect())


@pytest.mark.catalogue("N56")
def test_the_files_have_what_the_store_has_run_after_run(
    store: MessageStore, tmp_path: Path, spark: SparkSession
) -> None:
    target = tmp_path / "exported"
    first, said = export(store, target, spark)
    assert first.rows == 200
    assert len(said) > 3  # several steps
    assert export(store, target, spark)[0] == first
    fill(store, 1)
    second, _ = export(store, target, spark)
    assert second.files[: len(first.files)] == first.files
    exported = read_export(spark, target)
    assert hashable(exported.drop("date", "level")) == hashable(stored(store, spark))
    assert {row.date for row in exported.select("date").distinct().collect()} == {
        row.d for row in stored(store, spark).selectExpr("to_date(timestamp) as d").distinct().collect()
    }
    assert {str(row.level) for row in exported.select("level").distinct().collect()} == {
        "line", "plant", "x", "a b", "None"
    }  # fmt: skip


def test_each_file_is_of_one_day_and_level_sorted_and_described(
    store: MessageStore, tmp_path: Path, spark: SparkSession
) -> None:
    made, _ = export(store, tmp_path / "exported", spark)
    for file in made.files:
        assert file.path.startswith("date=20")
        path = tmp_path / "exported" / FILES / file.path
        rows = pq.ParquetFile(path).read(["topic", "log_offset"]).to_pylist()
        assert rows == sorted(rows, key=lambda row: (row["topic"].encode(), row["log_offset"]))
        offsets = [row["log_offset"] for row in rows]
        assert (len(rows), path.stat().st_size) == (file.rows, file.bytes)
        assert (min(offsets), max(offsets)) == (file.first_log_offset, file.last_log_offset)
        assert made.start <= min(offsets) <= max(offsets) < made.until
        assert len({row["topic"].split("/")[0] for row in rows}) == 1


@pytest.mark.nightly
def test_killed_in_the_middle_the_old_manifest_counts(store: MessageStore, tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "exported"
    before, _ = export(store, target, spark)
    rows = hashable(read_export(spark, target))
    fill(store, 1)
    store.write_index()
    known = {file.path for file in before.files}

    def unknown() -> list[Path]:
        return [path for path in (target / FILES).rglob("part-*") if str(path.relative_to(target / FILES)) not in known]

    command = [
        sys.executable,
        "-m",
        "penstock.spark.export",
        str(store.settings.data),
        str(target),
        "--master",
        "local[1]",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or bool(unknown()), TIMEOUT_S)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)
    assert unknown(), (tmp_path / "log").read_text()
    assert read_manifest(target) == before
    assert hashable(read_export(spark, target)) == rows
    after, said = export(store, target, spark)
    assert said[0].startswith("removed ")
    assert after.rows == 400
    assert {str(path.relative_to(target / FILES)) for path in (target / FILES).rglob("*.parquet")} == {
        file.path for file in after.files
    }


def test_export_deletes_files_in_no_manifest(tmp_path: Path) -> None:
    counts, leftover = "date=2026-11-21/level=line/part-0.parquet", "_temporary/0/task/level=line/part-1.parquet"
    for name in (counts, leftover, "date=2026-11-21/level=line/part-2.parquet"):
        (tmp_path / FILES / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / FILES / name).touch()
    kept = ExportManifest(0, 64, (ExportedFile(counts, 1, 0, 0, 0),))
    write_manifest(tmp_path, kept)
    (tmp_path / "manifest.json.new").write_text("half of")
    assert read_manifest(tmp_path) == kept
    assert delete_leftovers(tmp_path, kept) == 2
    assert delete_leftovers(tmp_path, kept) == 0
    assert [path for path in (tmp_path / FILES).rglob("*") if path.is_file()] == [tmp_path / FILES / counts]


def test_export_reports_messages_dropped_before_it(tmp_path: Path, spark: SparkSession) -> None:
    stores = Stores(tmp_path / "data", retention_bytes=KEPT_BYTES)
    store, target = stores(), tmp_path / "exported"
    fill(store, 0)
    before, _ = export(store, target, spark)
    for round_ in range(1, 8):
        fill(store, round_)
    run_upkeep(store)
    assert store.log.base > before.until
    with pytest.raises(ExportUnusable, match=r"is not kept any more.*--allow-gap"):
        export(store, target, spark)
    assert read_manifest(target) == before
    after, _ = export(store, target, spark, allow_gap=True)
    stores.close()
    assert after.rows == 200 + sum(file.rows for file in after.files[len(before.files) :])
    assert after.until > before.until


def test_a_folder_that_cannot_be_used(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(ExportUnusable, match="has no exported files"):
        read_export(spark, tmp_path)
    with locked(tmp_path), pytest.raises(ExportUnusable, match="another export is at work"), locked(tmp_path):
        pass
    for text, line in (("{", "is no manifest"), ('{"version": 2}', "has version 2, this program knows 1")):
        (tmp_path / manifest.NAME).write_text(text)
        with pytest.raises(ExportUnusable, match=line):
            read_manifest(tmp_path)


def test_its_help_names_what_it_makes() -> None:
    command = [sys.executable, "-m", "penstock.spark.export"]
    page = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for word in ("DATA", "TARGET", "--step-mb", "--allow-gap", "manifest.json"):
        assert word in page
