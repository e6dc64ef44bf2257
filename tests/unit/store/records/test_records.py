"""The record format byte by byte, and what the compiled leaf says of bytes that are not records."""

import os
import random
import struct
from pathlib import Path

import google_crc32c
import pytest

from store.errors import CorruptSegment
from store.files.segment import Segment
from store.records._records import LogMemory, RecordBatch, census, crc32c, verify, walk, written_bytes
from store.records.records import Attribute, RecordFlag, RecordType, decode_attributes, encode_attribute, read_records
from tests.support.stores import batch_of

RECORD_HEADER = struct.Struct("<IIQQBBHHHII")
NOW_MS = 0x0000_0193_0000_0001

# One QoS 1 retained message `line/7` = `on` of client `pump` with payload format 1, at log_offset 64.
MESSAGE = bytes.fromhex(
    "38000000 16ff68a2 4000000000000000 0100000093010000 01 05 0600 0400 0000 03000000 02000000"
    "6c696e652f37 70756d70 010101 6f6e 00"
)
SEGMENT_HEADER = bytes.fromhex(
    "50454e53544f434b 01000000 40000000 0000010000000000 0000000000000000 0100000093010000"
    "0000000000000000000000000000000000000000 4c3cf2cb"
)


def stamped(batch: RecordBatch, log_offset: int) -> bytes:
    """A batch as the log writes it at `log_offset`."""
    memory = LogMemory(batch.size)
    memory.start(log_offset)
    assert memory.append(batch, log_offset, NOW_MS)
    fd = os.memfd_create("segment")
    try:
        memory.write(fd, log_offset, log_offset + batch.size, log_offset)
        return os.pread(fd, batch.size, 0)
    finally:
        os.close(fd)


def message() -> RecordBatch:
    batch = RecordBatch()
    flags = RecordFlag.RETAIN | 1
    batch.append(RecordType.MESSAGE, b"on", topic=b"line/7", client_id=b"pump", properties=b"\1\1\1", flags=flags)
    return batch


def several(*sizes: int) -> RecordBatch:
    return batch_of(*(bytes(size) for size in sizes))


# --- vectors


def test_a_message_is_these_bytes() -> None:
    assert stamped(message(), 64) == MESSAGE


def test_a_message_is_read_back() -> None:
    (record,) = read_records(memoryview(MESSAGE))
    assert record == (64, NOW_MS, 56, 1, 5, b"line/7", b"pump", b"", b"\1\1\1", b"on")
    assert (record.qos, record.retain) == (1, True)


def test_the_header_is_what_struct_says() -> None:
    fields = RECORD_HEADER.unpack(MESSAGE[: RECORD_HEADER.size])
    assert RECORD_HEADER.size == 40
    assert fields == (56, google_crc32c.value(MESSAGE[8:]), 64, NOW_MS, 1, 5, 6, 4, 0, 3, 2)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, 3_071, 3_072, 3_073, 3_080, 6_143, 6_144, 10_000, 65_536])
def test_checksums_of_what_is_short_and_long(size: int) -> None:
    data = random.Random(size).randbytes(size + 1)
    assert crc32c(data[:size]) == google_crc32c.value(data[:size])
    assert crc32c(memoryview(data)[1:]) == google_crc32c.value(data[1:])


def test_a_segment_begins_with_these_bytes(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path, 65536, 65536, bytes(16), NOW_MS)
    assert bytes(memoryview(segment.map)[:64]) == SEGMENT_HEADER
    assert segment.path.name == "00000000000000065536.log"
    assert google_crc32c.value(SEGMENT_HEADER[:60]) == int.from_bytes(SEGMENT_HEADER[60:], "little")
    segment.close()


@pytest.mark.parametrize(
    ("position", "reason"),
    [(0, "wrong magic"), (9, "header checksum mismatch"), (16, "header checksum mismatch"), (63, "checksum mismatch")],
)
def test_a_damaged_segment_header_is_named(tmp_path: Path, position: int, reason: str) -> None:
    path = tmp_path / f"{65536:020}.log"
    damaged = bytearray(SEGMENT_HEADER)
    damaged[position] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptSegment, match=reason) as caught:
        Segment.open(path)
    assert str(path) in str(caught.value)


