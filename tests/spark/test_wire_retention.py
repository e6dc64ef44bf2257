"""Retention drops messages while they are read over the wire: that fails the query, or is passed over."""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from loadtest.chaos.cluster import Cluster
from penstock.sdk.address import Address
from penstock.spark.batch import BatchReader
from penstock.spark.connection import StoreAccess
from penstock.spark.errors import DataLost
from penstock.spark.ranges import LogRange
from penstock.spark.remote import RemoteLog
from penstock.spark.source import PenstockSource
from penstock.spark.stream import StreamReader
from penstock.spark.topic_ranges import OfTopics
from tests.spark.fleet import Sent, publish

TIMEOUT_S = 120
KEPT_BYTES = 4 << 20
SEGMENT_BYTES = 256 << 10
SMALL = {
    "store.segment_bytes": SEGMENT_BYTES,
    "store.retention_bytes": KEPT_BYTES,
    "store.retention_check_s": 1,
    "wire.max_frame_bytes": 256 << 10,
    "wire.credit_bytes": 256 << 10,
    "gateway.maximum_packet_size_bytes": 30_000,
}
LARGE_BYTES = 16_000
NUMBERS = 200  # at a time, to each of two topics: some 3.2 MB


class Kept:
    """A store that keeps the newest KEPT_BYTES of its log, with numbers from 0 on in topics `n` and `large`."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder, 1, SMALL, wires=False)
        self.url = self.cluster.store_url.replace("tcp:", "penstock:")
        self.log = RemoteLog(StoreAccess(Address.parse(self.url)))
        self.count = 0

    def publish(self) -> None:
        """NUMBERS more: those of `n` are small, the others not."""
        sent = []
        for number in range(self.count, self.count + NUMBERS):
            sent += [Sent("n", b"%d" % number), Sent("large", b"%d".ljust(LARGE_BYTES) % number)]
        publish(self.cluster.ports[0], sent)
        self.count += NUMBERS

    def pass_over(self, log_offset: int) -> None:
        """Publish until retention has dropped this place, and what it is about to drop then."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while self.log.end() - log_offset < KEPT_BYTES + SEGMENT_BYTES:
            self.publish()
        while self.log.base() <= log_offset or self.log.end() - self.log.base() > KEPT_BYTES:
            assert time.monotonic() < deadline_s
            threading.Event().wait(0.1)

    def reader(self, lenient: bool, **options: str) -> BatchReader:
        source = self._source(lenient, options)
        return source.reader(source.schema())

    def stream(self, lenient: bool, **options: str) -> StreamReader:
        source = self._source(lenient, options)
        return source.streamReader(source.schema())

    def _source(self, lenient: bool, options: dict[str, str]) -> PenstockSource:
        given = {"path": self.url, "topic": "n", "failOnDataLoss": str(not lenient), **options}
        return PenstockSource(given)  # type: ignore[arg-type]

    def close(self) -> None:
        self.log.close()
        self.cluster.close()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    kept.publish()
    yield kept
    kept.close()


def numbers_of(batches: list[pa.RecordBatch]) -> list[int]:
    """What they say, which is where they stand in their queue."""
    rows: list[dict[str, Any]] = [row for batch in batches for row in batch.to_pylist()]
    numbers = sorted(int(row["payload"]) for row in rows)
    assert sorted(row["queue_offset"] for row in rows) == numbers
    return numbers


def read(reader: BatchReader | StreamReader, parts: Sequence[InputPartition]) -> list[int]:
    return numbers_of([batch for part in parts for batch in reader.read(part)])


