"""The part of store.records._records that a client needs, in plain Python, for a machine without a C compiler."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<IIQQBBHHHII")
_TYPE_MESSAGE, _TYPE_BATCH = 1, 2
_ZEROS = bytes(8)
_MOST_PART_BYTES = 65_535

Readable = bytes | bytearray | memoryview
RecordTuple = tuple[int, int, int, int, int, bytes, bytes, bytes, bytes, bytes]


class RecordBatch:
    """Records in log format; the log fills in log_offset, timestamp and checksum."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)

    def append(
        self,
        type: int,
        payload: bytes,
        *,
        topic: bytes = b"",
        client_id: bytes = b"",
        attributes: bytes = b"",
        properties: bytes = b"",
        flags: int = 0,
    ) -> None:
        """Add one record; raises ValueError if topic, client id or attributes have more than 65,535 bytes."""
        if max(len(topic), len(client_id), len(attributes)) > _MOST_PART_BYTES:
            raise ValueError("topic, client_id and attributes are limited to 65,535 bytes each")
        parts = (topic, client_id, attributes, properties, payload)
        sizes = [len(part) for part in parts]
        content = _HEADER.size + sum(sizes)
        padding = _ZEROS[: -content % 8]
        length = content + len(padding)
        self._parts += (_HEADER.pack(length, 0, 0, 0, type, flags, *sizes), *parts, padding)
        self.size += length


def plain_messages(payloads: list[bytes], topic: bytes, flags: int) -> bytes:
    """Messages in log format with a topic, flags and a payload, and no other part."""
    batch = RecordBatch()
    for payload in payloads:
        batch.append(_TYPE_MESSAGE, payload, topic=topic, flags=flags)
    return bytes(batch)


def plain_messages_of(payloads: list[bytes], heads: list[tuple[bytes, int]]) -> bytes:
    """Messages in log format of many topics: for each payload its (topic, flags)."""
    batch = RecordBatch()
    for payload, (topic, flags) in zip(payloads, heads, strict=True):
        batch.append(_TYPE_MESSAGE, payload, topic=topic, flags=flags)
    return bytes(batch)


def check_records(data: Readable, types: bytes | None = None) -> int:
    """Count the records, batches opened. Raises ValueError if the bytes are not whole records of these types."""
    view = memoryview(data)
    at = batch_end = count = 0
    while at < len(view):
        room = (batch_end if at < batch_end else len(view)) - at
        fault, length, type_ = _shape_fault(view[at : at + room])
        if not fault and types is not None and type_ not in types:
            fault = "type that is not allowed"
        if not fault and type_ == _TYPE_BATCH and at < batch_end:
            fault = "batch in a batch"
        if fault:
            raise ValueError(f"record at byte {at}: {fault}")
        if type_ == _TYPE_BATCH:
            batch_end = at + length
            at += _HEADER.size
        else:
            at += length
            count += 1
    return count


def _shape_fault(view: memoryview) -> tuple[str, int, int]:
    """The reason why these bytes do not begin with a whole record (empty: they do), its length and its type."""
    if len(view) < _HEADER.size:
        return "cut off in its header", 0, 0
    length, _, _, _, type_, _, *sizes = _HEADER.unpack_from(view)
    content = _HEADER.size + sum(sizes)
    if length < _HEADER.size or length & 7:
        return "impossible length", 0, 0
    if length > len(view):
        return "longer than what is left", 0, 0
    if content + -content % 8 != length:
        return "parts do not add up to its length", 0, 0
    if any(view[content:length]):
        return "padding that is not zero", 0, 0
    if type_ == _TYPE_MESSAGE and not sizes[0]:
        return "message without a topic", 0, 0
    if type_ == _TYPE_BATCH and sizes[-1] != length - _HEADER.size:
        return "batch that holds more than records", 0, 0
    return "", length, type_


def walk(data: Readable) -> Iterator[RecordTuple]:
    """The records of checked bytes as tuples, batches opened; fields as in store.records.records.Record."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        length, _, log_offset, timestamp_ms, type_, flags, *sizes = _HEADER.unpack_from(view, at)
        if type_ == _TYPE_BATCH:
            at += _HEADER.size
            continue
        part = at + _HEADER.size
        parts = []
        for size in sizes:
            parts.append(bytes(view[part : part + size]))
            part += size
        topic, client_id, attributes, properties, payload = parts
        yield log_offset, timestamp_ms, length, type_, flags, topic, client_id, attributes, properties, payload
        at += length
