"""The Spark source reads the same from a log beside a writer as the store does, record by record, in plain Python."""

import itertools
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.mqtt.codec_primitives import encode_varint
from gateway.mqtt.properties import PacketContext, Properties, decode_properties, encode_properties
from penstock import columns
from penstock.columns import COLUMNS
from penstock.spark.columns import record_batch
from penstock.spark.folder import LogFolder
from store.log.commitlog import CommitLog
from store.records._columns import find_messages, find_pairs, find_properties, gather, read_parts
from store.records._records import RecordBatch
from store.records.compression import compressed
from store.records.publish_properties import COLUMN_PROPERTIES
from store.records.records import Attribute, Record, RecordFlag, RecordType, encode_attribute, read_records
from store.settings import StoreSettings

SCHEMA = pa.schema([(name, column.type) for name, column in COLUMNS.items()])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

names = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=12)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
properties = st.builds(
    Properties,
    payload_format_indicator=st.none() | st.just(1),
    message_expiry_interval=st.none() | st.integers(0, 2**32 - 1),
    content_type=st.none() | texts,
    response_topic=st.none() | names,
    correlation_data=st.none() | st.binary(max_size=12),
    user_properties=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
)
flags = st.sampled_from(
    [0, 1, 2, RecordFlag.RETAIN | 1, RecordFlag.LIVE_ONLY, RecordFlag.CARRIED | 4, RecordFlag.EXPIRES]
)
attributes = st.sampled_from([b"", encode_attribute(Attribute.PACKET_ID, b"\5\0")])
payloads = st.binary(max_size=40) | st.just(b"long" * 500)
messages = st.tuples(names, texts, attributes, properties, payloads, flags)
state_change = st.just(None)
appends = st.lists(st.tuples(st.booleans(), st.lists(messages | state_change, min_size=1, max_size=5)), max_size=5)


def append(log: CommitLog, atomic: bool, records: list[Any]) -> None:
    batch = RecordBatch()
    if atomic:
        batch.begin_atomic()
    for record in records:
        if record is None:
            batch.append(RecordType.PEER_GONE, b"\x91\xa1x")
            continue
        topic, client_id, attributes, props, payload, flags = record
        batch.append(
            RecordType.MESSAGE,
            payload,
            topic=topic.encode(),
            client_id=client_id.encode(),
            attributes=attributes,
            properties=encode_properties(props),
            flags=flags,
        )
    if atomic:
        batch.end_atomic()
    log.append(batch)


def row(record: Record) -> dict[str, Any]:
    """The row of a record, as the store understands it."""
    block = encode_varint(len(record.properties)) + record.properties
    props, _ = decode_properties(block, 0, PacketContext.PUBLISH)
    return {
        "topic": record.topic.decode(),
        "payload": record.payload,
        "qos": record.qos,
        "retain": record.retain,
        "timestamp": EPOCH + timedelta(milliseconds=record.timestamp_ms),
        "queue": record.topic.decode(),
        "queue_offset": None,
        "log_offset": record.log_offset,
        "key": None,
        "client_id": record.client_id.decode(),
        "user_properties": [{"key": key, "value": value} for key, value in props.user_properties],
        **{each.column: getattr(props, each.name) for each in COLUMN_PROPERTIES},
    }


def is_history(record: Record) -> bool:
    return record.type == RecordType.MESSAGE and not record.flags & (RecordFlag.LIVE_ONLY | RecordFlag.CARRIED)


def model_rows(log: CommitLog, start: int) -> list[dict[str, Any]]:
    found = [record for _, data in log.ranges(start, 1 << 20) for record in list(read_records(data))]
    return [row(record) for record in found if is_history(record)]


def read_rows(folder: LogFolder, start: int, end: int) -> list[dict[str, Any]]:
    return [
        row
        for messages in folder.messages(start, end)
        for some in messages.batches()
        for row in record_batch(some, SCHEMA).to_pylist()
    ]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommitLog]:
    folder = tmp_path_factory.mktemp("data") / "log"
    folder.mkdir()
    commit_log = CommitLog(folder, StoreSettings(data=folder.parent, flush="async", segment_bytes=1 << 16))
    yield commit_log
    commit_log.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(appends=appends, parts=st.integers(1, 5))
def test_rows_are_what_the_store_reads(log: CommitLog, appends: list[tuple[bool, list[Any]]], parts: int) -> None:
    reader = LogFolder(str(log.folder.parent))
    start = reader.end()
    assert start == log.end
    for atomic, records in appends:
        append(log, atomic, records)
    assert reader.end() == log.end
    expected = model_rows(log, start)
    assert read_rows(reader, start, log.end) == expected
    if log.end > start:
        cuts = reader.split(start, log.end, parts)
        assert [row for cut in cuts for row in read_rows(reader, *cut)] == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(messages, min_size=1, max_size=5), data=st.data())
