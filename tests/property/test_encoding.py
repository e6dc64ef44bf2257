"""A Spark sink makes of rows the bytes that a record by record encoder makes, and how an epoch is cut depends on its
messages alone."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.mqtt.codec_primitives import encode_varint
from gateway.mqtt.properties import PacketContext, decode_properties
from penstock.columns import PAIRS
from penstock.spark.encoding import Defaults, Encoder
from penstock.spark.publishing import Most, _found, _in_order, _parts
from store.records._columns import scatter
from store.records._records import RecordBatch, changes_in, walk
from store.records.publish_properties import COLUMN_PROPERTIES
from store.records.records import Attribute, RecordFlag, decode_attributes

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
        for each in COLUMN_PROPERTIES:
            assert getattr(said, each.name) == row[each.column]


@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60), st.booleans()), max_size=60),
    most=st.builds(Most, st.integers(200, 4000), st.integers(20, 100)),
    seed=st.integers(0, 1000),
)
def test_an_epoch_is_cut_alike_in_any_order(rows: list[tuple[int, int, bool]], most: Most, seed: int) -> None:
    def cut(rows: list[tuple[int, int, bool]]) -> list[bytes]:
        records = RecordBatch()
        for topic, size, is_retained in rows:
            flags = RecordFlag.RETAIN if is_retained else 0
            records.append(1, bytes(size), topic=b"%d" % topic * 20 * topic + b"t", flags=flags)
        found = _found(np.frombuffer(bytes(records), np.uint8))
        return [part.tobytes() for part in _parts(found, most)]

    parts = cut(rows)
    again = rows[:]
    random.Random(seed).shuffle(again)
    assert [sorted(walk(part)) for part in cut(again)] == [sorted(walk(part)) for part in parts]
    assert all(len(part) <= most.size_bytes and changes_in(part) <= most.changes for part in parts)
    stored = [record for part in parts for record in walk(part)]
    assert sorted((len(record[5]) // 20, len(record[9]), bool(record[4])) for record in stored) == sorted(rows)


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.booleans()), max_size=40),
    most=st.builds(Most, st.integers(200, 2000), st.integers(20, 100)),
)
def test_a_batch_is_cut_in_its_order(rows: list[tuple[int, int, bool]], most: Most) -> None:
    records = RecordBatch()
    for topic, size, is_retained in rows:
        records.append(1, bytes(size), topic=b"t" * (1 + topic * 40), flags=RecordFlag.RETAIN if is_retained else 0)
    parts = [part.tobytes() for part in _in_order(_found(np.frombuffer(bytes(records), np.uint8)), most)]
    assert b"".join(parts) == bytes(records)
    assert all(0 < len(part) <= most.size_bytes and changes_in(part) <= most.changes for part in parts)


def test_parts_that_do_not_fit_are_refused() -> None:
    data, to = np.zeros(16, np.uint8), np.zeros(8, np.uint8)
    for start, length, at in ((-1, 2, 0), (15, 2, 0), (0, 4, 6), (0, 1, -1)):
        place, size = np.full(1, start, np.int64), np.full(1, length, np.int32)
        with pytest.raises(ValueError, match="lies outside of the data"):
            scatter(data, place, size, to, np.full(1, at, np.int64))
