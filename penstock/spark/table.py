"""All history as one DataFrame: the tier's table by Spark's own Parquet reader, and after it what only the log has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from penstock.columns import COLUMNS
from penstock.spark.batch import index_for
from penstock.spark.errors import BadSparkOption
from penstock.spark.folder import LogFolder
from penstock.spark.log_and_tier import LogAndTier
from penstock.spark.logs import opened, with_tier
from penstock.spark.options import AS_STORE_SAYS, LOG_POSITION, parse_options
from penstock.spark.store_options import is_address
from penstock.spark.tier_rows import having_properties
from penstock.tier.rows import plain_client_id, plain_topics
from store.records.publish_properties import COLUMN_PROPERTIES
from store.records.records import RecordFlag

_OF_FILES: Final = ("topic", "log_offset", "timestamp", "queue_offset", "payload", "key", "client_id")
_OF_PROPERTIES: Final = ("user_properties", *(each.column for each in COLUMN_PROPERTIES))
_TYPES: Final = {
    "day": pa.date32(),
    "namespace": pa.string(),
    **{name: COLUMNS[name].type for name in (*_OF_FILES, "qos", "retain", *_OF_PROPERTIES)},
}
"""The columns of table(), in their order."""
_FILES_TYPES: Final = {
    "day": pa.date32(),
    "namespace": pa.string(),
    "flags": pa.int16(),
    "properties": pa.binary(),
    **{name: COLUMNS[name].type for name in _OF_FILES},
}
_MADE_OF: Final = {"day": ("timestamp",), "namespace": ("topic",), "client_id": ("topic", "client_id")}
"""Columns that are made of others of the log."""
_US_PER_DAY: Final = 86_400_000_000


def table(spark: SparkSession, url: str, *, tier: str | None = None, columns: str = "", **options: str) -> DataFrame:
    """The messages that tier and log have now; a query sees no newer ones.

    `url`: as for load(). `tier`: where the table is; None: as the store says, which a data folder cannot. Without a
    tier it is the log alone. `columns`: names, separated by commas; empty: all, and then the log's part makes all of
    them for each query. `options`: those of format("penstock") that say how to connect. Raises SparkSourceError.
    """
    types = _chosen(columns)
    made_of = dict.fromkeys(name for column in types for name in _MADE_OF.get(column, (column,)))
    given = {"path": url, "columns": ",".join(made_of), **options}
    if tier is None and is_address(url):
        tier = AS_STORE_SAYS
    request = with_tier(parse_options(given if tier is None else given | {"tier": tier}))
    stored: DataFrame | None = None
    with ExitStack() as opening:
        log = opening.enter_context(opened(request))
        if isinstance(log, LogFolder):
            index_for(log, request, opening)  # it knows of a record near the log's end
        if request.tier is None:
            seam, end = log.base(), log.end()
        else:
            found = LogAndTier(log, request).tier
            listing = found.look()
            found.check(listing.first, listing.end)
            seam, end = listing.end, log.end()
            given["tier"] = request.tier
            stored = _stored(spark, found.urls(listing)).select(*types)
    if stored is not None and end <= seam:
        return stored
    places = (json.dumps({LOG_POSITION: place}) for place in (seam, end))
    given |= zip(("startingOffsets", "endingOffsets"), places, strict=True)
    newest = spark.read.format("penstock").options(**given).load()
    newest = newest.mapInArrow(partial(_as_in_table, list(types)), _schema(types))
    return newest if stored is None else stored.union(newest)


def _chosen(columns: str) -> dict[str, pa.DataType]:
    """Columns and their types. Raises BadSparkOption."""
    names = [name.strip() for name in columns.split(",")] if columns else list(_TYPES)
    for name in names:
        if name not in _TYPES:
            raise BadSparkOption(f"columns '{columns}': there is no '{name}'; there are {', '.join(_TYPES)}")
    if len(set(names)) < len(names):
        raise BadSparkOption(f"columns '{columns}': each one once")
    return {name: _TYPES[name] for name in names}


def _stored(spark: SparkSession, urls: list[str]) -> DataFrame:
    """The rows of the table's files."""
    if not urls:
        return spark.createDataFrame([], _schema(_TYPES))
    root = urls[0].rpartition("/day=")[0]
    files = spark.read.schema(_schema(_FILES_TYPES)).option("basePath", root).parquet(*urls)
    flags = F.col("flags")
    made: dict[str, Column] = {
        "qos": flags.bitwiseAND(int(RecordFlag.QOS_MASK)).cast("int"),
        "retain": flags.bitwiseAND(int(RecordFlag.RETAIN)) != 0,
        **{name: _decoded(name)(F.col("properties")) for name in _OF_PROPERTIES},
    }
    return files.select(*(made[name].alias(name) if name in made else F.col(name) for name in _TYPES))


def _decoded(name: str) -> Callable[[Column], Column]:
    """A column that is in the raw properties. Spark decodes it only for queries that use it."""

    def of(properties: pa.Array) -> pa.Array:
        return having_properties(properties).column(name)

    # PySpark's stubs want the kind of function too, which it then warns of.
    decode: Callable[[Column], Column] = arrow_udf(of, from_arrow_type(COLUMNS[name].type))  # type: ignore[call-overload]
    return decode


def _as_in_table(names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows with names of the log, as the table has them: these columns."""
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if "topic" in columns:
            topics = columns["topic"].dictionary_encode()
            of_topics = plain_topics([topic.encode() for topic in topics.dictionary.to_pylist()])
            spaces, plain = (pa.array(each, pa.string()).take(topics.indices) for each in of_topics)
            if "client_id" in columns:
                clients = zip(spaces.to_pylist(), columns["client_id"].to_pylist(), strict=True)
                columns["client_id"] = pa.array([plain_client_id(*each) for each in clients], pa.string())
            columns |= {"namespace": spaces, "topic": plain}
        if "day" in names:
            days = columns["timestamp"].view(pa.int64()).to_numpy() // _US_PER_DAY
            columns["day"] = pa.array(days.astype(np.int32)).view(pa.date32())
        yield pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)


def _schema(types: dict[str, pa.DataType]) -> StructType:
    return StructType([StructField(name, from_arrow_type(type_)) for name, type_ in types.items()])
