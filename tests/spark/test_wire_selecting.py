"""A few topics of a store that runs are read from their queues; the rows are those of a scan. Without Spark."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import In

from lightqueue.message_store import MessageStore
from loadtest.chaos.cluster import Cluster
from penstock.spark import explain
from penstock.spark.batch import BatchReader, PushingReader
from penstock.spark.ranges import LogRange
from penstock.spark.source import PenstockSource
from penstock.spark.topic_ranges import OfTopics
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.topics import matches
from tests.spark.fleet import Sent, publish
from tests.support.stores import small

TIMEOUT_S = 60
SEGMENT_BYTES = 4 << 20
TOPICS, ROUNDS, PAYLOAD_BYTES = 1000, 60, 500
NAMES = [f"line/{number // 10}/temp{number % 10}" for number in range(TOPICS)]
RARE = ["rare", "rarer/1", "rare/1", "rare/1/2", "rare/2", "$x/1", "x/1", "/1", "1"]
FEW = [
    *("rare/+", "rare/#", "rare/1/#", "rare/+/+", "$x/+", "$x/#", "/+", "+/1", "line/7/+", "line/7/#", "+/7/temp3"),
    *('["rare/+", "rare/1"]', '["x/1", "rare/#", "line/3/+"]', '["rare", "never"]'),
]
NONE = ["never/+", "never/#", "$x", "x/+/1", "line/7/temp", "line/77/temp3/+"]
MANY = ["#", "+/+/+", "line/#"]


def write(data: Path) -> None:
    """Most messages are to `line/...`, and a few between them to RARE."""
    store = MessageStore(small(data, segment_bytes=SEGMENT_BYTES))
    for round_ in range(ROUNDS):
        batch = RecordBatch()
        for topic in (*NAMES, *RARE):
            batch.append(RecordType.MESSAGE, b"%d" % round_ + bytes(PAYLOAD_BYTES), topic=topic.encode())
        store.append(batch)
    store.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("selecting")
    write(folder / "data")
    cluster = Cluster(folder, 1, {"store.segment_bytes": SEGMENT_BYTES}, wires=False)
    yield cluster
    cluster.close()


def url(store: Cluster) -> str:
    return store.store_url.replace("tcp:", "penstock:")


def reader(store: Cluster, **options: str) -> BatchReader:
    source = PenstockSource({"path": url(store), **options})  # type: ignore[arg-type]
    return source.reader(source.schema())


def rows(reader: BatchReader) -> list[dict[str, Any]]:
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["log_offset"])


def by_queue(reader: BatchReader) -> list[OfTopics]:
    return [part for part in reader.partitions() if isinstance(part, OfTopics)]


def wait_until_known(store: Cluster) -> None:
    """Until the index has everything, so that nothing is left to be scanned."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(isinstance(part, LogRange) for part in reader(store, topicFilter="rare/+").partitions()):
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.05)


def wanted_of(everything: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    names = name.strip("[]").replace('"', "").split(", ")
    return [row for row in everything if any(matches(one, row["topic"]) for one in names)]


def test_a_filter_that_never_had_a_queue(store: Cluster) -> None:
    """It becomes the topics that match as MQTT says; the rows are those of a scan."""
    wait_until_known(store)
    everything = rows(reader(store))
    assert len(everything) == ROUNDS * len((*NAMES, *RARE))
    middle = everything[len(everything) // 2]["log_offset"]
    at = f'{{"log": {middle}}}'
    for name in (*FEW, *NONE):
        wanted = wanted_of(everything, name)
        chosen = reader(store, topicFilter=name, minPartitions="3")
        assert rows(chosen) == wanted, name
        assert bool(wanted) == bool(by_queue(chosen)) == (name in FEW), name
        assert len(by_queue(chosen)) <= 3
        early, late = (
            reader(store, topicFilter=name, endingOffsets=at),
            reader(store, topicFilter=name, startingOffsets=at),
        )
        assert rows(early) == [row for row in wanted if row["log_offset"] < middle], name
        assert rows(late) == [row for row in wanted if row["log_offset"] >= middle], name


def test_pushed_equals_unpushed(store: Cluster) -> None:
    wait_until_known(store)
    everything = rows(reader(store))
    for options in ({}, {"topicFilter": "rare/+"}, {"topicFilter": "line/#"}):
        chosen = reader(store, pushFilters="true", **options)
        assert isinstance(chosen, PushingReader)
        assert list(chosen.pushFilters([In(("topic",), ("rare/1", "line/7/temp3", "never"))])) == []
        wanted = wanted_of(everything, options.get("topicFilter", "#"))
        assert rows(chosen) == [row for row in wanted if row["topic"] in ("rare/1", "line/7/temp3")]
        assert by_queue(chosen)


def test_the_plan_says_how_and_why(store: Cluster) -> None:
    wait_until_known(store)
    few = explain(url(store), topicFilter="rare/+")
    assert few.startswith(f"read by place ({2 * ROUNDS} messages of 2 topics, by their queues over the wire) of ")
    assert "(all of it)" in explain(url(store))
    for name in MANY:
        assert "to look up all topics that may match would take long" in explain(url(store), topicFilter=name)
    some = json.dumps([f"line/{number}/+" for number in range(6)])
    assert "too many messages to be read one by one" in explain(url(store), topicFilter=some)


def test_topics_that_are_new_while_it_is_planned(store: Cluster) -> None:
    """What the index does not know yet is scanned; there is no time at which a message is in neither, or in both."""
    stop = threading.Event()
    sent: list[str] = []

    def write() -> None:
        while not stop.is_set():
            some = [f"new/{len(sent) + i}" for i in range(10)]
            publish(store.ports[0], [Sent(topic, b"") for topic in some], "writer")
            sent.extend(some)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(sent) < 150:
            assert time.monotonic() < deadline_s
            least = set(sent)
            found = [row["topic"] for row in rows(reader(store, topicFilter="new/+", columns="topic,log_offset"))]
            assert least <= set(found)
            assert len(found) == len(set(found))
    finally:
        stop.set()
        writer.join()


def test_a_selective_filter_sends_a_twentieth(store: Cluster) -> None:
    """Everything that the store sends is counted, planning as well. One topic in a hundred is wanted."""
    wait_until_known(store)
    few, whole = (sent_bytes(store, name) for name in ("line/7/+", "line/#"))
    assert whole > TOPICS * ROUNDS * PAYLOAD_BYTES
    assert few < whole / 20


def sent_bytes(store: Cluster, name: str) -> int:
    metric = "penstock_wire_sent_bytes_total"
    before = store.store.metric(metric)
    assert len(rows(reader(store, topicFilter=name, columns="payload,log_offset"))) % ROUNDS == 0
    return store.store.metric(metric) - before
