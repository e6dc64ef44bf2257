"""Device → Spark → device, and reading over the wire beside the folder; the second half of `make bench-spark`.

A stock client publishes numbers at a steady rate; a query takes them from the store and publishes each to another
topic; a stock subscriber says how long each was under way.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import paho.mqtt.client as paho  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql.streaming.query import StreamingQuery  # noqa: E402

from loadtest.chaos.cluster import Cluster  # noqa: E402
from loadtest.chaos.part import Part  # noqa: E402
from tests.bench.spark_run import _session, _write_log  # noqa: E402
from tests.spark.fleet import connected, leave  # noqa: E402
from tests.support.server_process import free_port  # noqa: E402

WARM_UP_S = 15
PATIENCE_S = 120
COLUMNS = "topic,payload,timestamp,log_offset"
MB = 1e6


def main() -> int:
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-loop-", dir=options.folder) as name:
        folder = Path(name)
        spark = _session(folder)
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        try:
            _reading(spark, folder, options)
            _loop(spark, folder, options)
        finally:
            spark.stop()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rate", type=int, default=500, help="messages a second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--folder", help="where the data goes (default: the system's temporary folder)")
    return parser.parse_args()


# --- over the wire beside the folder


def _reading(spark: SparkSession, folder: Path, options: argparse.Namespace) -> None:
    log_bytes = _write_log(folder / "data", options.rows)
    url = f"tcp://127.0.0.1:{free_port()}"
    store = Part(folder / "store.log", ["store", "--data", str(folder / "data"), "--listen", url], {})
    try:
        places = {"over the wire": "penstock" + url.removeprefix("tcp"), "from the folder": str(folder / "data")}
        for name, place in places.items():
            seconds = statistics.median([_full_scan(spark, place) for _ in range(options.repeats + 1)][1:])
            rates = f"{options.rows / seconds / 1e6:5.2f} M rows/s {log_bytes / seconds / MB:6.0f} MB/s of log"
            print(f"{'full scan ' + name:26} {rates}", flush=True)
        sink = statistics.median([_write_back(spark, places["over the wire"], options.rows // 10) for _ in range(3)])
        print(f"{'batch sink':26} {options.rows / 10 / sink / 1e6:5.2f} M rows/s", flush=True)
    finally:
        store.kill()


def _full_scan(spark: SparkSession, place: str) -> float:
    started = time.perf_counter()
    frame = spark.read.format("penstock").option("minPartitions", 2).option("columns", COLUMNS).load(place)
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def _write_back(spark: SparkSession, url: str, rows: int) -> float:
    frame: DataFrame = spark.range(0, rows, 1, 2).selectExpr(
        "concat('back/', id % 1000) topic", "rpad(id, 200, 'x') payload"
    )
    started = time.perf_counter()
    frame.write.format("penstock").mode("append").save(url)
    return time.perf_counter() - started


# --- there and back


def _loop(spark: SparkSession, folder: Path, options: argparse.Namespace) -> None:
    cluster = Cluster(folder, 1, {"store.flush": "async"}, wires=False)
    times_ms: list[float] = []
    try:
        with _echo(spark, folder, cluster) as query, _subscribed(cluster.port, times_ms):
            _publish(cluster.port, options.rate, WARM_UP_S)
            _wait_for(times_ms, options.rate * WARM_UP_S)
            times_ms.clear()
            _publish(cluster.port, options.rate, options.seconds)
            _wait_for(times_ms, options.rate * options.seconds)
            triggers = [p.durationMs["triggerExecution"] for p in query.recentProgress[-50:] if p.numInputRows]
    finally:
        cluster.close()
    cuts = statistics.quantiles(times_ms, n=100)
    print(
        f"{f'device → Spark → device, {options.rate}/s':26} p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms, most "
        f"{max(times_ms):.0f} ms; {len(times_ms):,} messages, a batch {statistics.median(triggers):.0f} ms",
        flush=True,
    )


@contextmanager
def _echo(spark: SparkSession, folder: Path, cluster: Cluster) -> Iterator[StreamingQuery]:
    url = "penstock" + cluster.store_url.removeprefix("tcp")
    frame = spark.readStream.format("penstock").option("topicFilter", "in/+").option("startingOffsets", "earliest")
    frame = frame.option("columns", "topic,payload").option("minPartitions", 1)
    rows = frame.load(url).selectExpr("replace(topic, 'in/', 'out/') topic", "payload")
    sink = rows.writeStream.format("penstock").option("checkpointLocation", str(folder / "checkpoint"))
    query = sink.start(url)
    try:
        yield query
    finally:
        query.stop()


@contextmanager
def _subscribed(port: int, times_ms: list[float]) -> Iterator[None]:
    def on_message(_client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
        times_ms.append((time.monotonic_ns() - int(message.payload)) / 1e6)

    client = connected(port, "bench-subscriber")
    ready = threading.Event()
    client.on_message = on_message
    client.on_subscribe = lambda *_: ready.set()
    client.subscribe("out/+", qos=1)
    assert ready.wait(PATIENCE_S)
    try:
        yield
    finally:
        leave(client)


def _publish(port: int, rate: int, seconds: int) -> None:
    client = connected(port, f"bench-publisher-{os.getpid()}")
    started = time.monotonic()
    for number in range(rate * seconds):
        time.sleep(max(0.0, started + number / rate - time.monotonic()))
        client.publish(f"in/{number % 100}", b"%d" % time.monotonic_ns(), 1)
    leave(client)


def _wait_for(times_ms: list[float], count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(times_ms) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count - len(times_ms)} of {count} messages did not come back")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
