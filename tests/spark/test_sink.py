"""Rows become messages that a stock subscriber gets: all of them, each once, or none of a batch with a bad row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import paho.mqtt.client as paho
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from loadtest.chaos.cluster import Cluster
from penstock.sdk.address import Address
from penstock.spark.connection import StoreAccess
from penstock.spark.encoding import Defaults, Encoder
from penstock.spark.publishing import SparkPublisher
from penstock.spark.sink import SINK_OPTIONS, WRITABLE, target_of
from tests.spark.fleet import TIMEOUT_S, Sent, connected, leave, publish
from tests.spark.rows import COLUMNS, Got, batch_of_rows
from tests.spark.test_wire import TOKEN, url_of


class Subscriber:
    """A stock client that has subscribed; what it is given, as Got."""

    def __init__(self, port: int, topic_filter: str) -> None:
        self.got: list[Got] = []
        self._came = threading.Condition()
        self._client = connected(port, f"sub-{topic_filter}")
        self._client.on_message = self._on_message
        subscribed = threading.Event()
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.subscribe(topic_filter, qos=2)
        assert subscribed.wait(TIMEOUT_S)

    def _on_message(self, _client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
        with self._came:
            self.got.append(Got.of(message))
            self._came.notify()

    def wait_for(self, count: int) -> list[Got]:
        with self._came:
            assert self._came.wait_for(lambda: len(self.got) >= count, TIMEOUT_S), len(self.got)
        return self.got

    def leave(self) -> None:
        leave(self._client)


Subscribe = Callable[[str], Subscriber]


@pytest.fixture
def subscribe(apart: Cluster) -> Iterator[Subscribe]:
    made: list[Subscriber] = []

    def subscribe(topic_filter: str) -> Subscriber:
        made.append(Subscriber(apart.port, topic_filter))
        return made[-1]

    yield subscribe
    for each in made:
        each.leave()


def write(frame: DataFrame, cluster: Cluster, **options: str | int | bool) -> None:
    frame.write.format("penstock").mode("append").options(token=TOKEN, **options).save(url_of(cluster))


def test_all_that_a_row_may_say(spark: SparkSession, apart: Cluster, subscribe: Subscribe) -> None:
    subscriber = subscribe("sink/#")
    rows = [
        Got(
            "sink/1", b"all", 2, (("unit", "°C"), ("", ""), ("unit", "K")), "text/plain", "answers/1", bytes(range(256))
        ),
        Got("sink/2", b"", 0),
        Got("sink/3", b"\0" * 5000, 1, (("a", "b" * 1000),)),
    ]
    frame = spark.createDataFrame([row.as_row(key="k" if row.qos else None) for row in rows], COLUMNS)
    write(frame.coalesce(1), apart)
    assert sorted(subscriber.wait_for(3)) == rows  # one of QoS 2 comes later
    stored = spark.read.format("penstock").option("token", TOKEN).option("topicFilter", "sink/#").load(url_of(apart))
    found = sorted(stored.collect(), key=lambda row: row.log_offset)
    assert [(row.topic, bytes(row.payload), row.qos) for row in found] == [(r.topic, r.payload, r.qos) for r in rows]


def test_options_hold_for_rows_that_do_not_say_it(spark: SparkSession, apart: Cluster, subscribe: Subscribe) -> None:
    subscriber = subscribe("fixed")
    frame = spark.range(2000).selectExpr("cast(id as string) payload", "map('n', cast(id as string)) headers")
    write(frame.coalesce(1), apart, topic="fixed", qos=2, retain=True)
    got = subscriber.wait_for(2000)
    assert [int(each.payload or b"") for each in got] == list(range(2000))
    assert {each.qos for each in got} == {2}
    assert got[7].user_properties == (("n", "7"),)
    late = subscribe("fixed/#")
    assert late.wait_for(1)[0].payload == b"1999"


def test_more_than_a_frame_of_many_partitions(spark: SparkSession, apart: Cluster) -> None:
    frame = spark.range(0, 20_000, 1, 4).selectExpr("concat('many/', id % 7) topic", "rpad(id, 100, ' ') payload")
    write(frame, apart)
    read = spark.read.format("penstock").option("token", TOKEN).option("topicFilter", "many/+").load(url_of(apart))
    assert sorted(int(bytes(row.payload)) for row in read.select("payload").collect()) == list(range(20_000))


BAD_ROWS = [
    (Got("a/+", b"x"), "wildcard in a topic"),
    (Got("", b"x"), "message without a topic"),
    (Got("a\0", b"x"), "U\\+0000 in a text"),
    (Got("$SYS/x", b"x"), "topic: what begins with \\$SYS is for the server"),
    (Got("$dead/g/x", b"x"), "topic: what begins with \\$dead is for the server"),
    (Got("a/" * 300, b"x"), "topic of too many levels"),
    (Got("a", None), "payload: it is null"),
    (Got(None, b"x"), "topic: it is null"),
    (Got("a", b"x", 3), "qos: use 0, 1 or 2"),
    (Got("a", b"x", -1), "qos: use 0, 1 or 2"),
    (Got("a", b"x", 1, (("k", None),)), "user_properties: a value that is null"),
    (Got("a", b"x", 1, (("k" * 70_000, "v"),)), "user_properties: a key that is null, or longer than 65535 bytes"),
    (Got("a", b"x", 1, (), None, "answers/#"), "wildcard in a topic"),
    (Got("a" * 70_000, b"x"), "topic: longer than 65535 bytes"),
]


@pytest.mark.parametrize(("bad", "line"), BAD_ROWS)
def test_a_bad_row_is_named(bad: Got, line: str) -> None:
    encoder = Encoder(Defaults(), 3)
    good = Got("a", b"x", 1, (("k", "v"),))
    encoder.encode(batch_of_rows([good] * 5))
    with pytest.raises(Exception, match=rf"row 7 of partition 3 \(topic .*\) is no message: {line}"):
        encoder.encode(batch_of_rows([good, good, bad, good]))


def test_of_a_batch_with_a_bad_row_nothing_is_published(spark: SparkSession, apart: Cluster) -> None:
    end = apart.store.metric("penstock_log_end_log_offset")
    frame = spark.range(0, 1000, 1, 2).selectExpr("if(id = 777, 'bad/+', 'bad/1') topic", "cast(id as string) payload")
    with pytest.raises(PySparkException, match=r"row 277 of partition 1 \(topic 'bad/\+'\) is no message: wildcard"):
        write(frame, apart)
    huge = spark.range(1).selectExpr("'bad/2' topic", "rpad('', 300000, 'x') payload")
    with pytest.raises(PySparkException, match=r"a message to 'bad/2' takes .* bytes"):
        write(huge, apart)
    assert apart.store.metric("penstock_log_end_log_offset") == end


def test_bad_options_and_columns_are_one_clear_line(spark: SparkSession) -> None:
    for columns, options, line in (
        ("topic string, payload binary", {"topics": "x"}, "unknown option 'topics' of a sink"),
        ("topic string, payload binary", {"qos": "3"}, "use 0, 1 or 2"),
        ("topic string, payload binary", {"path": "folder"}, "rows go to a store that runs"),
        ("topic string", {}, "no column 'payload'"),
        ("payload binary", {}, "no column 'topic'"),
        ("topic string, payload binary, offset long", {}, "column 'offset' is none of a message's"),
        ("topic string, payload int", {}, "column 'payload' is a int"),
        ("topic string, payload binary, qos string", {}, "column 'qos' is a string"),
    ):
        schema = spark.createDataFrame([], columns).schema
        with pytest.raises(Exception, match=line):
            target_of({"path": "penstock://localhost", **options}, schema, False)
    assert set(COLUMNS.replace(",", " ").split()) & set(WRITABLE)
    assert "topic" in SINK_OPTIONS


def test_an_epoch_is_published_once_however_it_is_run_again(spark: SparkSession, apart: Cluster) -> None:
    """Also one of several Appends, of which some were stored; in partitions that are others, in another order."""
    store = StoreAccess(Address.parse(url_of(apart)), TOKEN)
    name = "producer:spark:test"
    rows = [Got(f"epoch/{i % 3}", b"%d" % i + b" " * 100) for i in range(9000)]
    records = np.frombuffer(bytearray(Encoder(Defaults(), 0).encode(batch_of_rows(rows))), np.uint8)
    again = np.frombuffer(bytearray(Encoder(Defaults(), 0).encode(batch_of_rows(rows[::-1]))), np.uint8)
    interrupted = Interrupted(store, name, after=2)
    with pytest.raises(InterruptedError):
        interrupted.publish_epoch(5, records)
    for data in (again, records, again):
        apart.store.restart()
        publisher = SparkPublisher(store, name)
        publisher.publish_epoch(5, data.copy())
        publisher.publish_epoch(4, data.copy())
        publisher.close()
    read = spark.read.format("penstock").option("token", TOKEN).option("topicFilter", "epoch/+").load(url_of(apart))
    assert sorted(int(bytes(row.payload)) for row in read.select("payload").collect()) == list(range(9000))


class Interrupted(SparkPublisher):
    """One whose process ends after so many Appends."""

    def __init__(self, store: StoreAccess, name: str, after: int) -> None:
        super().__init__(store, name)
        self._left = after

    def _append(self, sequence: int, records: np.ndarray) -> None:
        if not self._left:
            raise InterruptedError
        self._left -= 1
        super()._append(sequence, records)


def test_a_stream_to_devices_and_a_restarted_query(
    spark: SparkSession, apart: Cluster, subscribe: Subscribe, tmp_path: Path
) -> None:
    subscriber = subscribe("alerts/#")

    def run() -> None:
        reader = spark.readStream.format("penstock").options(token=TOKEN, topic="in", startingOffsets="earliest")
        stream = reader.option("maxOffsetsPerTrigger", 40).load(url_of(apart))
        sink = stream.selectExpr("concat('alerts/', cast(payload as string)) topic", "payload").writeStream
        sink = sink.format("penstock").option("token", TOKEN).option("checkpointLocation", str(tmp_path))
        assert sink.trigger(availableNow=True).start(url_of(apart)).awaitTermination(120)

    publish(apart.port, [Sent("in", b"%d" % i) for i in range(100)])
    run()
    for path in [*(tmp_path / "commits").glob("2"), *(tmp_path / "commits").glob(".2.crc")]:
        path.unlink()  # as if it had been killed before it could write this
    publish(apart.port, [Sent("in", b"%d" % i) for i in range(100, 150)])
    run()
    got = subscriber.wait_for(150)
    assert [int(each.payload or b"") for each in got] == list(range(150))