def test_a_segment_of_another_version_or_base_is_refused(tmp_path: Path) -> None:
    other = bytearray(SEGMENT_HEADER)
    other[8] = 2
    other[60:] = crc32c(other[:60]).to_bytes(4, "little")
    (tmp_path / f"{65536:020}.log").write_bytes(other)
    with pytest.raises(CorruptSegment, match="format version 2; this program reads version 1"):
        Segment.open(tmp_path / f"{65536:020}.log")
    (tmp_path / f"{131072:020}.log").write_bytes(SEGMENT_HEADER)
    with pytest.raises(CorruptSegment, match="its header says base 65536"):
        Segment.open(tmp_path / f"{131072:020}.log")


def test_crc_is_that_of_google_crc32c() -> None:
    randomly = random.Random(1)
    assert crc32c(b"123456789") == 0xE3069283
    for size in [*range(40), 4096, 1 << 20]:
        data = randomly.randbytes(size)
        assert crc32c(data) == google_crc32c.value(data)
        assert crc32c(memoryview(data)[size // 3 :]) == google_crc32c.value(data[size // 3 :])


# --- batch records


def test_an_atomic_batch_is_one_record_that_holds_others() -> None:
    batch = RecordBatch()
    batch.begin_atomic()
    batch.append(RecordType.MESSAGE, b"will", topic=b"gone")
    batch.append(RecordType.WILL_FIRED, b"x")
    batch.end_atomic()
    data = stamped(batch, 1000)
    outer = RECORD_HEADER.unpack(data[:40])
    assert outer == (len(data), google_crc32c.value(data[8:]), 1000, NOW_MS, 2, 0, 0, 0, 0, 0, len(data) - 40)
    inner = list(read_records(memoryview(data)))
    assert [(record.log_offset, record.type, record.payload) for record in inner] == [
        (1040, RecordType.MESSAGE, b"will"),
        (1088, RecordType.WILL_FIRED, b"x"),
    ]
    assert verify(data, 1000) == (len(data), NOW_MS, None)
    assert census(data) == {RecordType.MESSAGE: 1, RecordType.WILL_FIRED: 1}


@pytest.mark.parametrize("cut", [1, 40, 41, 88, 100])
def test_half_an_atomic_batch_is_nothing(cut: int) -> None:
    batch = several(5)
    before = batch.size
    batch.begin_atomic()
    batch.append(RecordType.MESSAGE, b"will", topic=b"gone")
    batch.append(RecordType.WILL_FIRED, b"x")
    batch.end_atomic()
    data = stamped(batch, 64)[: before + cut]
    valid, _, reason = verify(data + bytes(500), 64)
    assert valid == before
    assert reason is not None


def test_batches_do_not_nest_and_have_to_be_begun() -> None:
    batch = RecordBatch()
    with pytest.raises(ValueError, match="no batch"):
        batch.end_atomic()
    batch.begin_atomic()
    with pytest.raises(ValueError, match="nest"):
        batch.begin_atomic()
    batch.clear()
    batch.begin_atomic()
    batch.end_atomic()


# --- verifying and walking


def test_verify_stops_where_something_is_wrong() -> None:
    data = stamped(several(1, 100, 1000), 64)
    second = 48
    for position in range(second, second + 40):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        valid, _, reason = verify(damaged, 64)
        assert (valid, bool(reason)) == (second, True), position


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:70], "cut off in its header"),
        (lambda data: data[:120], "longer than what is left"),
        (lambda data: data[:48] + bytes(7) + b"\1", "cut off in its header"),
        (lambda data: data[:48] + bytes(50), "zeros where a record should be"),
        (lambda data: data[:48] + b"\1" * 50, "impossible length"),
        (lambda data: data[:48] + data[:48], "another log_offset"),
        (lambda data: data[:90] + b"\1" + data[91:], "checksum mismatch"),
    ],
)
def test_the_reason_is_told(change: object, reason: str) -> None:
    assert callable(change)
    valid, _, found = verify(change(stamped(several(1, 100), 64)), 64)
    assert valid == 48
    assert found is not None
    assert reason in found


def test_zeros_are_not_counted_as_written() -> None:
    data = stamped(several(1, 100), 64)
    for zeros in (0, 1, 8, 39, 40, 1000):
        assert verify(data + bytes(zeros), 64)[:2] == (len(data), NOW_MS)
        assert written_bytes(data[:-8] + b"\7" + bytes(zeros)) == len(data) - 7
    assert verify(b"", 64) == (0, 0, None)
    assert written_bytes(b"") == 0


