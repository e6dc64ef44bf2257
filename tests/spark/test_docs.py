"""docs/spark.md and the README's Spark example: the tables name what there is, the programs run."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loadtest.chaos.cluster import Cluster
from penstock.columns import COLUMNS
from penstock.spark.export import Export
from penstock.spark.options import OPTIONS
from penstock.spark.sink import WRITABLE
from penstock.spark.source import PenstockSource
from tests.spark.cold import committed
from tests.spark.fleet import Fleet
from tests.spark.test_wire import TOKEN, url_of
from tests.support.server_process import ROOT
from tests.tier.places import TablePlace

PAGE = (ROOT / "docs" / "spark.md").read_text()
README = (ROOT / "README.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", section, re.M)][
        2:
    ]


def test_the_tables_name_all_columns_and_options() -> None:
    schema = PenstockSource({"path": "x"}).schema()  # type: ignore[arg-type]
    assert [row[0] for row in table("Columns")] == list(COLUMNS) == schema.fieldNames()
    types = {"bigint": "long", "array<struct<key:string,value:string>>": "array of struct (key, value)"}
    said = [row[1] for row in table("Columns")]
    assert said == [types.get(name := field.dataType.simpleString(), name) for field in schema.fields]
    assert [row[0] for row in table("Options")] == [name for name in OPTIONS if name != "path"]
    named = [name for row in table("Publishing") for name in row[0].split(", or ")]
    assert sorted(named) == sorted(WRITABLE)


def test_the_programs_run(
    spark: SparkSession, fleet: Fleet, apart: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    example = README.split("<!-- spark: run by tests/spark/test_docs.py -->")[1].split("\n## ")[0]
    folder = tmp_path_factory.mktemp("programs")
    Export(fleet.path, folder / "exported").run(spark, print)
    committed(Path(fleet.path), TablePlace(f"{folder}/fleet", {}))
    for program in [
        *re.findall(r"```python\n(.*?)```", PAGE, re.S),
        re.findall(r"```python\n(.*?)```", example, re.S)[0],
    ]:
        program = (
            program.replace('"penstock-data"', repr(fleet.path))
            .replace('"exported"', f'"{folder}/exported"')
            .replace('"line-', f'"{folder}/line-')
        )
        for call in ("load", "start"):
            stated = f'.{call}("penstock://localhost:7700")'
            program = program.replace(stated, f'.option("token", "{TOKEN}").{call}("{url_of(apart)}")')
        stated = 'table(spark, "penstock://localhost:7700"'
        program = program.replace(stated, f'table(spark, {fleet.path!r}, tier="{folder}/fleet"')
        stated = 'explain("penstock://localhost:7700"'
        program = program.replace(stated, f'explain("{url_of(apart)}", token="{TOKEN}"')
        exec(program, {"spark": spark})
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
    rows = spark.read.parquet(f"{folder}/line-parquet").where("client_id = 'fleet'").collect()
    assert len(rows) == sum(message.topic.split("/")[0] == "line" for message in fleet.published)
