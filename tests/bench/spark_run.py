"""`make bench-spark`: Spark reading a data folder beside the same rows from Parquet, in turn, 2 partitions.

Written by the store's own code: messages of 200 random bytes to 1,000 topics.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402
from pyspark.sql.datasource import InputPartition  # noqa: E402

from lightqueue.message_store import MessageStore  # noqa: E402
from penstock.spark.batch import BatchReader  # noqa: E402
from penstock.spark.folder import LogFolder  # noqa: E402
from penstock.spark.ranges import LogRange  # noqa: E402
from penstock.spark.source import PenstockSource  # noqa: E402
from store.records._records import RecordBatch  # noqa: E402
from store.records.records import RecordType  # noqa: E402
from store.settings import StoreSettings  # noqa: E402
from tests.bench.spark_floor import ReadyBatches  # noqa: E402

PAYLOAD_BYTES = 200
TOPICS = 1000
PER_APPEND = 1000
PARTITIONS = 2
MB = 1e6

PER_LINE = TOPICS // 100
NAMES = [f"line/{i // PER_LINE}/temp{i % PER_LINE}" for i in range(TOPICS)]
A_LINE = "line/7/+"
EVERYTHING = "#"


@dataclass(frozen=True)
class Work:
    """One row: which columns (empty: all) of which messages, and what is done with them."""

    name: str
    columns: str
    run: Callable[[DataFrame], object]
    topic_filter: str = EVERYTHING


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _grouped(frame: DataFrame) -> None:
    _noop(frame.groupBy("topic").agg(F.count("*"), F.sum(F.length("payload"))))


WORKS = (
    Work("count", "log_offset", DataFrame.count),
    Work("grouped by topic", "topic", lambda frame: _noop(frame.groupBy("topic").count())),
    Work("grouped by topic, payload", "topic,payload", _grouped),
    Work("full scan", "topic,payload,timestamp,log_offset", _noop),
    Work("full scan, all columns", "", _noop),
    Work("1 % of the topics", "topic,payload,timestamp,log_offset", _noop, A_LINE),
    Work("one topic of 1,000", "topic,payload,timestamp,log_offset", _noop, "line/7/temp3"),
)


def main() -> int:
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-spark-", dir=options.folder) as name:
        folder = Path(name)
        log_bytes = _write_log(folder / "data", options.rows)
        print(
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {options.repeats} runs"
        )
        print(f"{options.rows:,} messages of {PAYLOAD_BYTES} bytes, a log of {log_bytes / MB:,.0f} MB\n")
        _decoder(folder / "data", options)
        spark = _session(folder)
        try:
            _spark_rows(spark, folder, options, log_bytes)
        finally:
            spark.stop()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="where the data goes (default: the system's temporary folder)")
    return parser.parse_args()


def _write_log(data: Path, count: int) -> int:
    store = MessageStore(StoreSettings(data=data, flush="async"))
    for first in range(0, count, PER_APPEND):
        batch = RecordBatch()
        for i in range(first, min(first + PER_APPEND, count)):
            topic, client_id = NAMES[i % TOPICS].encode(), b"device-%d" % (i % TOPICS)
            batch.append(RecordType.MESSAGE, os.urandom(PAYLOAD_BYTES), topic=topic, client_id=client_id, flags=1)
        store.append(batch)
        store.tick()
    end = store.end
    store.close()
    return end


def _session(folder: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    builder = SparkSession.builder.master(f"local[{PARTITIONS}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", PARTITIONS)
    return builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()


def _decoder(data: Path, options: argparse.Namespace) -> None:
    """One process without Spark, by its CPU time."""
    for columns in ("topic,payload,log_offset", "log_offset", "topic"):
        source = PenstockSource({"path": str(data), "columns": columns})  # type: ignore[arg-type]
        reader = source.reader(source.schema())
        end = LogFolder(str(data)).end()
        seconds = _in_turn([partial(_read_all, reader, LogRange(0, end))], options.repeats)[0].cpu_seconds
        rates = f"{options.rows / seconds / 1e6:5.1f} M rows/s {end / seconds / 1e9:5.2f} GB/s of log"
        print(f"decoder, {columns:38} {rates}", flush=True)


def _read_all(reader: BatchReader, part: InputPartition) -> int:
    return sum(batch.num_rows for batch in reader.read(part))


def _spark_rows(spark: SparkSession, folder: Path, options: argparse.Namespace, log_bytes: int) -> None:
    everything = spark.read.format("penstock").option("minPartitions", PARTITIONS).load(str(folder / "data"))
    everything.write.parquet(str(folder / "parquet"))
    spark.dataSource.register(ReadyBatches)
    for work in WORKS:
        sides = [partial(_ours, spark, folder / "data", work), partial(_parquet, spark, folder / "parquet", work)]
        if work.columns and work.topic_filter == EVERYTHING:
            sides.append(partial(_floor, spark, work, options.rows))
        ours, parquet, *floor = _in_turn(sides, options.repeats)
        rates = f"{options.rows / ours.seconds / 1e6:5.2f} M rows/s {log_bytes / ours.seconds / MB:6.0f} MB/s of log"
        compared = (
            f"{ours.seconds:5.2f} s, parquet {parquet.seconds:5.2f} s, ratio {parquet.seconds / ours.seconds:4.2f}"
        )
        cpu = f"CPU {ours.cpu_seconds:.2f}, {parquet.cpu_seconds:.2f} s"
        ready = "".join(f"  ready batches {cost.seconds:.2f} s, CPU {cost.cpu_seconds:.2f} s" for cost in floor)
        print(f"{work.name:26} {rates}  {compared}  {cpu}{ready}", flush=True)
    few, whole = (_bytes_read(folder / "data", topic_filter) for topic_filter in (A_LINE, EVERYTHING))
    print(f"1 % of the topics reads {few / MB:.1f} MB, a full scan {whole / MB:.1f} MB: {few / whole:.2%}")
    _backlog(spark, folder, options)


def _bytes_read(data: Path, topic_filter: str) -> int:
    """From files, by planning and reading, in this process."""
    source = PenstockSource({"path": str(data), "topicFilter": topic_filter, "columns": "payload"})  # type: ignore[arg-type]
    before = psutil.Process().io_counters().read_chars
    reader = source.reader(source.schema())
    for part in reader.partitions():
        _read_all(reader, part)
    return int(psutil.Process().io_counters().read_chars - before)


def _ours(spark: SparkSession, data: Path, work: Work) -> None:
    reader = spark.read.format("penstock").option("minPartitions", PARTITIONS)
    if work.topic_filter != EVERYTHING:
        reader = reader.option("topicFilter", work.topic_filter)
    if work.columns:
        reader = reader.option("columns", work.columns)
    work.run(reader.load(str(data)))


def _floor(spark: SparkSession, work: Work, rows: int) -> None:
    options = {"columns": work.columns, "rows": str(rows), "partitions": str(PARTITIONS)}
    work.run(spark.read.format(ReadyBatches.name()).options(**options).load())


def _parquet(spark: SparkSession, files: Path, work: Work) -> None:
    frame = spark.read.parquet(str(files))
    if work.columns:
        frame = frame.select(*work.columns.split(","))
    if work.topic_filter != EVERYTHING:
        frame = frame.where(F.col("topic").startswith(work.topic_filter.removesuffix("+")))
    work.run(frame)


def _backlog(spark: SparkSession, folder: Path, options: argparse.Namespace) -> None:
    """A stream that takes everything in one batch."""
    frame = spark.readStream.format("penstock").option("startingOffsets", "earliest").option("columns", "topic,payload")
    query = frame.load(str(folder / "data")).writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    progress = max(query.recentProgress, key=lambda progress: progress.numInputRows)
    seconds = progress.durationMs["triggerExecution"] / 1000
    print(f"{'stream, backlog, 1 batch':26} {progress.numInputRows / seconds / 1e6:5.2f} M rows/s", flush=True)
    assert progress.numInputRows == options.rows


class Cost(NamedTuple):
    """Medians of some runs: elapsed, and what all of Spark's processes computed (less disturbed by a busy machine)."""

    seconds: float
    cpu_seconds: float


def _in_turn(works: Sequence[Callable[[], object]], repeats: int) -> list[Cost]:
    """What each costs, run in turn; a first round does not count."""
    times: list[list[Cost]] = [[] for _ in works]
    for _ in range(repeats + 1):
        for work, taken in zip(works, times, strict=True):
            start, cpu_start = time.perf_counter(), _cpu_seconds()
            work()
            taken.append(Cost(time.perf_counter() - start, _cpu_seconds() - cpu_start))
    return [Cost(*map(statistics.median, zip(*taken[1:], strict=True))) for taken in times]


def _cpu_seconds() -> float:
    """Of this process and all below it, those that have ended included."""
    total = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


if __name__ == "__main__":
    sys.exit(main())
