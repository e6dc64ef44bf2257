"""Logs for the tests of the tier: records as a store would have stamped them, and their rows by a plain reading."""

import random
import struct
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.columns import NOT_HISTORY
from penstock.tier.rows import restored_client_id
from store.namespaces import MARK, namespace_of
from store.records._records import RecordBatch
from store.records.compression import BadFrame, plain
from store.records.records import (
    RECORD_HEADER_BYTES,
    Attribute,
    Record,
    RecordFlag,
    RecordType,
    decode_attributes,
    encode_attribute,
    read_records,
)

START = 64
NOON_MS = 1_795_608_000_000  # 25 November 2026, 12:00 UTC
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = "ab" * 16
SECOND = "cd" * 16


def stamped(batch: RecordBatch, log_offset: int, time_ms: int) -> bytes:
    """The records of a batch as they stand in the log, but for their checksums, which the tier leaves to others."""
    data = bytearray(bytes(batch))
    at = 0
    while at < len(data):
        struct.pack_into("<QQ", data, at + 8, log_offset + at, time_ms)
        (length,) = struct.unpack_from("<I", data, at)
        at += RECORD_HEADER_BYTES if data[at + 24] == RecordType.BATCH else length
    return bytes(data)


def telemetry(seed: int, messages: int, topics: int = 50) -> RecordBatch:
    """Messages of some devices: some with a key, some state changes between them."""
    chance = random.Random(seed)
    batch = RecordBatch()
    for number in range(messages):
        device = chance.randrange(topics)
        attributes = encode_attribute(Attribute.KEY, b"k%d" % number) if chance.random() < 0.1 else b""
        topic = b"line/%d/temp" % device if device % 5 else b"$ns:acme/line/%d" % device
        client_id = b"d%d" % device if device % 5 else b"$ns:acme/d%d" % device
        flags = chance.choice((0, 1, 1, 2, RecordFlag.LIVE_ONLY))
        payload = b"%d %f" % (number, chance.random())
        batch.append(RecordType.MESSAGE, payload, topic=topic, client_id=client_id, attributes=attributes, flags=flags)
        if chance.random() < 0.05:
            batch.append(RecordType.PEER_GONE, b"\x91\xa1x")
    return batch


def pieces(seed: int, count: int, messages: int = 100, start: int = START) -> list[tuple[int, bytes]]:
    """Pieces of a log, each with its log_offset; the middle one is of the evening, the next ones of the day after."""
    found, at = [], start
    for number in range(count):
        data = stamped(telemetry(seed + number, messages), at, NOON_MS + number * 5 * 3_600_000)
        found.append((at, data))
        at += len(data)
    return found


def plain_rows(log: Iterable[tuple[int, bytes]]) -> Iterator[dict[str, Any]]:
    """The rows of a log as the table must have them, in the order of the log."""
    counts: dict[bytes, int] = {}
    for _, data in log:
        for record in read_records(memoryview(data)):
            if record.type != RecordType.MESSAGE or record.flags & NOT_HISTORY:
                continue
            queue_offset = counts.get(record.topic, 0)
            counts[record.topic] = queue_offset + 1
            yield _plain_row(record, queue_offset)


def _plain_row(record: Record, queue_offset: int) -> dict[str, Any]:
    attributes = decode_attributes(record.attributes)
    key, tag = attributes.get(Attribute.KEY), attributes.get(Attribute.TAG)
    topic, client_id, payload, flags = record.topic.decode(), record.client_id.decode(), record.payload, record.flags
    names = namespace_of(topic)
    if names.topic(names.plain_topic(topic)) != topic:
        names = namespace_of("")
    candidates = (names.plain_client_id(client_id), client_id, f"{MARK}/{client_id}")
    plain_id = next(each for each in candidates if restored_client_id(names.name, each) == client_id)
    stored = EPOCH + timedelta(milliseconds=record.timestamp_ms)
    payload_or_null: bytes | None = payload
    if flags & RecordFlag.COMPRESSED:
        try:
            payload_or_null, flags = plain(payload), flags & ~RecordFlag.COMPRESSED
        except BadFrame:
            payload_or_null = None
    return {
        "day": stored.date(),
        "namespace": names.name,
        "topic": names.plain_topic(topic),
        "log_offset": record.log_offset,
        "timestamp": stored,
        "queue_offset": queue_offset,
        "flags": int(flags),
        "payload": payload_or_null,
        "key": key.decode() if key is not None else None,
        "tag": tag.decode() if tag is not None else None,
        "client_id": plain_id,
        "properties": record.properties,
        "attributes": record.attributes,
    }


def fnv1a(key: bytes) -> int:
    """The hash of a key in an index."""
    found = 0xCBF29CE484222325
    for byte in key:
        found = (found ^ byte) * 0x100000001B3 % (1 << 64)
    return found


def with_a_gap(seed: int, count: int) -> list[tuple[int, bytes]]:
    """As pieces(), and one in the middle was lost."""
    log = pieces(seed, count // 2)
    batch = RecordBatch()
    for _ in range(3):
        batch.append(RecordType.GAP, bytes(1024))
    at = log[-1][0] + len(log[-1][1])
    log.append((at, stamped(batch, at, 0)))
    behind = at + len(log[-1][1])
    return log + pieces(seed + count, count - len(log), start=behind)
