"""`penstock.spark.table` beside the same rows in Parquet that Spark itself wrote, in turn, in one run.

    python -m tests.bench.spark_table [MILLIONS] [ROUNDS]

Telemetry of 100 bytes by 10,000 devices at random, in a table that was merged. Rows per second of each query, medians;
and what it adds that the last of the messages are in the log only.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock.spark
from lightqueue.message_store import MessageStore
from penstock.spark.folder import LogFolder
from penstock.tier.compaction import Compactor
from penstock.tier.objects import ObjectFolder
from penstock.tier.table import TierTable, WrittenLog
from store.files.segment import HEADER_BYTES
from store.settings import StoreSettings
from tests.bench.tier import BATCH, TOPIC, telemetry
from tests.spark.session import environment, session_builder

DEVICES = 10_000
DISTINCT = 100  # batches
COMMIT_BYTES = 60 << 20  # of the log: 300,000 messages
TAIL = 300_000  # messages: 30 s of 10,000 a second
MB = 1e6
COLUMNS = (
    *("day", "namespace", "topic", "log_offset", "timestamp", "queue_offset", "payload"),
    *("key", "client_id", "qos", "retain"),
)
_ONE = TOPIC % (7, 7)

QUERIES: dict[str, Callable[[DataFrame], object]] = {
    "count": DataFrame.count,
    "count by topic": lambda rows: _noop(rows.groupBy("topic").count()),
    "bytes by topic": lambda rows: _noop(rows.groupBy("topic").agg(F.count("*"), F.sum(F.length("payload")))),
    "one topic of 10,000": lambda rows: _noop(rows.where(F.col("topic") == _ONE)),
    "all columns": lambda rows: _noop(rows.select(*COLUMNS)),
}
USED = {
    "count": "log_offset",
    "count by topic": "topic",
    "bytes by topic": "topic,payload",
    "all columns": ",".join(COLUMNS),
}
"""By queries: the argument `columns`."""


def _noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def fill(data: Path, messages: int) -> None:
    """Append to a store's log."""
    store = MessageStore(StoreSettings(data=data, flush="async", reserve_bytes=0))
    for number in range(messages // BATCH):
        store.append(telemetry(number % DISTINCT, DEVICES))
        store.tick()
    store.write_index()
    store.close()


def commit(data: Path, url: Path) -> None:
    """Have a table have the log, by commits of COMMIT_BYTES, and merge its files."""
    log, objects = LogFolder(str(data)), ObjectFolder(str(url))
    table = TierTable.open(objects, WrittenLog(log.identity(), HEADER_BYTES, log.end()))
    writer = table.begin()
    for segment in log.segments():
        writer.skip(segment.first)
        for piece in log.pieces(segment.first, segment.end or log.end()):
            writer.add(piece.data.tobytes(), piece.log_offset)
            if writer.end - writer.start > COMMIT_BYTES:
                table.commit(writer.finish())
                writer = table.begin()
    table.commit(writer.finish())
    merging = Compactor(objects, table)
    while merging.step():
        pass


def timed(query: Callable[[DataFrame], object], rows: Callable[[], DataFrame]) -> float:
    began_s = time.monotonic()
    query(rows())
    return time.monotonic() - began_s


def compare(spark: SparkSession, folder: Path, millions: float, rounds: int) -> None:
    data, url, plain = folder / "data", folder / "fleet", folder / "plain"
    fill(data, int(millions * 1e6))
    commit(data, url)

    def ours(columns: str = "") -> DataFrame:
        return penstock.spark.table(spark, str(data), tier=str(url), columns=columns)

    def theirs() -> DataFrame:
        return spark.read.parquet(str(plain))

    ours().select(*COLUMNS).write.partitionBy("day").parquet(str(plain))
    count = ours().count()
    assert count == theirs().count()
    for name, root in (("table", url), ("Spark's Parquet", plain)):
        files = list(root.glob("day=*/*.parquet"))
        print(f"{name}: {len(files)} files, {sum(file.stat().st_size for file in files) / MB:.0f} MB", flush=True)
    took: dict[tuple[str, str], list[float]] = {}
    for query in QUERIES:
        for _ in range(rounds + 1):  # the first one warms
            for side, rows in (("table", ours), ("parquet", theirs)):
                took.setdefault((query, side), []).append(timed(QUERIES[query], rows))
    fill(data, TAIL)
    for query in QUERIES:
        for _ in range(rounds + 1):
            took.setdefault((query, "tail"), []).append(timed(QUERIES[query], ours))
            if query in USED:
                took.setdefault((query, "chosen"), []).append(timed(QUERIES[query], partial(ours, USED[query])))
    print("| query | table, rows/s | Spark's Parquet | of it | with 30 s in the log | with `columns` |")
    for query in QUERIES:
        table_s, parquet_s, tail_s = (statistics.median(took[query, side][1:]) for side in ("table", "parquet", "tail"))
        rates = f"{count / table_s:,.0f} ({table_s:.2f} s) | {count / parquet_s:,.0f} | {parquet_s / table_s:.2f}"
        chosen = took.get((query, "chosen"), [])[1:]
        chosen_s = f"{statistics.median(chosen) - table_s:+.2f} s" if chosen else ""
        print(f"| {query} | {rates} | {tail_s - table_s:+.2f} s | {chosen_s} |")


def main() -> None:
    millions, rounds = (float(text) for text in (*sys.argv[1:3], *("6", "7")[len(sys.argv) - 1 :]))
    os.environ.update({name: text for name, text in environment().items() if name != "JAVA_TOOL_OPTIONS"})
    with tempfile.TemporaryDirectory() as folder:
        spark = (
            session_builder("local[2]", Path(folder) / "warehouse")
            .config("spark.driver.memory", "4g")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        try:
            compare(spark, Path(folder), millions, int(rounds))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
