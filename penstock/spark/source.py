"""The data source that Spark knows as `penstock`, and its schema."""

from functools import cached_property

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.columns import COLUMNS
from penstock.spark.batch import BatchReader, PushingReader
from penstock.spark.errors import BadSparkOption
from penstock.spark.logs import with_tier
from penstock.spark.options import Request, parse_options
from penstock.spark.python import give_workers_python
from penstock.spark.sink import BatchWriter, StreamWriter, target_of
from penstock.spark.stream import StreamReader


class PenstockSource(DataSource):
    """Messages of a store, as rows. Its options are in docs/spark.md."""

    def __init__(self, options: CaseInsensitiveDict) -> None:
        super().__init__(options)

    @cached_property
    def request(self) -> Request:
        """The parsed options of a reader. Raises BadSparkOption; a sink has other options."""
        return parse_options(self.options)

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return StructType([_field(name) for name in self.request.columns])

    def reader(self, schema: StructType) -> BatchReader:
        kind = PushingReader if self.request.push_filters else BatchReader
        return kind(with_tier(self.request), _arrow_schema(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(with_tier(self.request), _arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(target_of(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(target_of(self.options, schema, overwrite))


def register(spark: SparkSession) -> None:
    """Register `format("penstock")` where Spark does not find it by itself. Raises WrongPython."""
    give_workers_python()
    spark.dataSource.register(PenstockSource)


def explain(path: str, **options: str) -> str:
    """Explain how a batch with these options would be read now: by light queues or by a scan, how much, and why."""
    source = PenstockSource(CaseInsensitiveDict({"path": path, **options}))
    return str(source.reader(source.schema()).plan())


def _field(name: str) -> StructField:
    return StructField(name, from_arrow_type(COLUMNS[name].type))


def _arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects. Raises BadSparkOption unless each column exists and has its type."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise BadSparkOption(f"schema: there is no column '{field.name}'; there are {', '.join(COLUMNS)}")
        type_ = _field(field.name).dataType
        if field.dataType != type_:
            raise BadSparkOption(f"schema: column '{field.name}' is {type_.simpleString()}; cast it after load()")
    return to_arrow_schema(schema, timezone="UTC")
