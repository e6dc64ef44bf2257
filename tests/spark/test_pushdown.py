"""Option pushFilters: the rows are the same, and less of the log is read for them."""

import json
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan

from penstock.spark.folder import LogFolder
from penstock.spark.log_and_tier import LogAndTier
from penstock.spark.source import PenstockSource
from tests.spark.fleet import Fleet

ENABLED = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(ENABLED, "true")
    yield spark
    spark.conf.unset(ENABLED)


def load(spark: SparkSession, fleet: Fleet, push: bool, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(pushFilters=push, **options).load(fleet.path)


def test_pushed_equals_unpushed(pushing: SparkSession, fleet: Fleet) -> None:
    offsets = sorted(row.log_offset for row in load(pushing, fleet, False, columns="log_offset").collect())
    early, late = offsets[200], offsets[800]
    conditions = [
        "topic = 'line/7/temp'",
        "topic in ('line', 'x', 'nothing')",
        "topic = 'line' and topic in ('x', 'line')",
        "topic = 'line' and topic = 'x'",
        "topic = 'line' or qos = 2",
        "topic = null",
        "topic like 'line/%'",
        f"log_offset >= {early} and log_offset < {late}",
        f"log_offset > {early + 1} and log_offset <= {late - 1} and topic = 'line'",
        f"log_offset = {late}",
        f"log_offset = {late + 1}",
        "log_offset < 0",
        f"log_offset > {offsets[-1]}",
        f"log_offset > {2**62}",
        f"timestamp > now() - interval 1 hour and retain and topic = 'line' and log_offset > {early}",
    ]
    cases: list[tuple[str, dict[str, str]]] = [(condition, {}) for condition in conditions]
    cases += [(conditions[1], {"topicFilter": "line/#"})]
    cases += [(conditions[7], {"startingOffsets": json.dumps({"log": offsets[500]})})]
    for condition, options in cases:
        pushed, unpushed = (
            sorted(load(pushing, fleet, push, **options).where(condition).collect(), key=lambda row: row.log_offset)
            for push in (True, False)
        )
        assert pushed == unpushed, (condition, options)


def test_less_of_the_log_is_read(fleet: Fleet) -> None:
    """Without Spark: what the partitions span."""
    source = PenstockSource({"path": fleet.path, "pushFilters": "true"})  # type: ignore[arg-type]
    log = LogFolder(fleet.path)
    middle = log.nearest(log.end() // 2)
    cases: list[tuple[list[Filter], tuple[int, int]]] = [
        ([], (log.base(), log.end())),
        ([GreaterThanOrEqual(("log_offset",), middle)], (middle, log.end())),
        ([LessThan(("log_offset",), middle)], (log.base(), middle + 1)),
        ([EqualTo(("log_offset",), middle)], (middle, middle + 1)),
    ]
    for conditions, expected in cases:
        reader = source.reader(source.schema())
        assert list(reader.pushFilters(conditions)) == conditions
        assert reader.range_of(LogAndTier(log)) == expected


def test_spark_says_what_to_set(spark: SparkSession, fleet: Fleet) -> None:
    with pytest.raises(PySparkException, match=ENABLED.replace(".", r"\.")):
        load(spark, fleet, True).where("topic = 'x'").collect()
