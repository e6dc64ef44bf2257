"""A row names the span that published its message: docs/tracing.md has the expression."""

import re
from pathlib import Path

from pyspark.sql import SparkSession

from gateway.mqtt.properties import Properties, encode_properties
from lightqueue.message_store import MessageStore
from store.records._records import RecordBatch
from store.records.records import RecordType
from tests.support.server_process import ROOT
from tests.support.stores import small

PAGE = (ROOT / "docs" / "tracing.md").read_text()
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_expression_of_the_page_finds_the_traceparent(spark: SparkSession, tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path / "data"))
    batch = RecordBatch()
    for topic, pairs in (("a", (("unit", "C"), ("traceparent", TRACEPARENT))), ("b", (("unit", "C"),)), ("c", ())):
        properties = encode_properties(Properties(user_properties=pairs))
        batch.append(RecordType.MESSAGE, b"x", topic=topic.encode(), properties=properties)
    store.append(batch)
    store.close()
    (expression,) = re.findall(r'^frame = frame\.selectExpr\("\*", "(.*)"\)$', PAGE, re.MULTILINE)
    frame = spark.read.format("penstock").load(str(tmp_path / "data"))
    rows = frame.selectExpr("*", expression).collect()
    assert {row.topic: row.traceparent for row in rows} == {"a": TRACEPARENT, "b": None, "c": None}
