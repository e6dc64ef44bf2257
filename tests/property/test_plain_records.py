"""The plain-Python records of a client-only install say what the compiled ones say, of any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.records import _records, plain_records

parts = st.binary(max_size=20)
records = st.lists(st.tuples(st.sampled_from((1, 1, 1, 16)), st.integers(0, 63), *[parts] * 5), max_size=5)
Fields = tuple[int, int, bytes, bytes, bytes, bytes, bytes]


def built(batch: _records.RecordBatch | plain_records.RecordBatch, fields: list[Fields]) -> bytes:
    for type_, flags, topic, client_id, attributes, properties, payload in fields:
        batch.append(
            type_,
            payload,
            topic=topic,
            client_id=client_id,
            attributes=attributes,
            properties=properties,
            flags=flags,
        )
    return bytes(batch)


def said(module: object, data: bytes, types: bytes | None) -> str:
    try:
        return str(module.check_records(data, types))  # type: ignore[attr-defined]
    except ValueError as error:
        return str(error)


@given(records, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3), st.booleans())
def test_plain_and_compiled_records_agree(fields: list[Fields], changes: list[tuple[int, int]], in_batch: bool) -> None:
    data = built(plain_records.RecordBatch(), fields)
    compiled = _records.RecordBatch()
    assert built(compiled, fields) == data
    assert compiled.size == len(data)
    if in_batch:
        outer = _records.RecordBatch()
        outer.begin_atomic()
        built(outer, fields)
        outer.end_atomic()
        data = bytes(outer)
    changed = bytearray(data)
    for at, value in changes:
        if at < len(changed):
            changed[at] = value
    for types in (None, bytes((1, 2))):
        assert said(plain_records, bytes(changed), types) == said(_records, bytes(changed), types)
    if said(_records, data, None).isdigit():
        assert list(plain_records.walk(data)) == list(_records.walk(data))


def test_parts_that_are_too_long() -> None:
    for module in (_records, plain_records):
        with pytest.raises(ValueError, match="limited to 65,535 bytes each"):
            module.RecordBatch().append(1, b"", topic=bytes(65_536))


@given(st.lists(st.binary(max_size=30), max_size=5), st.binary(min_size=1, max_size=9), st.integers(0, 255))
def test_plain_and_compiled_records_make_the_same_messages(payloads: list[bytes], topic: bytes, flags: int) -> None:
    made = plain_records.plain_messages(payloads, topic, flags)
    assert _records.plain_messages(payloads, topic, flags) == made
    fields: list[Fields] = [(1, flags, topic, b"", b"", b"", payload) for payload in payloads]
    assert built(_records.RecordBatch(), fields) == made
    assert _records.plain_messages_of(payloads, [(topic, flags)] * len(payloads)) == made


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(min_size=1, max_size=9), st.integers(0, 255)), max_size=5))
def test_plain_and_compiled_records_make_the_same_messages_of_many_topics(
    messages: list[tuple[bytes, bytes, int]],
) -> None:
    payloads, heads = [payload for payload, *_ in messages], [(topic, flags) for _, topic, flags in messages]
    made = plain_records.plain_messages_of(payloads, heads)
    assert _records.plain_messages_of(payloads, heads) == made
    fields: list[Fields] = [(1, flags, topic, b"", b"", b"", payload) for payload, topic, flags in messages]
    assert built(_records.RecordBatch(), fields) == made
    for module in (_records, plain_records):
        with pytest.raises(ValueError):  # noqa: PT011  (each has words of its own)
            module.plain_messages_of(payloads, [*heads, (b"t", 0)])
