"""The common part of these programs: their arguments, a Spark session, and running a stream."""

import argparse
import os
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark import register

COLUMNS = "topic, payload, timestamp, log_offset, content_type"  # the columns that these programs use, of fourteen
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def arguments(about: str | None, works: Sequence[str] = ()) -> argparse.ArgumentParser:
    """A parser with the arguments of every program; each adds its own. `works`: what the program can do, if several
    things.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if works:
        parser.add_argument("work", choices=works)
    parser.add_argument("data", help="the data folder of a store, whether or not it runs")
    parser.add_argument("--master", default="local[2]", help="Spark's master (%(default)s)")
    return parser


def session(master: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers use the same Python
    builder = SparkSession.builder.master(master).config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
    builder = builder.config("spark.sql.shuffle.partitions", 4)  # 200 by default, each with a state store of its own
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    spark = builder.getOrCreate()
    register(spark)
    return spark


def messages(spark: SparkSession, data: str, topic_filter: str) -> DataFrame:
    """The stored messages that match."""
    return spark.read.format("penstock").option("topicFilter", topic_filter).option("columns", COLUMNS).load(data)


def message_stream(spark: SparkSession, data: str, topic_filter: str, per_batch: int = 500_000) -> DataFrame:
    """The same messages as a stream, from the oldest on."""
    reader = spark.readStream.format("penstock").option("topicFilter", topic_filter).option("columns", COLUMNS)
    return reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", per_batch).load(data)


def run(writer: DataStreamWriter, follow: bool) -> StreamingQuery:
    """Process the messages that are there, or go on until the program is stopped."""
    query = (writer.trigger(processingTime="1 second") if follow else writer.trigger(availableNow=True)).start()
    query.awaitTermination()
    return query
