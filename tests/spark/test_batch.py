"""`spark.read.format("penstock")` on the folder of a running server, against what stock MQTT clients sent and got."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from penstock.columns import COLUMNS
from penstock.spark.folder import LogFolder
from store.files.segment import segment_paths
from store.log.commitlog import CommitLog
from store.topics import matches
from tests.spark.fleet import FILTERS, HEADERS, Fleet, Sent, publish
from tests.support.stores import batch_of, small

Read = Callable[..., DataFrame]
ANSWER_TIMEOUT_S = 60


@pytest.fixture
def read(spark: SparkSession, fleet: Fleet) -> Read:
    """The fleet's messages, with these options; a read ends where the fleet's do, whatever other tests publish."""
    return lambda **options: spark.read.format("penstock").options(**options).load(fleet.path)


def rows_of(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: row.log_offset)


@pytest.mark.catalogue("I32")
def test_batch_has_published_messages_once_and_in_order(read: Read, fleet: Fleet) -> None:
    started = time.time()
    rows = rows_of(read())
    assert [sent_of(row) for row in rows if row.client_id == "fleet"] == fleet.published
    assert len({row.log_offset for row in rows}) == len(rows)
    assert {(row.queue == row.topic, row.key) for row in rows} == {(True, None)}
    seen: Counter[str] = Counter()
    for row in rows:
        assert row.queue_offset == seen[row.topic]
        seen[row.topic] += 1
    times = [row.timestamp.timestamp() for row in rows]
    assert times == sorted(times)
    assert started - 3600 < times[0] <= times[-1] < time.time()


def sent_of(row: Row) -> Sent:
    """The message that a row, with all its columns, is about."""
    return Sent(
        row.topic,
        bytes(row.payload),
        row.qos,
        row.retain,
        tuple((pair.key, pair.value) for pair in row.user_properties),
        row.content_type,
        row.response_topic,
        None if row.correlation_data is None else bytes(row.correlation_data),
    )


def test_filters_match_as_the_broker_does(read: Read, fleet: Fleet) -> None:
    for name in FILTERS:
        rows = read(topicFilter=name, columns="topic,payload,client_id").where("client_id = 'fleet'").collect()
        assert Counter((row.topic, bytes(row.payload)) for row in rows) == Counter(fleet.delivered[name]), name


def test_topics_and_filters_as_lists(read: Read, fleet: Fleet) -> None:
    options = {"topic": json.dumps(["line", "x"]), "topicFilter": json.dumps(["+/7/temp", "none/#"])}
    found = read(columns="topic,client_id", **options).where("client_id = 'fleet'").collect()
    wanted = ("line", "x", "line/7/temp", "plant/7/temp")
    assert Counter(row.topic for row in found) == Counter(m.topic for m in fleet.published if m.topic in wanted)


def test_dollar_topics_are_not_matched_by_a_wildcard(spark: SparkSession, tmp_path: Path) -> None:
    """Clients cannot publish them, but a log may hold some."""
    stored = ["$x", "$x/1", "$x/1/2", "x", "x/1", "/$x", ""]
    (tmp_path / "log").mkdir()
    log = CommitLog(tmp_path / "log", small(tmp_path))
    for topic in stored:
        log.append(batch_of(b"", topic=topic.encode()))
    log.close()
    for name in ("#", "+", "+/#", "+/1", "$x/#", "$x/+", "$x", "+/+/2", "/+"):
        found = spark.read.format("penstock").options(topicFilter=name, columns="topic").load(str(tmp_path)).collect()
        assert sorted(row.topic for row in found) == sorted(topic for topic in stored if matches(name, topic)), name


def test_headers_round_trip(read: Read) -> None:
    assert [sent_of(row) for row in rows_of(read(topicFilter="headers/+"))] == HEADERS


def test_only_the_columns_that_are_asked_for(read: Read, spark: SparkSession, fleet: Fleet) -> None:
    assert read().columns == list(COLUMNS)
    assert read(columns="qos, topic").columns == ["qos", "topic"]
    frame = spark.read.format("penstock").schema("log_offset long, retain boolean").load(fleet.path)
    assert frame.columns == ["log_offset", "retain"]
    assert frame.where("retain").count() == read(columns="retain").where("retain").count() > 0


def test_min_partitions_changes_tasks_but_not_rows(read: Read) -> None:
    whole = rows_of(read(columns="log_offset,payload"))
    for parts in (1, 2, 7, 50):
        frame = read(columns="log_offset,payload", minPartitions=parts)
        assert frame.rdd.getNumPartitions() == parts
        assert rows_of(frame) == whole


def test_offsets_are_exact(read: Read) -> None:
    offsets = [row.log_offset for row in rows_of(read(columns="log_offset"))]
    first, last = offsets[100], offsets[900]
    chosen = read(
        columns="log_offset", startingOffsets=json.dumps({"log": first}), endingOffsets=json.dumps({"log": last})
    )
    assert [row.log_offset for row in rows_of(chosen)] == offsets[100:900]
    assert read(startingOffsets="latest").count() == 0
    assert read(startingOffsets="earliest", endingOffsets="latest").count() == len(offsets)


def test_times_are_exact(read: Read) -> None:
    rows = rows_of(read(columns="timestamp,log_offset"))
    limit = rows[len(rows) // 2].timestamp
    middle = limit.isoformat() + "Z"
    before = read(columns="timestamp,log_offset", endingTimestamp=middle)
    after = read(columns="timestamp,log_offset", startingTimestamp=middle)
    assert rows_of(before) == [row for row in rows if row.timestamp < limit]
    assert rows_of(after) == [row for row in rows if row.timestamp >= limit]
    assert read(startingTimestamp="-1h").count() == len(rows)
    assert read(endingTimestamp="-1h").count() == 0
    assert read(startingTimestamp="2100-01-01T00:00:00Z").count() == 0


@pytest.mark.catalogue("I32")
def test_readers_add_nothing_to_the_store(read: Read, fleet: Fleet) -> None:
    def log_files() -> list[tuple[str, int, int]]:
        files = segment_paths(Path(fleet.path) / "log")
        return [(path.name, path.stat().st_blocks, path.stat().st_mtime_ns) for path in files]

    before = log_files()
    assert read(minPartitions=4).count() > 0
    assert read(topicFilter="line/#").count() > 0
    assert log_files() == before


def test_while_it_is_being_written(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    """Every count is of whole messages, none twice, and what was acknowledged before a read is in it."""
    load = spark.read.format("penstock").option("columns", "payload").option("topic", "busy")
    stop, acknowledged = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            round_ = [Sent("busy", b"%d" % (acknowledged[0] + i)) for i in range(500)]
            publish(fleet.server.port, round_, "writer")
            acknowledged[0] += len(round_)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        seen = 0
        while seen < 3000 and time.monotonic() < deadline:
            least = acknowledged[0]
            numbers = sorted(int(bytes(row.payload)) for row in load.load(fleet.path).collect())
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= max(seen, least)
            seen = len(numbers)
        assert seen >= 3000
    finally:
        stop.set()
        writer.join()
    assert load.load(fleet.path).count() == acknowledged[0]


BAD_OPTIONS = [
    ({"topicFiler": "a"}, "unknown option 'topicfiler'"),
    ({"topicFilter": "a/#/b"}, "'#' is not the last character"),
    ({"topic": "a/+"}, "contains a wildcard"),
    ({"topicFilter": "['a', 'b']"}, "give several as a JSON list"),
    ({"topicFilter": "$share/g/a"}, "shared subscriptions are for MQTT clients"),
    ({"startingOffsets": "first"}, "use earliest, latest, or a log_offset"),
    ({"startingOffsets": '{"log": 72}'}, "no record begins at log_offset 72"),
    ({"startingOffsets": '{"log": 99999999999}'}, "is behind the log's end"),
    ({"startingOffsets": "earliest", "startingTimestamp": "-1h"}, "exclude each other"),
    ({"endingTimestamp": "2026-11-21"}, "an RFC 3339 time"),
    ({"columns": "topic,size"}, "there is no 'size'"),
    ({"minPartitions": "0"}, "use a number from 1 to"),
    ({"failOnDataLoss": "maybe"}, "use true or false"),
]


@pytest.mark.parametrize(("options", "line"), BAD_OPTIONS)
def test_a_bad_option_is_one_clear_line(read: Read, options: dict[str, str], line: str) -> None:
    with pytest.raises(PySparkException, match=line) as raised:
        read(**options).collect()
    assert any(line in text for text in str(raised.value).splitlines())


def test_a_folder_without_a_log(spark: SparkSession, tmp_path: Path) -> None:
    for path, line in ((tmp_path / "none", "no such folder"), (tmp_path, "has no folder `log`")):
        with pytest.raises(PySparkException, match=line):
            spark.read.format("penstock").load(str(path)).collect()
    with pytest.raises(PySparkException, match="not the address of a store"):
        spark.read.format("penstock").load("mqtt://127.0.0.1:1883").collect()
    with pytest.raises(PySparkException, match="column 'qos' is int; cast it"):
        spark.read.format("penstock").schema("qos long").load(str(tmp_path)).collect()


def test_an_empty_log_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    assert spark.read.format("penstock").load(str(tmp_path)).count() == 0


def test_registered_by_hand(spark: SparkSession, fleet: Fleet) -> None:
    from penstock.spark import register

    register(spark)
    assert LogFolder(fleet.path).end() > 0
    assert spark.read.format("penstock").load(fleet.path).limit(1).count() == 1