def test_a_position_may_lie_within_a_batch(log: CommitLog, records: list[Any], data: st.DataObject) -> None:
    reader = LogFolder(str(log.folder.parent))
    start = log.end
    append(log, True, records)
    expected = model_rows(log, start)
    if expected:
        middle = data.draw(st.sampled_from([row["log_offset"] for row in expected]))
        assert reader.is_record(middle)
        assert not reader.is_record(middle + 8)
        assert read_rows(reader, start, middle) == [row for row in expected if row["log_offset"] < middle]
        assert read_rows(reader, middle, log.end) == [row for row in expected if row["log_offset"] >= middle]


@given(data=st.binary(max_size=60) | st.builds(encode_properties, properties), cut=st.integers(0, 60))
def test_hostile_properties_are_left_out_and_nothing_is_read_beyond_them(data: bytes, cut: int) -> None:
    """A record's bytes were checked when they came in; whatever else stands there must not break the reader."""
    section = np.frombuffer(data[:cut] + b"\x26\0\1k\0\1v", np.uint8)
    starts, lengths = np.zeros(1, np.int64), np.full(1, len(data[:cut]), np.int32)
    rows = len(COLUMN_PROPERTIES)
    found, sizes, counts = np.empty((rows, 1), np.int64), np.empty((rows, 1), np.int32), np.empty(1, np.int32)
    find_properties(section, starts, lengths, found, sizes, counts)
    for place, size in zip(found[:, 0], sizes[:, 0], strict=True):
        assert size == -1 or 0 <= place <= place + size <= lengths[0]
    pairs, pair_sizes = np.empty((2, int(counts[0])), np.int64), np.empty((2, int(counts[0])), np.int32)
    assert find_pairs(section, starts, lengths, pairs, pair_sizes) == counts[0]
    assert (pairs + pair_sizes <= lengths[0]).all()
    assert (pair_sizes >= 0).all()


@given(parts=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 20)), max_size=10))
def test_parts_of_a_file_stand_one_behind_the_other(parts: list[tuple[int, int]]) -> None:
    content = bytes(range(100))
    starts, sizes = (np.array([part[i] for part in parts], kind) for i, kind in enumerate((np.int64, np.int32)))
    data = np.empty(int(sizes.sum()), np.uint8)
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        got = read_parts(file.fileno(), starts, sizes, data)
    complete = list(itertools.takewhile(lambda part: sum(part) <= len(content), parts))
    expected = b"".join(content[start : start + size] for start, size in parts[: len(complete) + 1])
    assert data[:got].tobytes() == expected


def test_parts_of_a_file_that_cannot_be_read() -> None:
    place, size, data = np.zeros(1, np.int64), np.ones(1, np.int32), np.empty(1, np.uint8)
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_parts(-1, place, size, data)
    for wrong in ((place, size, data[:0]), (place[:0], size, data), (place, -size, data)):
        with pytest.raises(ValueError, match="not of one size"):
            read_parts(0, *wrong)


def test_parts_outside_of_the_data_are_refused() -> None:
    data, offsets, values = np.zeros(16, np.uint8), np.empty(2, np.int32), np.empty(16, np.uint8)
    for start, length in ((-1, 2), (15, 2), (17, 0)):
        place, size = np.full(1, start, np.int64), np.full(1, length, np.int32)
        with pytest.raises(ValueError, match="lies outside of the data"):
            gather(data, place, size, offsets, values)
        with pytest.raises(ValueError, match="lies outside of the data"):
            find_pairs(data, place, size, np.empty((2, 0), np.int64), np.empty((2, 0), np.int32))
    with pytest.raises(ValueError, match="too little room"):
        find_messages(np.zeros(80, np.uint8), np.empty(1, np.int64), 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sizes=st.lists(st.integers(1, 5_000), min_size=1, max_size=8), kinds=st.lists(st.integers(0, 2), min_size=8))
def test_compressed_payloads_are_as_published_and_damaged_ones_null(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, sizes: list[int], kinds: list[int]
) -> None:
    monkeypatch.setattr(columns, "MOST_PLAIN_BYTES", 6_000)
    start, expected = log.end, []
    for size, kind in zip(sizes, kinds, strict=False):
        payload = bytes(size)
        frame = compressed(payload, 3)
        stored, found = ((payload, payload), (frame, payload), (frame[:-1], None))[kind]
        flags = RecordFlag.COMPRESSED if kind else 0
        append(log, False, [("t", "", b"", Properties(), stored, flags)])
        expected.append(found)
    found_batches = [
        [row["payload"] for row in record_batch(some, SCHEMA).to_pylist()]
        for some_messages in LogFolder(str(log.folder.parent)).messages(start, log.end)
        for some in some_messages.batches()
    ]
    assert [payload for batch in found_batches for payload in batch] == expected
    left = list(kinds)
    for batch in found_batches:
        of_batch, left = left[: len(batch)], left[len(batch) :]
        if any(of_batch):  # the log is read in pieces, and one without compressed payloads is not divided
            assert len(batch) == 1 or sum(len(each or b"") for each in batch) <= 6_000
