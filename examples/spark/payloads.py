"""Payloads as columns: JSON, or CBOR where the message's content type says so."""

import json
import sys
from collections.abc import Iterator

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf
from pyspark.sql.types import StringType

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers may not have this file

CBOR = "application/cbor"

TELEMETRY = "time long, temperature double, vibration double, pressure double"
POSITION = "time long, latitude double, longitude double, speed_kmh double"


@pandas_udf(StringType())  # type: ignore[call-overload]
def cbor_as_json(payloads: Iterator[pd.Series]) -> Iterator[pd.Series]:
    """JSON of CBOR payloads; None for a payload that is no CBOR."""
    import cbor2

    def text(payload: bytes | None) -> str | None:
        if payload is None:
            return None
        try:
            return json.dumps(cbor2.loads(payload))
        except (cbor2.CBORDecodeError, TypeError, ValueError):
            return None

    for some in payloads:
        yield some.map(text)


def decoded(messages: DataFrame, fields: str) -> DataFrame:
    """`messages` with a column for each field (null if a payload does not have it), and `at`, the device's time."""
    is_cbor = F.coalesce(F.col("content_type") == CBOR, F.lit(False))
    cbor = cbor_as_json(F.when(is_cbor, F.col("payload")))
    text = F.when(is_cbor, cbor).otherwise(F.col("payload").cast("string"))
    return messages.withColumn("fields", F.from_json(text, fields)).selectExpr(
        "topic", "timestamp", "log_offset", "fields.*", "timestamp_millis(fields.time) as at"
    )


def device(topic: str = "topic") -> Column:
    """`machine/7` of the topic `machine/7/telemetry`."""
    return F.substring_index(topic, "/", 2)
