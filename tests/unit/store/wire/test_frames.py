"""Frames that must not be, and the errors for them; the records in it; the count of credit."""

import struct

import pytest

from store.errors import StoreError, WireError
from store.records._records import RecordBatch, Records, check_records, ranges_from, records_bytes, records_from
from store.records.records import RecordType
from store.wire.credit import Credit
from store.wire.frames import HEAD, FrameReader, encode, frame_head
from store.wire.messages import (
    KINDS,
    MOST_ITEMS,
    Append,
    Appended,
    Claim,
    Goodbye,
    Grew,
    Hello,
    Ping,
    Publish,
    Ranges,
    Role,
    Welcome,
)
from store.wire.tier_messages import ServeTier
from tests.support.stores import batch_of

MAX_FRAME_BYTES = 1 << 20
TYPES = bytes(RecordType)


def frame(number: int, body: bytes, request_id: int = 0, records: bytes = b"", **head: int) -> bytes:
    """A frame byte by byte."""
    body_bytes = head.get("body_bytes", len(body))
    content = body + bytes(-len(body) % 8) + records
    return struct.pack("<IIII", head.get("length", 16 + len(content)), number, request_id, body_bytes) + content


def feed(data: bytes, size: int) -> None:
    """Let a reader have it in pieces."""
    reader = FrameReader(MAX_FRAME_BYTES, Role.CLIENT)
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])


