"""`format("penstock")` with the option `tier`: what retention has dropped has the same rows in the table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.spark.errors import DataLost, SparkSourceError, TierUnreadable
from penstock.spark.ranges import LogRange, TierRange
from penstock.spark.selecting import Selected
from tests.spark.cold import ColdLog, Row, read_parts
from tests.tier.places import TablePlace

OPTIONS: list[dict[str, object]] = [
    {},
    {"minPartitions": 7},
    {"columns": "log_offset"},
    {"columns": "log_offset,topic,client_id", "namespace": "acme"},
    {"namespace": ""},
    {"columns": "log_offset,user_properties,correlation_data,qos"},
    {"topic": "line/7/temp"},
    {"topic": "rare"},
    {"topicFilter": "line/+/temp"},
    {"topicFilter": json.dumps(["plant/#", "$ns:acme/#", "$dead/#"])},
    {"topicFilter": "+/4", "namespace": "acme"},
    {"topic": "never"},
]


@pytest.fixture
def cold(tmp_path: Path, seed: int) -> Iterator[ColdLog]:
    """A log of some segments, of which the table has all."""
    cold = ColdLog(tmp_path, TablePlace(str(tmp_path / "fleet"), {}), seed)
    cold.publish(60)
    cold.commit()
    yield cold
    cold.close()


def test_the_rows_are_those_of_the_log(cold: ColdLog) -> None:
    expected = [cold.in_log(**options) for options in OPTIONS]
    assert len(expected[0]) > 500
    for share in (0.0, 0.5, 0.9):
        cold.drop(share)
        assert [cold.read(**options) for options in OPTIONS] == expected


def test_the_rows_are_the_same_once_files_were_merged(cold: ColdLog) -> None:
    expected = [cold.in_log(**options) for options in OPTIONS]
    cold.drop(0.7)
    cold.merge()
    assert [cold.read(**options) for options in OPTIONS] == expected


def test_places_and_times_are_exact_in_the_tier(cold: ColdLog) -> None:
    rows = cold.in_log()
    base = cold.drop(0.7)
    seam = next(number for number, row in enumerate(rows) if row["log_offset"] >= base)
    for first, last in ((0, 5), (3, seam), (seam - 3, seam + 3), (seam, len(rows) - 1), (7, len(rows) - 1)):
        ends = [json.dumps({"log": rows[number]["log_offset"]}) for number in (first, last)]
        assert cold.read(startingOffsets=ends[0], endingOffsets=ends[1]) == rows[first:last]
        since = rows[first]["timestamp"].astimezone(UTC)
        start = next(number for number, row in enumerate(rows) if row["timestamp"] >= since)
        assert cold.read(startingTimestamp=since.isoformat()) == rows[start:]
    assert cold.read(endingTimestamp=rows[0]["timestamp"].astimezone(UTC).isoformat()) == []
    assert cold.read(startingTimestamp="2020-01-01T00:00:00Z") == rows


def test_the_plan_says_what_is_read_where(cold: ColdLog) -> None:
    base = cold.drop(0.5)
    assert f"read {base - 64:,} bytes in the tier, scan" in str(cold.batch().plan())
    parts = cold.batch(minPartitions=20).partitions()
    assert sum(isinstance(part, TierRange) for part in parts) > 1
    assert sum(isinstance(part, LogRange) for part in parts) > 3
    assert "in the tier" not in str(cold.batch(startingOffsets=json.dumps({"log": base})).plan())


# --- retention, merging and vacuum meanwhile


@pytest.mark.parametrize("options", [{}, {"columns": "log_offset,payload"}, {"topic": "rare"}])
@pytest.mark.parametrize("lenient", [False, True])
def test_ranges_dropped_after_the_plan_are_read_in_the_tier(
    cold: ColdLog, options: dict[str, object], lenient: bool
) -> None:
    expected = cold.in_log(**options)
    cold.drop(0.3)
    reader = cold.batch(**options, failOnDataLoss=not lenient)
    parts = reader.partitions()
    assert {type(part) for part in parts} > {TierRange}
    if "topic" in options:
        assert Selected in {type(part) for part in parts}
    cold.drop(0.5)
    assert read_parts(reader, parts) == expected


def test_ranges_dropped_while_they_are_read_are_read_in_the_tier(cold: ColdLog) -> None:
    expected = cold.in_log()
    reader = cold.batch(minPartitions=1)
    (part,) = reader.partitions()
    batches = reader.read(part)
    found = [next(batches)]
    cold.drop(0.8)
    found += batches
    rows = sorted((row for batch in found for row in batch.to_pylist()), key=lambda row: row["log_offset"])
    assert rows == expected


@pytest.mark.parametrize("options", [{}, {"topicFilter": "line/+/temp"}, {"columns": "log_offset"}])
def test_files_that_are_merged_and_deleted_before_or_amid_a_read(cold: ColdLog, options: dict[str, object]) -> None:
    """A row group at a time, so the task is in the middle of a file, or of a range that is sorted as one."""
    expected = cold.in_log(**options)
    cold.drop(0.9)
    merged = False
    for _ in range(2):  # files as they were committed, then merged ones
        reader = cold.batch(**options)
        begun = []
        for number, part in enumerate(reader.partitions()):
            batches = reader._rows(part)
            begun.append(([next(batches)] if number % 2 else [], batches))
        if merged:
            cold.publish(60)
            cold.commit()
        cold.merge()
        merged = True
        rows = [row for first, rest in begun for batch in (*first, *rest) for row in batch.to_pylist()]
        assert sorted(r["log_offset"] for r in rows) == [row["log_offset"] for row in expected]


# --- streams


def run(stream_of: ColdLog, most: int | None, options: dict[str, object]) -> Iterator[list[Row]]:
    """The micro-batches of a query that is restarted for each of them, until nothing is left."""
    offset = None
    limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
    while True:
        stream = stream_of.stream(**options)
        start = stream.initialOffset() if offset is None else offset
        stream.prepareForTriggerAvailableNow()
        end = stream.latestOffset(start, limit)
        if end == start:
            return
        parts = stream.partitions(start, end)
        rows = read_parts(stream, parts)
        assert read_parts(stream, stream.partitions(start, end)) == rows
        yield rows
        offset = json.loads(json.dumps(end))


@pytest.mark.parametrize("options", [{}, {"topicFilter": "line/+/temp"}])
def test_a_stream_goes_over_the_seam_in_exact_batches(cold: ColdLog, options: dict[str, object]) -> None:
    expected = cold.in_log(**options)
    cold.drop(0.6)
    batches = list(run(cold, 37, options))
    assert {len(batch) for batch in batches[:-1]} <= {37}
    assert [row for batch in batches for row in batch] == expected
    cold.merge()
    assert [row for batch in run(cold, 100, options) for row in batch] == expected
    assert [row for batch in run(cold, None, options) for row in batch] == expected


def test_a_stream_while_the_log_is_cut_and_files_are_merged(cold: ColdLog) -> None:
    expected = cold.in_log()
    found: list[Row] = []
    for number, batch in enumerate(run(cold, 50, {})):
        found += batch
        if number % 4 == 1:
            cold.drop(0.2)
        if number == 5:
            cold.merge()
    assert found == expected


# --- what cannot be read


def test_a_range_that_neither_has(cold: ColdLog) -> None:
    cold.publish(60)
    expected = cold.in_log()
    base = cold.drop(0.9)
    assert cold.table is not None
    with pytest.raises(DataLost, match=rf"log_offset {cold.table.end} to {base} is neither .* set failOnDataLoss"):
        cold.read()
    assert cold.read(failOnDataLoss=False) == [
        row for row in expected if row["log_offset"] < cold.table.end or row["log_offset"] >= base
    ]


def one_line(error: pytest.ExceptionInfo[SparkSourceError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_wrong_url_no_rights_and_other_tables(cold: ColdLog, tmp_path: Path, seed: int) -> None:
    everything = cold.in_log()
    other = ColdLog(tmp_path / "other", TablePlace(str(tmp_path / "of-another"), {}), seed + 1)
    other.publish(20)
    other.commit()
    other.close()
    newer = tmp_path / "newer"
    newer.mkdir()
    assert cold.read(tier=tmp_path / "nowhere") == everything, "the log has all: the tier is not asked"
    base = cold.drop(0.5)
    for url, says in (
        (tmp_path / "nowhere", "nowhere: is not there .*the option tier is what `tier.url` of the store says"),
        (newer, "newer: is not there .there is no table yet"),
        ("ftp://host/x", "has the scheme ftp"),
        (tmp_path / "of-another", "is of the log .* and the log to be read is .*give the option tier"),
        ("", "tier: is empty"),
    ):
        with pytest.raises(SparkSourceError, match=says) as error:
            cold.read(tier=url)
        one_line(error)
        if url:
            from_there = json.dumps({"log": base})
            rows = cold.read(tier=url, startingOffsets=from_there)
            assert rows == [row for row in everything if row["log_offset"] >= base], "what the log has is read"
    assert not (tmp_path / "nowhere").exists()


def test_a_table_of_a_later_version(cold: ColdLog) -> None:
    cold.drop(0.5)
    table = DeltaTable(cold.place.url)
    table.alter.set_table_properties({"penstock.format": "2"}, raise_if_not_exists=False)
    with pytest.raises(TierUnreadable, match=r"is of a later version \(format 2.*install that version"):
        cold.read()


def test_a_file_that_is_gone_is_named(cold: ColdLog) -> None:
    cold.drop(0.5)
    reader = cold.batch()
    parts = reader.partitions()
    assert isinstance(parts[0], TierRange)
    path = parts[0].files[0][0].path
    (Path(cold.place.url) / path).unlink()
    with pytest.raises(TierUnreadable, match=f"{path}.*is not there") as error:
        read_parts(reader, parts)
    one_line(error)


def test_without_the_extra_it_is_said_what_to_install() -> None:
    """The rest of penstock.spark does without."""
    program = """if True:
        import sys
        sys.modules["deltalake"] = sys.modules["obstore"] = None
        from penstock.spark.options import parse_options
        import penstock.spark
        parse_options({"path": "/x"})
        parse_options({"path": "/x", "tier": "/y"})
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "tier: needs `pip install penstock[spark,tier]`" in done.stderr.splitlines()[-1]
