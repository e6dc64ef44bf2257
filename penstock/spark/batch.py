"""`spark.read.format("penstock")`."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.spark.folder import LogFolder
from penstock.spark.options import At, Request
from penstock.spark.reading import LogRange, locate, plan, rows


class BatchReader(DataSourceReader):
    """Reads what is in the log when the query is planned."""

    def __init__(self, request: Request, schema: pa.Schema) -> None:
        self.request = request
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        request = self.request
        log = LogFolder(request.path)
        start = locate(log, request.starting or At(), fail_on_data_loss=request.fail_on_data_loss)
        end = locate(log, request.ending or At(latest=True), fail_on_data_loss=request.fail_on_data_loss)
        return list(plan(log, start, end, request))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, Spark makes up a partition.
        return rows(self.request, self.schema, partition) if isinstance(partition, LogRange) else iter(())
