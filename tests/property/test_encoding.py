"""What a Spark sink makes of rows is what a record by record encoder makes, and how an epoch is cut depends on its
messages alone."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.codec_primitives import encode_varint
from gateway.properties import PacketContext, decode_properties
from penstock.spark.columns import PAIRS
from penstock.spark.encoding import Defaults, Encoder
from penstock.spark.publishing import _by_topic, _found, _in_order
from store._columns import scatter
from store._records import RecordBatch, walk
from store.records import Attribute, RecordFlag, decode_attributes

pytestmark = pytest.mark.property

names = st.text(st.characters(codec="utf-8", exclude_characters="\0+#$"), min_size=1, max_size=12)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
TYPES = {
    "topic": (pa.string(), names),
    "payload": (pa.binary(), st.binary(max_size=40)),
    "qos": (pa.int32(), st.none() | st.integers(0, 2)),
    "retain": (pa.bool_(), st.none() | st.booleans()),
    "key": (pa.string(), st.none() | texts.filter(bool)),
    "user_properties": (PAIRS, st.none() | st.lists(st.fixed_dictionaries({"key": texts, "value": texts}), max_size=3)),
    "content_type": (pa.string(), st.none() | texts),
    "response_topic": (pa.string(), st.none() | names),
    "correlation_data": (pa.binary(), st.none() | st.binary(max_size=12)),
}
rows = st.lists(st.fixed_dictionaries({name: values for name, (_, values) in TYPES.items()}), max_size=8)


def batch_of(found: list[dict[str, Any]]) -> pa.RecordBatch:
    schema = pa.schema([(name, type_) for name, (type_, _) in TYPES.items()])
    return pa.RecordBatch.from_pylist(found, schema=schema)


@settings(deadline=None)  # the first one loads libraries
@given(found=rows, before=st.integers(0, 3))
def test_a_record_says_what_its_row_does(found: list[dict[str, Any]], before: int) -> None:
    """Also of rows that stand in the middle of larger columns."""
    whole = batch_of([*found[:1] * before, *found])
    data = Encoder(Defaults(qos=1), 0).encode(whole.slice(before if found else 0))
    records = list(walk(data))
    assert len(records) == len(found)
    for record, row in zip(records, found, strict=True):
        _, _, _, _, flags, topic, client_id, attributes, properties, payload = record
        assert (topic.decode(), payload, client_id) == (row["topic"], row["payload"], b"")
        assert flags & RecordFlag.QOS_MASK == (1 if row["qos"] is None else row["qos"])
        assert bool(flags & RecordFlag.RETAIN) == bool(row["retain"])
        key = decode_attributes(attributes).get(Attribute.KEY)
        assert (None if key is None else key.decode()) == row["key"]
        said, _ = decode_properties(encode_varint(len(properties)) + properties, 0, PacketContext.PUBLISH)
        assert list(said.user_properties) == [(pair["key"], pair["value"]) for pair in row["user_properties"] or []]
        for name in ("content_type", "response_topic", "correlation_data"):
            assert getattr(said, name) == row[name]


@given(
    topics=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), max_size=60),
    limit_bytes=st.integers(160, 2000),
    seed=st.integers(0, 1000),
)
def test_an_epoch_is_cut_alike_in_any_order(topics: list[tuple[int, int]], limit_bytes: int, seed: int) -> None:
    def cut(rows: list[tuple[int, int]]) -> list[bytes]:
        records = RecordBatch()
        for topic, size in rows:
            records.append(1, bytes(size), topic=b"t%d" % topic)
        return [part.tobytes() for part in _by_topic(_found(np.frombuffer(bytes(records), np.uint8)), limit_bytes)]

    parts = cut(topics)
    again = topics[:]
    random.Random(seed).shuffle(again)
    assert [sorted(walk(part)) for part in cut(again)] == [sorted(walk(part)) for part in parts]
    assert all(len(part) <= limit_bytes for part in parts)
    stored = [record for part in parts for record in walk(part)]
    assert sorted((int(record[5][1:]), len(record[9])) for record in stored) == sorted(topics)


@given(sizes=st.lists(st.integers(0, 60), max_size=40), limit_bytes=st.integers(160, 2000))
def test_a_batch_is_cut_in_its_order(sizes: list[int], limit_bytes: int) -> None:
    records = RecordBatch()
    for size in sizes:
        records.append(1, bytes(size), topic=b"t")
    parts = list(_in_order(_found(np.frombuffer(bytes(records), np.uint8)), limit_bytes))
    assert b"".join(part.tobytes() for part in parts) == bytes(records)
    assert all(0 < len(part) <= limit_bytes for part in parts)


def test_parts_that_do_not_fit_are_refused() -> None:
    data, to = np.zeros(16, np.uint8), np.zeros(8, np.uint8)
    for start, length, at in ((-1, 2, 0), (15, 2, 0), (0, 4, 6), (0, 1, -1)):
        place, size = np.full(1, start, np.int64), np.full(1, length, np.int32)
        with pytest.raises(ValueError, match="lies outside of the data"):
            scatter(data, place, size, to, np.full(1, at, np.int64))
