"""`penstock.spark.table`: the table's files by Spark's own reader, and the log behind them, as one DataFrame."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock.spark
from penstock.spark.errors import SparkSourceError
from penstock.tier.rows import restored_client_id
from store.namespaces import Namespace
from tests.spark.cold import ColdLog
from tests.tier.places import TablePlace


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ColdLog]:
    """A log of which the table has a part that was merged, and the log the last two thirds."""
    folder = tmp_path_factory.mktemp("cold")
    cold = ColdLog(folder, TablePlace(str(folder / "fleet"), {}), 7)
    cold.publish(60)
    cold.commit()
    cold.publish(20)
    yield cold
    cold.close()


@pytest.fixture(scope="module")
def expected(cold: ColdLog) -> list[dict[str, Any]]:
    """The rows of the log, before it is cut."""
    rows = cold.in_log()
    cold.drop(0.4)
    cold.merge()
    return rows


def table(spark: SparkSession, cold: ColdLog) -> DataFrame:
    return penstock.spark.table(spark, str(cold.data), tier=cold.place.url)


def in_log(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table with names of the log."""
    topic = Namespace(row["namespace"]).topic(row["topic"])
    client_id = restored_client_id(row["namespace"], row["client_id"])
    return row | {"topic": topic, "queue": topic, "client_id": client_id}


def test_table_has_the_rows_of_tier_and_log(spark: SparkSession, cold: ColdLog, expected: list[dict[str, Any]]) -> None:
    found = sorted((row.asDict(recursive=True) for row in table(spark, cold).collect()), key=lambda r: r["log_offset"])
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        seen = in_log(row)
        assert row["day"] == wanted["timestamp"].date()
        seen["timestamp"] = (
            wanted["timestamp"] if row["timestamp"].timestamp() == wanted["timestamp"].timestamp() else 0
        )
        assert {name: seen[name] for name in wanted} == wanted


def test_table_is_a_snapshot_of_its_making(spark: SparkSession, cold: ColdLog, expected: list[Any]) -> None:
    """A query that runs later sees the same rows, whatever came since."""
    before = table(spark, cold)
    cold.publish(3)
    assert before.count() == before.count() == len(expected)
    assert table(spark, cold).count() > len(expected)


@pytest.mark.parametrize("columns", ["topic", "day,payload", "client_id, log_offset", "namespace,content_type", "qos"])
def test_only_columns_that_are_wanted_are_made(
    spark: SparkSession, cold: ColdLog, expected: list[Any], columns: str
) -> None:
    """In the log's part too, which Spark does not tell what a query uses."""
    frame = penstock.spark.table(spark, str(cold.data), tier=cold.place.url, columns=columns)
    names = [name.strip() for name in columns.split(",")]
    assert frame.columns == names
    whole = table(spark, cold).select(*names)
    assert sorted(map(str, frame.collect())) == sorted(map(str, whole.collect()))
    read = plan_of(frame).partition("PythonDataSource")[2] or plan_of(frame)
    assert "queue_offset" not in read


def plan_of(frame: DataFrame) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        frame.explain("formatted")
    return said.getvalue()


def test_topic_day_and_log_offset_go_to_the_files(spark: SparkSession, cold: ColdLog, expected: list[Any]) -> None:
    frame = table(spark, cold).where("topic = 'line/7/temp' and day >= '2020-01-01' and log_offset < 100000")
    plan = plan_of(frame.select("log_offset", "payload"))
    assert "EqualTo(topic,line/7/temp)" in plan
    assert "LessThan(log_offset,100000)" in plan
    assert "PartitionFilters: [isnotnull(day" in plan
    assert "properties" not in plan.partition("Scan parquet")[2].partition("ReadSchema")[2].splitlines()[0]
    wanted = [row for row in expected if row["topic"] == "line/7/temp" and row["log_offset"] < 100_000]
    assert frame.count() == len(wanted) > 3


def test_properties_are_decoded_if_they_are_wanted(spark: SparkSession, cold: ColdLog, expected: list[Any]) -> None:
    known = table(spark, cold).where(f"log_offset <= {expected[-1]['log_offset']}")
    counted = known.where("content_type = 'json' and correlation_data = X'00FF'").count()
    assert counted == sum(row["content_type"] == "json" for row in expected) > 10
    plan = plan_of(table(spark, cold).groupBy("topic").count())
    assert "ArrowEvalPython" not in plan


def test_errors_of_the_table_are_told_at_once(spark: SparkSession, cold: ColdLog, tmp_path: Path) -> None:
    with pytest.raises(SparkSourceError, match="nowhere: is not there"):
        penstock.spark.table(spark, str(cold.data), tier=str(tmp_path / "nowhere"))
    with pytest.raises(SparkSourceError, match="tier: is empty"):
        penstock.spark.table(spark, str(cold.data), tier="")
    with pytest.raises(SparkSourceError, match="there is no 'colour'; there are day, namespace, topic"):
        penstock.spark.table(spark, str(cold.data), tier=cold.place.url, columns="topic,colour")


def test_a_log_that_the_table_has_all_of_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    cold = ColdLog(tmp_path, TablePlace(str(tmp_path / "fleet"), {}), 8)
    cold.publish(5)
    cold.commit()
    rows = cold.in_log()
    frame = table(spark, cold)
    assert "Python" not in plan_of(frame.select("topic"))
    assert frame.count() == len(rows)
    cold.close()
