"""`spark.readStream.format("penstock")`: every message once, whatever the batches, the restarts and the retention."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from penstock.columns import COLUMNS
from penstock.spark.errors import BadSparkOption, DataLost
from penstock.spark.options import parse_options
from penstock.spark.source import PenstockSource
from penstock.spark.stream import StreamReader
from store.log.commitlog import CommitLog
from store.records._records import RecordBatch
from store.records.records import RecordType
from tests.spark.fleet import Fleet, Sent, publish
from tests.support.stores import batch_of, small

TIMEOUT_S = 120


class Numbers:
    """A log whose messages are numbers, to `n`, and a stream of them into a folder of Parquet."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        (folder / "data" / "log").mkdir(parents=True)
        self.log = CommitLog(folder / "data" / "log", small(folder / "data"))
        self.count = 0

    def append(self, count: int, size: int = 8, topic: bytes = b"n") -> None:
        for _ in range(count):
            self.log.append(batch_of(b"%d" % self.count + b" " * size, topic=topic))
            self.count += topic == b"n"

    def stream(self, **options: str | int) -> DataFrame:
        reader = self.spark.readStream.format("penstock").options(topic="n", columns="payload", **options)
        return reader.load(str(self.folder / "data"))

    def run(self, **options: str | int) -> StreamingQuery:
        """Everything that is there now, from where the last run ended."""
        query = (
            self.stream(startingOffsets="earliest", **options)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.folder / "sink"))
        )
        assert query.awaitTermination(TIMEOUT_S)
        return query

    def read_back(self) -> list[int]:
        return sorted(int(bytes(row.payload)) for row in self.spark.read.parquet(str(self.folder / "sink")).collect())


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> Iterator[Numbers]:
    numbers = Numbers(spark, tmp_path)
    yield numbers
    numbers.log.close()


