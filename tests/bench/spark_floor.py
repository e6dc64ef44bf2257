"""The time that Spark itself takes for rows of a Python source: this one gives a ready RecordBatch, over and over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.workers import keep_modules

ROWS = 8000  # of a RecordBatch, about as many as a piece of the log has
TYPES = {
    "topic": ("string", pa.string()),
    "payload": ("binary", pa.binary()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "log_offset": ("long", pa.int64()),
}


@cache
def ready(columns: str) -> pa.RecordBatch:
    """Values like those of the benchmark's log."""
    values = {
        "topic": [f"line/{i % 1000 // 10}/temp{i % 10}" for i in range(ROWS)],
        "payload": [os.urandom(200) for _ in range(ROWS)],
        "timestamp": list(range(ROWS)),
        "log_offset": list(range(ROWS)),
    }
    names = columns.split(",")
    schema = pa.schema([(name, TYPES[name][1]) for name in names])
    return pa.RecordBatch.from_arrays([pa.array(values[name], TYPES[name][1]) for name in names], schema=schema)


class ReadyBatches(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ready-batches"

    def schema(self) -> str:
        return ", ".join(f"{name} {TYPES[name][0]}" for name in self.options["columns"].split(","))

    def reader(self, schema: StructType) -> ReadyReader:
        rows, partitions = int(self.options["rows"]), int(self.options["partitions"])
        return ReadyReader(self.options["columns"], rows // partitions, partitions)


class ReadyReader(DataSourceReader):
    def __init__(self, columns: str, rows: int, partitions: int) -> None:
        self._columns = columns
        self._rows = rows  # of each
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        keep_modules()
        return [InputPartition(i) for i in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        keep_modules()
        batch = ready(self._columns)
        for at in range(0, self._rows, ROWS):
            yield batch.slice(0, min(ROWS, self._rows - at))
