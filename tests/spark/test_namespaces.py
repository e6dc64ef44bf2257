"""Option namespace: rows of one tenant by the names that it knows, from a folder and over the wire; and rows to one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.errors import BadSparkOption
from penstock.spark.options import parse_options
from penstock.sync import Client
from tests.support.store_process import StoreProcess

OF = {"acme": "acme-secret", "": "for-all"}
ROWS = {("line/7", "line/7"), ("line/8", "line/8"), ("$dead/g/line/7", "$dead/g/line/7")}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    folder = tmp_path_factory.mktemp("namespaces")
    tokens = folder / "tokens"
    tokens.write_text("acme acme-secret\n")
    tokens.chmod(0o600)
    settings = {"wire.client_token": "for-all", "wire.namespace_tokens_file": tokens}
    running = StoreProcess(folder, settings=settings)
    for name, token in OF.items():
        with Client(url_of(running), token=token) as client:
            for topic in ("line/7", "line/8"):
                client.publish(topic, name.encode())
            with client.subscribe("line/7", group="g") as members:
                assert next(iter(members)).reject("no use")
    yield running
    running.close()


def url_of(store: StoreProcess) -> str:
    return store.url.replace("tcp://", "penstock://")


def load(spark: SparkSession, store: StoreProcess, where: str, **options: str) -> DataFrame:
    reader = spark.read.format("penstock").options(**options)
    if where == "wire":
        return reader.option("token", "for-all").load(url_of(store))
    return reader.load(str(store.data))


@pytest.mark.parametrize("where", ["folder", "wire"])
def test_rows_of_one_namespace(spark: SparkSession, store: StoreProcess, where: str) -> None:
    for name in OF:
        rows = load(spark, store, where, namespace=name).collect()
        assert {(row.topic, row.queue) for row in rows} == ROWS
        assert {bytes(row.payload) for row in rows} == {name.encode()}
        assert {row.queue_offset for row in rows} == {0}
        for options, expected in (
            ({"topic": "line/8"}, {"line/8"}),
            ({"topicFilter": "+/7"}, {"line/7"}),
            ({"topicFilter": "$dead/#"}, {"$dead/g/line/7"}),
        ):
            frame = load(spark, store, where, namespace=name, **options)
            assert {(row.topic, bytes(row.payload)) for row in frame.collect()} == {
                (topic, name.encode()) for topic in expected
            }
    assert {row.topic for row in load(spark, store, where).collect()} >= {"line/7", "$ns:acme/line/7"}


@pytest.mark.parametrize("where", ["folder", "wire"])
def test_topics_that_are_pushed_are_the_namespaces(spark: SparkSession, store: StoreProcess, where: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for name in OF:
            frame = load(spark, store, where, namespace=name, pushFilters="true")
            assert [bytes(row.payload) for row in frame.where("topic = 'line/7'").collect()] == [name.encode()]
            assert frame.where("topic = '$ns:acme/line/7'").collect() == []
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_rows_to_a_namespace(spark: SparkSession, store: StoreProcess, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("out/1", "x"), ("$own", "y")], "topic string, payload string")
    writer = frame.write.format("penstock").mode("append")
    writer.options(namespace="acme", token="acme-secret").save(url_of(store))
    with Client(url_of(store), token="acme-secret") as client:
        assert [each.topic for each in client.read("out/#", stop="now")] == ["out/1"]
        assert [each.topic for each in client.read("$own", stop="now")] == ["$own"]
    with Client(url_of(store), token="for-all") as client:
        assert [each.topic for each in client.read("out/#", stop="now")] == []
    stream = load_stream(spark, store).selectExpr("concat('copy/', topic) topic", "payload")
    query = (
        stream.writeStream.format("penstock")
        .options(namespace="acme", token="acme-secret", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(url_of(store))
    )
    assert query.awaitTermination(120)
    with Client(url_of(store), token="acme-secret") as client:
        assert [each.topic for each in client.read("copy/#", stop="now")] == ["copy/out/1"]


def load_stream(spark: SparkSession, store: StoreProcess) -> DataFrame:
    stream = spark.readStream.format("penstock").options(namespace="acme", topic="out/1", token="for-all")
    return stream.option("startingOffsets", "earliest").load(url_of(store))


def test_sink_cannot_use_names_of_other_namespaces(spark: SparkSession, store: StoreProcess) -> None:
    for topic, namespace, token in (
        ("$ns:acme/x", "acme", "acme-secret"),
        ("$ns:acme/x", "", "for-all"),
        ("", "acme", "acme-secret"),
        ("line/1", "beta", "acme-secret"),
    ):
        frame = spark.createDataFrame([(topic, "x")], "topic string, payload string")
        writer = frame.write.format("penstock").mode("append").option("storeTimeout", 0)
        with pytest.raises(PySparkException):
            writer.options(namespace=namespace, token=token).save(url_of(store))


def test_bad_options() -> None:
    for options in ({"namespace": "No Name"}, {"namespace": "acme", "topic": "$ns:beta/x"}):
        with pytest.raises(BadSparkOption):
            parse_options({"path": "/tmp", **options})