def test_lengths_that_do_not_add_up_are_a_fault_even_with_a_good_checksum() -> None:
    damaged = bytearray(MESSAGE)
    damaged[36] = 40  # payload length
    damaged[4:8] = crc32c(damaged[8:]).to_bytes(4, "little")
    assert verify(damaged, 64)[2] == "parts do not add up to its length"


def test_a_chunk_ends_at_a_record() -> None:
    data = stamped(several(1, 100, 1000, 10_000), 64)
    assert verify(data, 64, 1) == (48, NOW_MS, None)
    assert verify(data, 64, 49) == (48 + 144, NOW_MS, None)
    assert verify(data, 64, 1 << 20) == (len(data), NOW_MS, None)
    assert verify(data[:-8], 64, 1 << 20)[0] == 48 + 144 + 1048


def test_a_batch_splits_at_records() -> None:
    batch = several(1, 100, 1000, 10_000, 2)
    pieces = batch.split(1200)
    assert [piece.size for piece in pieces] == [48 + 144, 1048, 10048, 48]
    assert b"".join(bytes(piece) for piece in pieces) == bytes(batch)
    assert RecordBatch().split(100) == []


def test_random_records_are_walked_as_they_were_written() -> None:
    randomly = random.Random(2)
    batch = RecordBatch()
    written = []
    for _ in range(500):
        parts = [randomly.randbytes(randomly.choice((0, 1, 7, 8, 300))) for _ in range(5)]
        topic, client_id, attributes, properties, payload = parts
        batch.append(1, payload, topic=topic, client_id=client_id, attributes=attributes, properties=properties)
        written.append((topic, client_id, attributes, properties, payload))
    data = stamped(batch, 8192)
    records = list(read_records(memoryview(data)))
    assert [tuple(record[5:]) for record in records] == written
    assert [record.log_offset for record in records] == [
        8192 + sum(record.length for record in records[:i]) for i in range(500)
    ]
    assert verify(data, 8192)[0] == len(data)
    assert census(data) == {1: 500}
    assert list(walk(b"")) == []


def test_parts_that_a_header_cannot_count_are_refused() -> None:
    batch = RecordBatch()
    for part in ("topic", "client_id", "attributes"):
        with pytest.raises(ValueError, match="65,535"):
            batch.append(1, b"", **{part: bytes(65536)})  # type: ignore[arg-type]
    batch.append(1, b"", topic=bytes(65535), client_id=bytes(65535), attributes=bytes(65535))
    assert verify(stamped(batch, 0), 0)[0] == batch.size
    with pytest.raises(TypeError):
        batch.append(1, None)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        batch.append(256, b"")


def test_attributes() -> None:
    data = encode_attribute(Attribute.PACKET_ID, b"\x34\x12") + encode_attribute(Attribute.STORED_MS, bytes(8))
    assert data == bytes.fromhex("0102003412 020800 0000000000000000")
    assert decode_attributes(data) == {1: b"\x34\x12", 2: bytes(8)}


# --- where a log_offset is read


def test_memory_answers_for_records_only() -> None:
    memory = LogMemory(4096)
    memory.start(64)
    memory.append(several(1, 100), 64, NOW_MS)
    assert memory.record(64 + 48)[0] == 64 + 48
    for nowhere in (0, 63, 65, 72, 64 + 40, 64 + 48 + 144, 1 << 60):
        with pytest.raises(LookupError, match=str(nowhere)):
            memory.record(nowhere)


def test_memory_answers_from_mappings_in_any_order() -> None:
    memory = LogMemory(64)
    memory.start(4000)
    for base in (3000, 1000, 2000):
        memory.map(base, stamped(several(7, 7), base))
    for base in (1000, 2000, 3000):
        assert memory.record(base)[0] == base
        assert memory.timestamp_ms(base + 48) == NOW_MS
    for nowhere in (999, 1008, 1096, 1999, 3096):
        with pytest.raises(LookupError):
            memory.record(nowhere)
    memory.unmap(2000)
    memory.unmap(2000)
    with pytest.raises(LookupError):
        memory.record(2000)
    assert memory.record(3048)[0] == 3048


def test_a_damaged_header_is_not_followed_out_of_the_mapping() -> None:
    data = bytearray(stamped(several(7, 7), 1000))
    data[48:52] = (1 << 30).to_bytes(4, "little")
    memory = LogMemory(64)
    memory.start(2000)
    memory.map(1000, bytes(data))
    with pytest.raises(LookupError):
        memory.record(1048)