def rows_per_batch(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def lag_bytes(progress: StreamingQueryProgress) -> int:
    """How much of the log a batch has left behind it."""
    source = progress.sources[0]
    return int(json.loads(source.latestOffset)["log"]) - int(json.loads(source.endOffset)["log"])


@pytest.mark.catalogue("I32")
def test_available_now_ends_the_limit_is_exact_across_restarts_and_the_lag_is_told(numbers: Numbers) -> None:
    numbers.append(250)
    numbers.append(10, topic=b"other")
    query = numbers.run(maxOffsetsPerTrigger=100)
    assert rows_per_batch(query) == [100, 100, 50]
    first, second, last = (lag_bytes(progress) for progress in query.recentProgress if progress.numInputRows)
    assert first > second > last == 0
    assert rows_per_batch(numbers.run(maxOffsetsPerTrigger=100)) == []
    numbers.append(30)
    numbers.append(10, topic=b"other")
    assert sum(rows_per_batch(numbers.run())) == 30
    numbers.append(1)
    assert sum(rows_per_batch(numbers.run(maxOffsetsPerTrigger=1))) == 1
    assert numbers.read_back() == list(range(281))


def test_messages_that_retention_dropped_fail_the_query_or_are_skipped(numbers: Numbers) -> None:
    numbers.append(5)
    numbers.run()
    numbers.append(30, size=10_000)  # five segments or so
    numbers.log.pop_first().remove()
    numbers.log.pop_first().remove()
    with pytest.raises(StreamingQueryException, match=r"is not kept any more.*set failOnDataLoss to false"):
        numbers.run()
    numbers.run(failOnDataLoss="false")
    kept = numbers.read_back()
    assert kept[:5] == list(range(5))
    assert 5 < kept[5] < 34
    assert kept[5:] == list(range(kept[5], 35))


def test_a_dropped_segment_that_was_read_is_no_loss(numbers: Numbers) -> None:
    numbers.append(13, size=10_000)
    numbers.run()
    while len(numbers.log.segments) > 1:
        numbers.log.pop_first().remove()
    numbers.append(5)
    numbers.run()
    assert numbers.read_back() == list(range(18))


def test_new_topics_from_their_first_message_and_lag_in_progress(spark: SparkSession, fleet: Fleet) -> None:
    stream = spark.readStream.format("penstock").option("topicFilter", "fresh/+").load(fleet.path)
    query = stream.writeStream.format("memory").queryName("fresh").start()
    try:
        query.processAllAvailable()
        for round_ in range(3):
            sent = [Sent(f"fresh/{round_}", b"%d" % i) for i in range(4)]
            publish(fleet.server.port, [*sent, Sent("stale", b"")])
            query.processAllAvailable()
        found = [(row.topic, bytes(row.payload)) for row in spark.table("fresh").orderBy("log_offset").collect()]
        assert found == [(f"fresh/{round_}", b"%d" % i) for round_ in range(3) for i in range(4)]
        progress = next(p for p in reversed(query.recentProgress) if p.numInputRows)
        source = progress.sources[0]
        ends = [json.loads(text)["log"] for text in (source.startOffset, source.endOffset, source.latestOffset)]
        assert ends == sorted(ends)
    finally:
        query.stop()


def test_a_stream_begins_at_the_end_unless_told_otherwise(numbers: Numbers) -> None:
    numbers.append(3)
    end, at = numbers.log.end, StreamReaders(numbers.folder / "data")
    assert at().initialOffset() == {"log": end}
    assert at(startingOffsets="earliest").initialOffset() == {"log": 0}
    assert at(startingOffsets='{"log": 64}').initialOffset() == {"log": 64}
    assert at(startingTimestamp="-1h").initialOffset() == {"log": 0}
    with pytest.raises(BadSparkOption, match="a stream has no end"):
        at(endingOffsets="latest")


class StreamReaders:
    """Makes readers as Spark does, without Spark."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def __call__(self, **options: str) -> StreamReader:
        source = PenstockSource({"path": str(self.data), **options})  # type: ignore[arg-type]
        assert list(parse_options(source.options).columns) == list(COLUMNS)
        return source.streamReader(source.schema())


def numbers_in(reader: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    return [
        int(bytes(payload))
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for payload in batch.column("payload").to_pylist()
    ]


def test_a_limit_may_end_within_a_batch_record(numbers: Numbers) -> None:
    """What a gateway appends is one record of many messages."""
    reader = StreamReaders(numbers.folder / "data")(topic="n", startingOffsets="earliest", minPartitions="3")
    batch = RecordBatch()
    batch.begin_atomic()
    for i in range(10):
        batch.append(RecordType.MESSAGE, b"%d" % i, topic=b"n")
        batch.append(RecordType.MESSAGE, b"", topic=b"other")
    batch.append(RecordType.PEER_APPENDED, b"\x93\xa1x\1\x90")
    batch.end_atomic()
    numbers.log.append(batch)
    offset, read = reader.initialOffset(), []
    for size in (3, 3, 3, 1, 0):
        end = reader.latestOffset(offset, ReadMaxRows(3))
        found = numbers_in(reader, offset, end)
        assert len(found) == size
        assert found == numbers_in(reader, offset, end)
        read += found
        offset = end
    assert read == list(range(10))


def test_no_batch_where_nothing_is_wanted(numbers: Numbers) -> None:
    reader = StreamReaders(numbers.folder / "data")(topic="n")
    start = reader.initialOffset()
    for _ in range(3):
        numbers.append(5, topic=b"other")
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        assert reader.latestOffset(start, ReadMaxRows(1)) == start
    numbers.append(1)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert numbers_in(reader, start, end) == [0]
    assert reader.latestOffset(end, ReadAllAvailable()) == end == reader.reportLatestOffset()


def test_a_log_whose_end_was_lost_and_written_anew(numbers: Numbers) -> None:
    """After a power loss what was not synced is gone, and others stand where it was."""
    readers = StreamReaders(numbers.folder / "data")
    synced = shutil.copytree(numbers.log.folder, numbers.folder / "synced")
    numbers.append(5)
    start = readers(startingOffsets="latest").initialOffset()
    numbers.log.close()
    shutil.rmtree(numbers.log.folder)
    synced.rename(numbers.log.folder)
    numbers.log = CommitLog(numbers.log.folder, numbers.log.settings)
    numbers.append(2)
    with pytest.raises(DataLost, match="is behind the log's end"):
        readers().latestOffset(start, ReadAllAvailable())
    reader = readers(failOnDataLoss="false")
    assert numbers_in(reader, start, reader.latestOffset(start, ReadAllAvailable())) == []
    numbers.append(3, size=1000)
    with pytest.raises(DataLost, match="no record begins at log_offset"):
        readers().latestOffset(start, ReadAllAvailable())
    assert numbers_in(reader, start, reader.latestOffset(start, ReadAllAvailable())) == [7, 8, 9]
