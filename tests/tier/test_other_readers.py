"""The table alone, as docs/tier.md says that other programs read it: each row as the log had the message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from duckdb_extensions import import_extension

from penstock.tier.table import TABLE_SCHEMA
from tests.support.server_process import ROOT
from tests.tier.logs import plain_rows
from tests.tier.places import TablePlace
from tests.tier.test_compaction import compact, hourly, opened, write

Row = dict[str, Any]
PAGE = (ROOT / "docs" / "tier.md").read_text()
DAY = "2026-11-25"
SECRET = (
    "CREATE SECRET (TYPE s3, KEY_ID '{aws_access_key_id}', SECRET '{aws_secret_access_key}', REGION '{aws_region}', "
)
SECRET += "ENDPOINT '{host}', USE_SSL false, URL_STYLE 'path')"


@pytest.fixture
def written(place: TablePlace) -> list[Row]:
    """The rows of a table of three days that was merged in part, by a plain reading of the log."""
    table, log = opened(place), hourly(17, 30)
    write(table, log[:20])
    compact(place, table)
    write(table, log[20:])
    return list(plain_rows(log))


def programs(tool: str) -> list[str]:
    """Those of the page that import it."""
    return [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.S) if re.search(rf"import.*\b{tool}\b", each)]


def ran(program: str, place: TablePlace, **names: Any) -> dict[str, Any]:
    """Run a program of the page on a place. Returns its names."""
    assert "s3://bucket/fleet" in program
    known: dict[str, Any] = names
    exec(program.replace("s3://bucket/fleet", place.url), known)
    return known


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["log_offset"]))


def by_topic(rows: list[Row]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        if str(row["day"]) == DAY:
            found[row["topic"]] = found.get(row["topic"], 0) + 1
    return found


@pytest.fixture
def connection(place: TablePlace) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with its extensions, and with the key of the place's storage."""
    for extension in ("delta", "httpfs"):
        import_extension(extension)
    with duckdb.connect() as connection:
        connection.execute("LOAD delta")
        connection.execute("LOAD httpfs")
        connection.execute("SET TimeZone = 'UTC'")
        if place.options:
            host = place.options["aws_endpoint"].removeprefix("http://")
            connection.execute(SECRET.format(host=host, **place.options))
        yield connection


def test_duckdb_by_its_delta_extension(
    place: TablePlace, written: list[Row], connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = connection.execute(f"SELECT * FROM delta_scan('{place.url}')").to_arrow_table()
    found = in_order(rows.select(TABLE_SCHEMA.names).to_pylist())
    for row in found:
        row["timestamp"] = row["timestamp"].astimezone(UTC)
    assert found == written
    monkeypatch.setattr(duckdb, "sql", connection.sql)
    (program,) = (each for each in programs("duckdb") if "delta_scan" in each)
    counts = ran(program, place)["counts"]
    assert dict(counts.fetchall()) == by_topic(written)


def test_duckdb_without_extensions(place: TablePlace, written: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    with_options(place, monkeypatch)
    (program,) = (each for each in programs("duckdb") if "delta_scan" not in each)
    assert len(program.splitlines()) <= 5
    assert dict(ran(program, place)["counts"].fetchall()) == by_topic(written)


def test_polars(place: TablePlace, written: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    with_options(place, monkeypatch)
    (program,) = programs("polars")
    counts = ran(program, place)["counts"]
    assert dict(counts.iter_rows()) == by_topic(written)
    frame = polars.scan_delta(place.url, storage_options=storage_options(place)).collect().sort("log_offset")
    assert frame.select(TABLE_SCHEMA.names).to_dicts() == written


def test_deltalake_and_pyarrow(place: TablePlace, written: list[Row]) -> None:
    """Also by a column that no statistics are given of: deltalake may take it for one that has no value."""
    dataset = DeltaTable(place.url, storage_options=place.options).to_pyarrow_dataset()
    wanted = (pa.dataset.field("topic") == "line/7/temp") & (pa.dataset.field("day") == pa.scalar(written[0]["day"]))
    found = in_order(dataset.to_table(filter=wanted).select(TABLE_SCHEMA.names).to_pylist())
    assert found == [row for row in written if (row["topic"], row["day"]) == ("line/7/temp", written[0]["day"])]
    assert len(found) > 3


def storage_options(place: TablePlace) -> dict[str, str]:
    """Those that polars knows too: it has its own way to try again."""
    return {name: text for name, text in place.options.items() if "retr" not in name}


def with_options(place: TablePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment, as a user has them."""
    for name, text in storage_options(place).items():
        monkeypatch.setenv(name.upper() if name.startswith("aws_") else f"AWS_{name.upper()}", text)


def test_the_page_names_each(tmp_path: Path) -> None:
    assert [len(programs(tool)) for tool in ("duckdb", "polars")] == [2, 1]
