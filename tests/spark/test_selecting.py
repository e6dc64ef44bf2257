"""A few topics are read through their light queues; the rows are those of a scan. Without Spark."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lightqueue.message_store import MessageStore
from penstock.spark import explain
from penstock.spark.batch import BatchReader
from penstock.spark.errors import DataLost
from penstock.spark.folder import LogFolder
from penstock.spark.log_and_tier import LogAndTier
from penstock.spark.ranges import LogRange
from penstock.spark.selecting import Selected
from penstock.spark.source import PenstockSource
from store.files.segment import segment_paths
from store.topics import matches
from tests.support.stores import KEPT_BYTES, Stores, commit_log, fill, publish, run_upkeep

RARE = '["rare/1", "rare/2", "never"]'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """With a few rare messages among many, the newest of which the index does not know on disk."""
    stores = Stores(tmp_path / "data", retention_bytes=KEPT_BYTES)
    store = stores()
    for i in range(9):
        fill(store, 1)
        publish(store, f"rare/{i % 3}", b"%d" % i, properties=b"\x26\0\1k\0\1v")
        if i == 7:
            store.write_index()
            store.index.flush()
    yield store
    stores.close()


def reader(store: MessageStore, **options: str) -> BatchReader:
    source = PenstockSource({"path": str(store.settings.data), **options})  # type: ignore[arg-type]
    return source.reader(source.schema())


def rows(reader: BatchReader) -> list[dict[str, Any]]:
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["log_offset"])


def places(reader: BatchReader) -> list[Selected]:
    return [part for part in reader.partitions() if isinstance(part, Selected)]


@pytest.mark.parametrize("parts", ["1", "3"])
def test_the_rows_are_those_of_a_scan(store: MessageStore, parts: str) -> None:
    everything = rows(reader(store))
    middle = everything[len(everything) // 2]["log_offset"]
    for limits in ({}, {"startingOffsets": f'{{"log": {middle}}}'}, {"endingOffsets": f'{{"log": {middle}}}'}):
        chosen = reader(store, topic=RARE, minPartitions=parts, **limits)
        first, last = chosen.range_of(LogAndTier(LogFolder(str(store.settings.data))))
        wanted = [row for row in everything if row["topic"] in RARE and first <= row["log_offset"] < last]
        assert rows(chosen) == wanted
        assert wanted
        assert len(places(chosen)) <= int(parts)
        assert places(chosen)
    assert rows(reader(store, topic="never")) == []


def test_a_scan_where_it_is_cheaper(store: MessageStore) -> None:
    for options in ({"topic": "filler"}, {"topicFilter": "#"}, {"topicFilter": '["rare/1", "+"]'}, {}):
        assert all(isinstance(part, LogRange) for part in reader(store, **options).partitions())
        assert explain(str(store.settings.data), **options).startswith("scan ")


@pytest.mark.parametrize("name", ["rare/+", "rare/#", "+/1", "#", "rare", "rare/1/#", "+/+/#", '["rare/1", "rare/#"]'])
def test_a_filter_that_never_had_a_queue(store: MessageStore, name: str) -> None:
    """It becomes the topics that match as MQTT says, those included that are only in the log so far."""
    assert store.queues.stored("rare/+") is None
    for topic in ("rare", "rarer/1", "$x/1", "x/1", "rare/1/2"):
        publish(store, topic, b"new")
    names = name.strip("[]").replace('"', "").split(", ")
    wanted = [row for row in rows(reader(store)) if any(matches(one, row["topic"]) for one in names)]
    assert rows(reader(store, topicFilter=name)) == wanted
    assert bool(places(reader(store, topicFilter=name))) == (name not in ("#", "rare"))


def test_the_plan_says_how_and_why(store: MessageStore, tmp_path: Path) -> None:
    data = str(store.settings.data)
    by_place = r"read by place \(8 messages of 3 topics, by their light queues\), "
    assert re.match(by_place + r"scan [\d,]+ bytes of [\d,]+ bytes of the log", explain(data, topicFilter="rare/+"))
    assert "too many messages to be read one by one" in explain(data, topic="filler")
    assert "(all of it)" in explain(data)
    shutil.copytree(commit_log(store).folder, tmp_path / "bare" / "log")
    assert "no index" in explain(str(tmp_path / "bare"), topicFilter="rare/+")


def test_a_selective_filter_reads_a_twentieth_of_the_files(tmp_path: Path) -> None:
    """Everything counted, planning and the index's copy as well. One message in a hundred is wanted."""
    stores = Stores(tmp_path / "data", segment_bytes=64 << 20)
    store = stores()
    for i in range(64):
        for topic in ("many", "few"):
            publish(store, f"{topic}/{i}", *[bytes(5000)] * (99 if topic == "many" else 1))
    store.write_index()
    store.index.flush()
    scanned, by_place = (read_chars(reader(store, columns="payload", topicFilter=name)) for name in ("#", "few/+"))
    stores.close()
    assert scanned > 30_000_000
    assert by_place < scanned / 20


def read_chars(reader: BatchReader) -> int:
    """Bytes that this process reads from files for a query."""
    before = psutil.Process().io_counters().read_chars
    rows_read = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
    assert rows_read in (64, 6400)
    return int(psutil.Process().io_counters().read_chars - before)


def test_only_what_is_kept(store: MessageStore) -> None:
    before = reader(store, topic=RARE)
    parts = before.partitions()
    run_upkeep(store)
    assert store.log.base > 0
    with pytest.raises(DataLost, match="is not kept any more"):
        [list(before.read(part)) for part in parts]
    kept = rows(reader(store, topic=RARE))
    assert kept == [row for row in rows(reader(store)) if row["topic"] in RARE]
    forgiving = reader(store, topic=RARE, failOnDataLoss="false")
    found = [row for part in parts for batch in forgiving.read(part) for row in batch.to_pylist()]
    assert sorted(row["log_offset"] for row in found) == [row["log_offset"] for row in kept]


def test_little_of_the_log_is_read(store: MessageStore) -> None:
    chosen = places(reader(store, topic=RARE))
    size = sum(path.stat().st_size for path in segment_paths(commit_log(store).folder))
    assert sum(len(part.places) for part in chosen) < size // 100
