"""`df.write.format("penstock")` and `writeStream`: publishes rows as messages.

Tasks check and encode rows; the records go to the driver with their commit messages, and the driver publishes once it
has all of them. So a row that is no message stops the whole batch, a task that runs twice counts once, and the store
recognizes a batch that another driver runs again by its query and epoch (publishing.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BooleanType, IntegralType, StructType

from penstock.columns import COLUMNS
from penstock.spark.connection import StoreAccess
from penstock.spark.encoding import Defaults, Encoder
from penstock.spark.errors import BadSparkOption
from penstock.spark.publishing import SparkPublisher
from penstock.spark.store_options import CONNECTION_OPTIONS, is_address, namespace_of, store_of
from penstock.spark.workers import keep_modules
from store.records.publish_properties import COLUMN_PROPERTIES
from store.wire.base import PRODUCER

SINK_OPTIONS = ("path", "topic", "qos", "retain", "namespace", *CONNECTION_OPTIONS)
OF_SPARK = ("checkpointlocation", "queryname")  # Spark gives these to every sink
TEXTS = ("topic", "payload", "key", *(each.column for each in COLUMN_PROPERTIES))
WRITABLE = (*TEXTS, "qos", "retain", "user_properties", "headers")
QUERY_ID = "sql.streaming.queryId"  # a local property of a query's tasks


@dataclass(frozen=True)
class Target:
    """The store that rows go to, and defaults for them. Can be pickled."""

    store: StoreAccess
    defaults: Defaults


@dataclass
class Encoded(WriterCommitMessage):
    """The result of a task: records, and the query's id."""

    records: bytes
    query_id: str


def target_of(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Target:
    """Raises BadSparkOption."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = given.keys() - {name.lower() for name in SINK_OPTIONS} - set(OF_SPARK)
    if unknown:
        raise BadSparkOption(f"unknown option '{min(unknown)}' of a sink; there are {', '.join(SINK_OPTIONS)}")
    if overwrite:
        raise BadSparkOption(
            'messages cannot be overwritten; use mode("append"), or outputMode("append") or ("update")'
        )
    path = given.get("path", "")
    if not is_address(path):
        raise BadSparkOption(
            f"'{path}': rows go to a store that runs; name it, such as save(\"penstock://localhost:7700\")"
        )
    topic = given.get("topic")
    _check_schema(schema, topic)
    qos, retain = _qos(given.get("qos", "1")), _flag(given.get("retain", "false"))
    names = namespace_of(given)
    store = store_of(path, given)
    if names is None:
        return Target(store, Defaults(topic, qos, retain))
    return Target(replace(store, namespace=names.name), Defaults(topic, qos, retain, names))


def _check_schema(schema: StructType, topic: str | None) -> None:
    for field in schema.fields:
        name, type_ = field.name, field.dataType
        if name not in WRITABLE:
            raise BadSparkOption(
                f"column '{name}' is none of a message's: {', '.join(WRITABLE)}; select those, or rename it"
            )
        kind = type_.simpleString()
        if name in TEXTS:
            fits = kind == "string" or (kind == "binary" and pa.types.is_binary(COLUMNS[name].type))
        elif name == "qos":
            fits = isinstance(type_, IntegralType)
        elif name == "retain":
            fits = isinstance(type_, BooleanType)
        else:
            fits = kind in ("array<struct<key:string,value:string>>", "map<string,string>")
        if not fits:
            raise BadSparkOption(f"column '{name}' is a {kind}; see the table of what a sink takes in docs/spark.md")
    names = schema.fieldNames()
    if "payload" not in names:
        raise BadSparkOption("there is no column 'payload', which a message needs")
    if "topic" not in names and topic is None:
        raise BadSparkOption("there is no column 'topic'; add one, or give the option topic")
    if "headers" in names and "user_properties" in names:
        raise BadSparkOption("'headers' and 'user_properties' are the same; leave one out")


def _qos(text: str) -> int:
    if text not in ("0", "1", "2"):
        raise BadSparkOption(f"qos '{text}': use 0, 1 or 2")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadSparkOption(f"retain '{text}': use true or false")
    return text.lower() == "true"


def _encoded(target: Target, batches: Iterator[pa.RecordBatch]) -> Encoded:
    """The work of one task."""
    keep_modules()
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    encoder = Encoder(target.defaults, partition)
    records = b"".join([encoder.encode(batch) for batch in batches if batch.num_rows])
    return Encoded(records, (context.getLocalProperty(QUERY_ID) if context else None) or "")


def _together(messages: list[WriterCommitMessage | None]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    parts = [message.records for message in messages if isinstance(message, Encoded)]
    return np.frombuffer(bytearray().join(parts), np.uint8)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Encoded:
        return _encoded(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publisher = SparkPublisher(self._target.store, "")
        try:
            publisher.publish(_together(messages))
        finally:
            publisher.close("everything is stored")


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Encoded:
        return _encoded(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        query_id = next((message.query_id for message in messages if isinstance(message, Encoded)), "")
        if not query_id:
            return  # no task had a row
        publisher = SparkPublisher(self._target.store, f"{PRODUCER}spark:{query_id}")
        try:
            publisher.publish_epoch(batchId, _together(messages))
        finally:
            publisher.close("the epoch is stored")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was published."""