BAD_FRAMES = [
    (frame(5, b"\x90", length=0), "a frame cannot be 0 bytes long"),
    (frame(5, b"\x90", length=25), "a frame cannot be 25 bytes long"),
    (frame(5, b"\x90", length=MAX_FRAME_BYTES + 8), "a frame of 1048584 bytes; at most 1048576 are allowed"),
    (frame(220, b"\x90"), "frame type 220 is unknown"),
    (frame(0, b"\x90"), "frame type 0 is unknown"),
    (frame(5 | 1 << 8, b"\x90"), "Ping: bytes 5 to 7 are not zero"),
    (frame(21, b"\x92\x90\x00"), "Grew is not for a client to send"),
    (frame(32, b"\x92\xa0\xc2", 1), "Claim is not for a client to send"),
    (frame(5, b"\x90", 1), "Ping with request_id 1"),
    (frame(16, b"\x91\x01"), "Append with request_id 0"),
    (frame(5, b"\x90", body_bytes=9), "Ping: a body of 9 bytes in a frame of 24"),
    (frame(5, b"\x90", body_bytes=2**32 - 1), "Ping: a body of 4294967295 bytes in a frame of 24"),
    (frame(5, b"\x90", records=bytes(8)), "Ping: 8 bytes behind the body"),
    (frame(5, b"\x90\1", body_bytes=1), "Ping: padding that is not zero"),
    (frame(5, b""), "Ping: Input data was truncated"),
    (frame(5, b"\x90\x90"), "Ping: MessagePack data is malformed: trailing characters (byte 1)"),
    (frame(5, b"\x91\x00"), "Ping: Expected `array` of at most length 0, got 1"),
    (frame(7, b"\x91\x00"), "Goodbye: Expected `str`, got `int` - at `$[0]`"),
    (frame(7, b"\x91\xa1\xff"), "Goodbye: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    (frame(20, b"\x91\x91\xff"), "Unfollow: Expected `int` >= 0 - at `$[0][0]`"),
    (frame(26, b"\x91\x91\xcf" + b"\xff" * 8, 1), "ReadAt is not for a client to send"),
    (frame(50, b"\x94\xa1t\xcf" + b"\xff" * 8, 1), "Scan: Expected `int` <= 9223372036854775807 - at `$[1]`"),
    (frame(24, b"\x93\x90\x00\x01", 1), "Read: Expected `int` >= 1 - at `$[1]`"),
    (frame(24, b"\x93\x90\xc3\x01", 1), "Read: Expected `int`, got `bool` - at `$[1]`"),
    (frame(20, b"\x91\xdd\xff\xff\xff\xff"), "Unfollow: more than 10000 queues"),
    (frame(16, b"\x91\x01", 1, bytes(40)), "Append: record at byte 0: impossible length"),
    (frame(16, b"\x91\x01", 1, bytes(batch_of(b"x"))[:-8]), "Append: record at byte 0: longer than what is left"),
    (frame(16, b"\x91\x01", 1, bytes(batch_of(b"x")) + bytes(8)), "Append: record at byte 48: cut off in its header"),
]


@pytest.mark.parametrize(("data", "reason"), BAD_FRAMES, ids=[reason for _, reason in BAD_FRAMES])
def test_a_frame_that_is_none(data: bytes, reason: str) -> None:
    for size in (len(data), 5, 1):
        with pytest.raises(WireError) as caught:
            feed(data, size)
        assert str(caught.value) == reason


def test_a_frame_that_is_too_large_is_refused_before_it_is_there() -> None:
    head = frame_head(Append(1), 1, MAX_FRAME_BYTES)
    reader = FrameReader(MAX_FRAME_BYTES, Role.CLIENT)
    assert reader.feed(head[: HEAD.size - 1]) == []
    with pytest.raises(WireError, match="at most 1048576"):
        reader.feed(head[HEAD.size - 1 : HEAD.size])


def test_deeply_nested_fields_are_refused() -> None:
    nested = b"\x9a\x91\x01" + b"\xa0" * 8 + b"\x91" * 20_000 + b"\x00"
    with pytest.raises(WireError, match="Hello: maximum recursion depth"):
        FrameReader(MAX_FRAME_BYTES, Role.CLIENT).feed(frame(1, nested))


def test_a_later_hello_may_have_more_fields_and_other_messages_may_not() -> None:
    (hello,) = FrameReader(MAX_FRAME_BYTES, Role.CLIENT).feed(
        frame(1, b"\x9a\x92\x01\x02" + b"\xa0" * 8 + b"\x81\xa1x\x05")
    )
    assert hello.message == Hello([1, 2], "", "")
    with pytest.raises(WireError, match="Goodbye: Expected `array` of at most length 1, got 2"):
        FrameReader(MAX_FRAME_BYTES, Role.CLIENT).feed(frame(7, b"\x92\xa0\xa0"))


def test_the_longest_list() -> None:
    reader = FrameReader(MAX_FRAME_BYTES, Role.STORE)
    longest = Grew([(1, 1)] * MOST_ITEMS, 0)
    assert reader.feed(encode(longest))[0].message == longest
    with pytest.raises(WireError, match="length <= 65536"):
        reader.feed(encode(Grew([(1, 1)] * (MOST_ITEMS + 1), 0)))


def test_frames_that_cannot_be_encoded() -> None:
    with pytest.raises(ValueError, match="Append with request_id 0"):
        encode(Append(1))
    with pytest.raises(ValueError, match="Ping with request_id 3"):
        encode(Ping(), 3)
    with pytest.raises(ValueError, match="Append with 7 bytes of records"):
        encode(Append(1), 1, bytes(7))
    with pytest.raises(ValueError, match="Appended with 48 bytes of records"):
        encode(Appended(0, 0), 1, bytes(48))


def test_a_credit_too_small_for_a_frame_is_no_welcome() -> None:
    with pytest.raises(ValueError, match="credit_bytes 8 allows no frame of 16 bytes"):
        Welcome(1, "", 0, 8, 16, 1, [], 0)
    body = b"\x98\x01\xa0\x00\x08\x10\x01\x90\x00"
    with pytest.raises(WireError, match="Welcome: credit_bytes 8 allows no frame of 16 bytes"):
        FrameReader(MAX_FRAME_BYTES, Role.STORE).feed(frame(2, body))


def test_each_number_and_each_message_is_there_once() -> None:
    assert len({kind.number for kind in KINDS}) == len({kind.message for kind in KINDS}) == len(KINDS)
    of_peers = {kind.message for kind in KINDS if kind.records and Role.STORE not in kind.senders}
    assert of_peers == {Append, Publish, ServeTier}
    assert {kind.message for kind in KINDS if Role.CLIENT not in kind.senders and Role.GATEWAY in kind.senders} >= {
        Claim
    }


def test_frames_keep_what_they_were_read_from() -> None:
    reader = FrameReader(MAX_FRAME_BYTES, Role.STORE)
    records = bytes(batch_of(b"one", b"two", b"three"))
    buffer = bytearray(encode(Ranges([(1, 5, 2), (2, 0, 1)]), 1, records) + encode(Goodbye("x")))
    found, goodbye = reader.feed(buffer[:70]) + reader.feed(buffer[70:])
    buffer[:] = bytes(len(buffer))
    assert goodbye.message == Goodbye("x")
    assert found.records.readonly
    assert isinstance(found.message, Ranges)
    ranges = ranges_from(found.records, [(first, count) for _, first, count in found.message.ranges])
    assert [(r.first, r.next, r[0][9]) for r in ranges] == [(5, 7, b"one"), (0, 1, b"three")]


# --- records of another process


def nested_batch() -> bytes:
    inner = RecordBatch()
    inner.begin_atomic()
    inner.end_atomic()
    outer = RecordBatch()
    outer.append(RecordType.BATCH, bytes(inner))
    return bytes(outer)


BAD_RECORDS = [
    (nested_batch(), "record at byte 40: batch in a batch"),
    (bytes(batch_of(b"x", topic=b"")), "record at byte 0: message without a topic"),
    (bytes(batch_of(b"x"))[:-1] + b"\1", "record at byte 0: padding that is not zero"),
    (bytes(batch_of(b"x")) * 2 + b"\0", "record at byte 96: cut off in its header"),
    (bytes(batch_of(b"x"))[:24] + b"\x63" + bytes(batch_of(b"x"))[25:], "record at byte 0: type that is not allowed"),
]


@pytest.mark.parametrize(("data", "reason"), BAD_RECORDS, ids=[reason for _, reason in BAD_RECORDS])
def test_records_that_are_none(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        RecordBatch.adopt(data, TYPES)
    with pytest.raises(ValueError, match=f"^{reason}$"):
        check_records(data, TYPES)


def test_only_the_types_that_a_peer_may_store_are_adopted() -> None:
    batch = batch_of(b"x")
    batch.append(RecordType.SESSION_ENDED, b"\x91\xa1a")
    assert bytes(RecordBatch.adopt(bytes(batch), TYPES)) == bytes(batch)
    with pytest.raises(ValueError, match="record at byte 48: type that is not allowed"):
        RecordBatch.adopt(bytes(batch), bytes([RecordType.MESSAGE]))


def test_a_batch_takes_no_more_than_its_limit() -> None:
    data = bytes(batch_of(b"x", b"y"))
    assert RecordBatch.adopt(data, TYPES, len(data)).size == len(data)
    with pytest.raises(ValueError, match="96 bytes of records; at most 95 are taken"):
        RecordBatch.adopt(data, TYPES, 95)


def test_empty_input_is_valid_as_records() -> None:
    assert RecordBatch.adopt(b"", TYPES).size == check_records(b"") == len(records_from(b"", 5)) == 0
    assert ranges_from(b"", []) == []
    assert records_bytes(Records(3)) == b""


def test_ranges_that_are_not_what_the_records_are() -> None:
    data = bytes(batch_of(b"x", b"y"))
    for ranges, reason in (
        ([(0, 3)], "a range of 3 records where 2 are left"),
        ([(0, 1), (9, 2)], "a range of 2 records where 1 are left"),
        ([(0, -1)], "a range of -1 records where 2 are left"),
        ([(0, 1)], "1 records behind the last range"),
    ):
        with pytest.raises(ValueError, match=reason):
            ranges_from(data, ranges)


def test_records_that_are_not_there_are_not_copied() -> None:
    records = records_from(bytes(batch_of(b"x", b"y")), 0)
    for start, count in ((0, 3), (3, -1), (-1, 1), (1, 2), (2, 1), (1, 2**63 - 1)):
        with pytest.raises(IndexError):
            records_bytes(records, start, count)


# --- credit


def test_credit_is_taken_and_given_back() -> None:
    credit = Credit(100)
    credit.take(1, 60)
    assert (credit.free_bytes, len(credit), credit.fits(40), credit.fits(41)) == (40, 1, True, False)
    with pytest.raises(WireError, match="a request of 48 bytes with a credit of 40"):
        credit.take(2, 48)
    with pytest.raises(WireError, match="request_id 1 is in use"):
        credit.take(1, 8)
    credit.give(1)
    assert (credit.free_bytes, len(credit)) == (100, 0)
    with pytest.raises(StoreError, match="an answer to request_id 1, which nobody asked for"):
        credit.give(1)