def test_a_batch_that_was_planned_before(kept: Kept) -> None:
    strict, lenient = kept.reader(False), kept.reader(True)
    ways = [kept.reader(True, minPartitions=parts).partitions() for parts in ("1", "3")]
    ways.append([LogRange(kept.log.base(), kept.log.end())])
    assert {type(part) for way in ways[:2] for part in way} == {OfTopics}
    kept.pass_over(kept.log.end() // 2)
    now = kept.reader(False)
    left = read(now, now.partitions())
    assert left == list(range(left[0], kept.count))
    assert 0 < left[0] < NUMBERS
    for parts in ways:
        with pytest.raises(DataLost, match="is not kept any more"):
            read(strict, parts)
        assert read(lenient, parts) == list(range(left[0], NUMBERS))


@pytest.mark.parametrize("kind", [OfTopics, LogRange])
def test_ranges_dropped_while_read_over_the_wire(kept: Kept, kind: type[InputPartition]) -> None:
    """In a store, and in a frame of its answers, is less than in the partition."""
    whole = LogRange(kept.log.base(), kept.log.end())
    readers = [kept.reader(is_lenient, topic="large", minPartitions="1") for is_lenient in (False, True)]
    begun = []
    for reader in readers:
        (part,) = reader.partitions()
        assert isinstance(part, OfTopics)
        batches = reader.read(part if kind is OfTopics else whole)
        begun.append((next(batches), batches))
    kept.pass_over(kept.log.end() - (3 << 19))
    (_, strict), (first, lenient) = begun
    with pytest.raises(DataLost, match="is not kept any more"):
        list(strict)
    found = numbers_of([first, *lenient])
    gap = sorted(set(range(NUMBERS)) - set(found))
    assert gap == list(range(gap[0], gap[-1] + 1))
    assert found[-1] == NUMBERS - 1
    assert len(found) + len(gap) == NUMBERS


def test_a_batch_from_a_position_that_is_gone(kept: Kept, spark: SparkSession) -> None:
    kept.pass_over(kept.log.end() // 2)
    for options in ({"topic": "n"}, {"topicFilter": "n/#"}, {"topicFilter": '["n", "never"]'}):
        load = spark.read.format("penstock").options(startingOffsets='{"log": 4096}', **options)
        with pytest.raises(PySparkException, match=r"is not kept any more.*set failOnDataLoss to false"):
            load.load(kept.url).collect()
        rows = load.option("failOnDataLoss", False).load(kept.url).collect()
        found = sorted((row.queue_offset, int(bytes(row.payload))) for row in rows)
        assert found == [(number, number) for number in range(found[0][0], kept.count)]
        assert found[0][0] > 0


def test_a_stream_whose_position_is_gone(kept: Kept, spark: SparkSession, tmp_path: Path) -> None:
    def run(**options: bool) -> None:
        stream = spark.readStream.format("penstock").options(topic="n", startingOffsets="earliest", **options)
        sink = stream.load(kept.url).writeStream.format("parquet").trigger(availableNow=True)
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert sink.start(str(tmp_path / "sink")).awaitTermination(TIMEOUT_S)

    run()
    kept.pass_over(kept.log.end())
    with pytest.raises(StreamingQueryException, match=r"is not kept any more.*set failOnDataLoss to false"):
        run()
    run(failOnDataLoss=False)
    rows = spark.read.parquet(str(tmp_path / "sink")).collect()
    found = sorted((row.queue_offset, int(bytes(row.payload))) for row in rows)
    left = read(kept.reader(False), kept.reader(False).partitions())
    assert left[0] > NUMBERS
    assert found == [(number, number) for number in (*range(NUMBERS), *left)]


def test_a_stream_whose_batch_goes_before_it_is_read(kept: Kept) -> None:
    strict, lenient = (kept.stream(is_lenient, startingOffsets="earliest") for is_lenient in (False, True))
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    parts = strict.partitions(start, end)
    kept.pass_over(end["log"] // 2)
    with pytest.raises(DataLost, match="is not kept any more"):
        read(strict, parts)
    found = read(lenient, parts)
    assert found == list(range(found[0], NUMBERS))
    assert found[0] > 0
    with pytest.raises(DataLost, match="is not kept any more"):
        strict.partitions(start, end)
    assert read(lenient, lenient.partitions(start, end)) == found
    strict.stop()
    lenient.stop()
