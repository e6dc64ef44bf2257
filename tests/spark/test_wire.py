"""Reading a store that runs, over the wire: the same rows as from its folder, and nothing left behind there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from loadtest.chaos.cluster import Cluster
from penstock.columns import COLUMNS
from penstock.spark.errors import BadSparkOption, DataLost, StoreUnreachable
from penstock.spark.source import PenstockSource
from penstock.spark.stream import StreamReader
from tests.spark.fleet import HEADERS, Sent, publish, telemetry
from tests.support.server_process import free_port

TIMEOUT_S = 120
TOKEN = "s3cret"
Load = Callable[..., DataFrame]


def url_of(cluster: Cluster) -> str:
    return "penstock" + cluster.store_url.removeprefix("tcp")


@pytest.fixture(scope="module")
def filled(apart: Cluster) -> Cluster:
    publish(apart.port, telemetry(3000) + HEADERS, "fleet")
    return apart


@pytest.fixture
def load(spark: SparkSession, filled: Cluster) -> Load:
    return lambda **options: spark.read.format("penstock").options(token=TOKEN, **options).load(url_of(filled))


def rows_of(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: row.log_offset)


def size_of(data: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in data.rglob("*.log")}


def test_the_rows_are_those_of_the_folder(load: Load, spark: SparkSession, filled: Cluster) -> None:
    for options in (
        {},
        {"minPartitions": "7"},
        {"topicFilter": "line/+/temp"},
        {"topic": json.dumps(["line", "x"]), "minPartitions": "3"},
        {"startingTimestamp": "-1h"},
    ):
        folder = spark.read.format("penstock").options(**options).load(str(filled.data))
        expected, found = rows_of(folder), rows_of(load(**options))
        assert len(expected) > 300
        assert found == expected, options
    assert load().columns == list(COLUMNS)
    assert load(minPartitions=7).rdd.getNumPartitions() == 7
    first, last = (rows_of(load())[i].log_offset for i in (100, 1000))
    options = {"startingOffsets": json.dumps({"log": first}), "endingOffsets": json.dumps({"log": last})}
    folder = spark.read.format("penstock").options(**options).load(str(filled.data))
    assert rows_of(load(**options)) == rows_of(folder)


def test_topics_by_name_are_read_from_their_queues(apart: Cluster, spark: SparkSession) -> None:
    publish(apart.port, [Sent(f"fill/{number % 50}", bytes(2000)) for number in range(5000)], "fill")
    wanted = [Sent("few/a", b"%d" % number) for number in range(400)] + [Sent("few/b", b"x")]
    for some in (wanted[::2], wanted[1::2]):
        publish(apart.port, some, "few")

    def plan(**options: str) -> str:
        source = PenstockSource({"path": url_of(apart), "token": TOKEN, **options})  # type: ignore[arg-type]
        return str(source.reader(source.schema()).plan())

    few = json.dumps(["few/a", "few/b", "few/none"])
    assert "401 messages of 2 topics, by their queues" in plan(topic=few)
    for options in ({"topic": few}, {"topic": "few/a", "minPartitions": "3"}, {"topic": few, "minPartitions": "2"}):
        folder = spark.read.format("penstock").options(**options).load(str(apart.data))
        found = spark.read.format("penstock").options(token=TOKEN, **options).load(url_of(apart))
        assert found.rdd.getNumPartitions() == int(options.get("minPartitions", 1))
        assert len(rows_of(found)) == 401 - ("few/b" not in options["topic"])
        assert rows_of(found) == rows_of(folder), options
    assert "too many messages" in plan(topic=json.dumps([f"fill/{number}" for number in range(20)]))
    assert "401 messages of 2 topics, by their queues" in plan(topicFilter="few/+")


def test_readers_add_nothing_to_the_store(load: Load, spark: SparkSession, filled: Cluster) -> None:
    before, end = size_of(filled.data), filled.store.metric("penstock_log_end_log_offset")
    counts = {load(minPartitions=parts).count() for parts in range(1, 9)}
    assert counts == {spark.read.format("penstock").load(str(filled.data)).count()}
    assert size_of(filled.data) == before
    assert filled.store.metric("penstock_log_end_log_offset") == end


@pytest.fixture
def stream(spark: SparkSession, apart: Cluster, tmp_path: Path) -> Callable[..., StreamingQuery]:
    """What there is of topic `n` now, from where the last one ended, into a folder of Parquet."""

    def run(**options: str | int) -> StreamingQuery:
        reader = spark.readStream.format("penstock").options(token=TOKEN, topic="n", startingOffsets="earliest")
        sink = reader.options(**options).load(url_of(apart)).writeStream.format("parquet")
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = sink.start(str(tmp_path / "sink"))
        assert query.awaitTermination(TIMEOUT_S)
        return query

    return run


def test_a_stream_has_each_message_once_across_limits_restarts_and_a_killed_store(
    spark: SparkSession, apart: Cluster, stream: Callable[..., StreamingQuery], tmp_path: Path
) -> None:
    publish(apart.port, [Sent("n", b"%d" % number) for number in range(250)])
    query = stream(maxOffsetsPerTrigger=100, consumerName="numbers")
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [100, 100, 50]
    lag = apart.store.metric('penstock_reader_lag_bytes{reader="numbers"}')
    publish(apart.port, [Sent("n", b"%d" % number) for number in range(250, 300)])
    assert apart.store.metric('penstock_reader_lag_bytes{reader="numbers"}') > lag
    apart.store.restart()
    stream()
    rows = spark.read.parquet(str(tmp_path / "sink")).collect()
    assert sorted((row.queue_offset, int(bytes(row.payload))) for row in rows) == [(i, i) for i in range(300)]


def test_a_store_that_is_away_is_waited_for(apart: Cluster) -> None:
    def numbers() -> Iterator[int]:
        source = PenstockSource({"path": url_of(apart), "token": TOKEN, "columns": "log_offset"})  # type: ignore[arg-type]
        reader = source.reader(source.schema())
        parts = reader.partitions()
        apart.store.kill()
        apart.store.start()
        for part in parts:
            for batch in reader.read(part):
                yield batch.num_rows

    assert sum(numbers()) > 0


def test_errors_of_reading_over_the_wire_are_one_line(
    spark: SparkSession, load: Load, apart: Cluster, tmp_path: Path
) -> None:
    reader = spark.read.format("penstock")
    with pytest.raises(PySparkException, match="not the token of a client"):
        reader.load(url_of(apart)).count()
    with pytest.raises(PySparkException, match=r"cannot connect .*; is it running\?"):
        reader.option("storeTimeout", 0).load(f"penstock://127.0.0.1:{free_port()}").count()
    for options, line in (
        ({"path": "http://x"}, "not the address of a store; use penstock://HOST:PORT"),
        ({"path": "penstocks://x", "tlsCaFile": str(tmp_path / "none")}, "no such file"),
        ({"path": "penstock://x", "storeTimeout": "soon"}, "use seconds, from 0"),
        ({"path": str(tmp_path), "consumerName": "x"}, "only a store that runs can show it"),
    ):
        with pytest.raises(BadSparkOption, match=line):
            PenstockSource(options).schema()  # type: ignore[arg-type]


def test_positions_that_are_not_there(apart: Cluster) -> None:
    def reader(**options: str) -> StreamReader:
        source = PenstockSource({"path": url_of(apart), "token": TOKEN, **options})  # type: ignore[arg-type]
        return source.streamReader(source.schema())

    end = reader().initialOffset()["log"]
    with pytest.raises(DataLost, match="is behind the log's end"):
        reader(startingOffsets=json.dumps({"log": end + 8})).initialOffset()
    with pytest.raises(DataLost, match="no record begins at"):
        reader(startingOffsets=json.dumps({"log": 72})).initialOffset()
    lenient = reader(startingOffsets=json.dumps({"log": 72}), failOnDataLoss="false")
    assert lenient.initialOffset()["log"] > 72
    away = PenstockSource({"path": f"penstock://127.0.0.1:{free_port()}", "storeTimeout": "0"})  # type: ignore[arg-type]
    away_reader = away.streamReader(away.schema())
    with pytest.raises(StoreUnreachable):
        away_reader.initialOffset()
