"""Spark's source over the wire, beside `penstock tier`: what retention has dropped is read in the table's storage."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.spark.batch import BatchReader
from penstock.spark.errors import BadSparkOption, TierUnreadable
from penstock.spark.ranges import LogRange, TierRange
from penstock.spark.source import PenstockSource
from penstock.spark.stream import StreamReader
from penstock.spark.topic_ranges import OfTopics
from store.topics import matches
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess
from tests.tier.places import TablePlace, judge_after
from tests.tier.test_cold_reads import Sent
from tests.tier.tier_process import Tier, oldest

Row = dict[str, Any]


@pytest.fixture
def tier(tmp_path: Path, store: StoreProcess, place: TablePlace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tier]:
    for name, text in place.options.items():
        if name.startswith("aws_"):
            monkeypatch.setenv(name.upper(), text)
    tier = Tier(tmp_path / "tier.log", store, place)
    yield tier
    tier.kill()


@pytest.fixture
def sent(store: StoreProcess, tier: Tier, seed: int) -> Sent:
    """So many that retention has dropped most of them."""
    sent = Sent(store, seed)
    while oldest(store) < 800_000:
        sent.more(50)
    return sent


class Spark:
    """Readers of a store, as Spark would make them."""

    def __init__(self, store: StoreProcess, tier: str) -> None:
        self._given = {"path": store.url.replace("tcp:", "penstock:"), "tier": tier}

    def _source(self, options: dict[str, object]) -> PenstockSource:
        given = self._given | {name: str(value) for name, value in options.items()}
        return PenstockSource(given)  # type: ignore[arg-type]

    def batch(self, **options: object) -> BatchReader:
        source = self._source(options)
        return source.reader(source.schema())

    def stream(self, **options: object) -> StreamReader:
        source = self._source({"startingOffsets": "earliest", **options})
        return source.streamReader(source.schema())


def rows(reader: BatchReader | StreamReader, parts: Sequence[InputPartition]) -> list[Row]:
    batches: list[pa.RecordBatch] = [batch for part in parts for batch in reader.read(part)]
    found: list[Row] = [row for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: int(row["log_offset"]))


def as_sent(found: list[Row]) -> list[tuple[str, bytes]]:
    for topic in {row["topic"] for row in found}:
        numbers = [row["queue_offset"] for row in found if row["topic"] == topic]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return [(row["topic"], row["payload"]) for row in found]


def expected(sent: Sent, topic_filter: str = "#") -> list[tuple[str, bytes]]:
    return [(topic, payload) for topic, payload, _ in sent.messages if matches(topic_filter, topic)]


@pytest.mark.catalogue("N51")
def test_a_batch_has_tier_and_log_as_one(store: StoreProcess, tier: Tier, sent: Sent) -> None:
    spark = Spark(store, tier.place.url)
    for topic_filter in ("#", "line/1", "line/+"):
        reader = spark.batch(topicFilter=topic_filter)
        parts = reader.partitions()
        assert TierRange in {type(part) for part in parts}
        found = rows(reader, parts)
        assert as_sent(found) == expected(sent, topic_filter)
    assert found[0]["user_properties"] == [{"key": "unit", "value": "C"}]
    assert {row["key"] for row in found} == {f"k{number}" for number in range(10)}


def test_the_store_says_where_the_table_is(tmp_path: Path, store: StoreProcess, tier: Tier, sent: Sent) -> None:
    """If the tier serves it; there is a line that says what to do if not."""
    spark = Spark(store, "auto")
    with pytest.raises(TierUnreadable, match=r"no `penstock tier` is connected .*: start it, or say where;") as error:
        spark.batch(storeTimeout=0)
    assert "\n" not in str(error.value)
    serving = Tier(tmp_path / "serving.log", store, tier.place, serves=True)
    tier.kill()
    try:
        reader = spark.batch()
        parts = reader.partitions()
        assert TierRange in {type(part) for part in parts}
        assert as_sent(rows(pickle.loads(pickle.dumps(reader)), parts)) == expected(sent)
        stream = spark.stream()
        assert stream.initialOffset() == {"log": 0}
    finally:
        serving.kill()
    with pytest.raises(TierUnreadable, match="no `penstock tier` is connected"):
        spark.batch(storeTimeout=1)


@pytest.mark.parametrize("place", ["folder"], indirect=True)
def test_a_store_without_a_tier_says_so(store: StoreProcess, place: TablePlace, seed: int) -> None:
    sent = Sent(store, seed)
    sent.more(50)
    reader = Spark(store, "auto").batch()
    assert reader.request.tier is None
    assert as_sent(rows(reader, reader.partitions())) == expected(sent)
    with pytest.raises(BadSparkOption, match="a data folder does not say where its tier is"):
        PenstockSource({"path": str(store.data), "tier": "auto"}).request  # type: ignore[arg-type]  # noqa: B018


@pytest.mark.parametrize("options", [{}, {"topicFilter": "line/1"}, {"topicFilter": "line/1", "failOnDataLoss": False}])
def test_spark_reads_ranges_dropped_after_the_plan_in_the_tier(
    store: StoreProcess, tier: Tier, sent: Sent, options: dict[str, object]
) -> None:
    reader = Spark(store, tier.place.url).batch(minPartitions=3, **options)
    parts = reader.partitions()
    kinds = {type(part) for part in parts}
    assert kinds <= {TierRange, LogRange, OfTopics}
    assert len(kinds) >= 2
    wanted = expected(sent, str(options.get("topicFilter", "#")))
    behind = max(oldest(store), 0) + 600_000
    while oldest(store) < behind:
        sent.more(50)
    assert as_sent(rows(reader, parts)) == wanted


def test_a_stream_goes_over_the_seam_while_it_moves(store: StoreProcess, tier: Tier, sent: Sent, seed: int) -> None:
    """Its process is another one for each batch; batches are exact, and each message comes once."""
    chance = random.Random(seed)
    found: list[Row] = []
    offset: dict[str, Any] | None = None
    spark = Spark(store, tier.place.url)
    while True:
        stream = spark.stream()
        start = offset or stream.initialOffset()
        end = stream.latestOffset(start, ReadMaxRows(60))
        if end == start:
            break
        parts = stream.partitions(start, end)
        if len(found) < 400:
            sent.more(chance.randrange(80))
        batch = rows(stream, parts)
        assert len(batch) <= 60
        found += batch
        stream.stop()
        offset = json.loads(json.dumps(end))
    assert as_sent(found) == expected(sent)


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_a_storage_that_is_away_or_gives_no_rights(
    store: StoreProcess, tier: Tier, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says which, and what to do; what the log has is read."""
    tier.kill()
    endpoint = tier.place.options["aws_endpoint"]
    spark = Spark(store, tier.place.url)
    judge_after(endpoint, "0")
    try:
        with pytest.raises(TierUnreadable, match=r"give the environment of driver and executors .* the rights to list"):
            spark.batch(storeTimeout=1).partitions()
    finally:
        judge_after(endpoint, "inf")
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TierUnreadable, match="is it there, and does the option tier name it rightly") as error:
        spark.batch(storeTimeout=1).partitions()
    assert "\n" not in str(error.value)
    reader = spark.batch(startingOffsets=json.dumps({"log": oldest(store)}))
    found = [(row["topic"], row["payload"]) for row in rows(reader, reader.partitions())]
    assert found == expected(sent)[-len(found) :]
