"""A stream's checkpoint on another log than its own: another store, or one that was made anew, is refused."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.spark.errors import AnotherLog
from penstock.spark.source import PenstockSource
from penstock.spark.stream import Offset, StreamReader
from store.log.commitlog import CommitLog
from store.mending.backup import backup
from store.mending.restore import restore
from tests.spark.test_stream import Numbers
from tests.support.store_process import StoreProcess
from tests.support.stores import batch_of, small


def reader_of(path: str, **options: str) -> StreamReader:
    source = PenstockSource({"path": path, "startingOffsets": "earliest", **options})  # type: ignore[arg-type]
    return source.streamReader(source.schema())


def latest(reader: StreamReader, start: Offset) -> Offset:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def a_log(folder: Path, count: int) -> Path:
    (folder / "log").mkdir(parents=True)
    log = CommitLog(folder / "log", small(folder))
    for number in range(count):
        log.append(batch_of(b"%d" % number, topic=b"n"))
    log.close()
    return folder


def checkpointed(folder: Path) -> list[Path]:
    return [path for path in (folder / "checkpoint").glob("**/offsets/*") if path.name.isdigit()]


def test_a_query_on_a_folder_that_was_made_anew(spark: SparkSession, tmp_path: Path) -> None:
    numbers = Numbers(spark, tmp_path)
    numbers.append(10)
    numbers.run()
    newest = max(checkpointed(tmp_path), key=lambda path: int(path.name))
    said = json.loads(newest.read_text().splitlines()[-1])
    assert said == {"log": numbers.log.end, "identity": numbers.log.marks.identity.hex()}
    numbers.log.close()
    shutil.rmtree(tmp_path / "data")
    a_log(tmp_path / "data", 20)
    with pytest.raises(StreamingQueryException, match="the checkpoint is of another log"):
        numbers.run()


def test_a_checkpoint_of_a_version_before_is_taken(spark: SparkSession, tmp_path: Path) -> None:
    numbers = Numbers(spark, tmp_path)
    numbers.append(10)
    numbers.run()
    for path in checkpointed(tmp_path):
        lines = path.read_text().splitlines()
        lines[-1] = json.dumps({"log": json.loads(lines[-1])["log"]})
        path.write_text("\n".join(lines))
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    numbers.append(5)
    numbers.run()
    found = spark.read.parquet(str(tmp_path / "sink")).collect()
    assert sorted(int(row.payload) for row in found) == list(range(15))
    newest = max(checkpointed(tmp_path), key=lambda path: int(path.name))
    assert "identity" in newest.read_text()
    numbers.log.close()


def test_folders(tmp_path: Path) -> None:
    one, other = a_log(tmp_path / "one", 10), a_log(tmp_path / "other", 20)
    reader = reader_of(str(one))
    end = latest(reader, reader.initialOffset())
    assert latest(reader_of(str(one)), end) == end
    for wrong in (
        lambda: latest(reader_of(str(other)), end),
        lambda: reader_of(str(other)).partitions({"log": 0}, end),
    ):
        with pytest.raises(AnotherLog, match=f"identity {end['identity']}, this one has "):
            wrong()
    lenient = latest(reader_of(str(other), failOnDataLoss="false"), end)
    assert lenient["log"] > end["log"]
    assert lenient["identity"] != end["identity"]
    (one / "log" / "marks").unlink()  # a segment has it too, as a backup's have
    assert latest(reader_of(str(one)), end) == end


def test_a_restored_folder_is_another_log(tmp_path: Path) -> None:
    one = a_log(tmp_path / "one", 10)
    end = latest(reader_of(str(one)), {"log": 0})
    backup(one, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(AnotherLog):
        latest(reader_of(str(tmp_path / "restored")), end)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[StoreProcess]]:
    started: list[StoreProcess] = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        a_log(tmp_path / name / "data", 10 if name == "one" else 20)
        started.append(StoreProcess(tmp_path / name))
    yield started
    for store in started:
        store.close()


def test_stores(stores: list[StoreProcess]) -> None:
    """The same over the network; a folder and its store are one log."""
    one, other = ("penstock" + store.url.removeprefix("tcp") for store in stores)
    reader = reader_of(one)
    end = latest(reader, reader.initialOffset())
    assert latest(reader_of(str(stores[0].data)), end)["identity"] == end["identity"]
    with pytest.raises(AnotherLog, match="give the query a checkpointLocation of its own"):
        latest(reader_of(other), end)
    assert latest(reader_of(other), {"log": 0})["identity"] != end["identity"]
    stores[0].kill()
    shutil.rmtree(stores[0].data)
    stores[0].start()
    with pytest.raises(AnotherLog):  # also by one that goes on
        latest(reader, end)
