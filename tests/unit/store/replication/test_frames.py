"""Frames: each comes back as it was, and whatever else is refused as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import FrameDamaged
from store.records._records import crc32c
from store.replication.frames import (
    FRAME_HEADER_BYTES,
    MOST_FRAME_BYTES,
    MOST_PARTS,
    FrameKind,
    Leader,
    LogFrame,
    decode_frame,
    epoch_frame,
    in_parts,
    known_frame,
)

PROCESS = bytes(range(16))
LEADER = Leader("store-1.example:7700", PROCESS)

numbers = st.integers(0, (1 << 61) - 1)
epochs = st.integers(1, (1 << 61) - 1)
leaders = st.builds(Leader, st.text(min_size=1, max_size=60), st.binary(min_size=16, max_size=16))
frames = st.one_of(
    st.builds(LogFrame, st.just(FrameKind.DATA), epochs, numbers, numbers, st.binary(max_size=300)),
    st.builds(
        LogFrame,
        st.just(FrameKind.DATA),
        epochs,
        numbers,
        numbers,
        st.binary(min_size=1, max_size=300),
        st.integers(0, MOST_PARTS - 1),
        st.booleans(),
    ),
    st.builds(LogFrame, st.just(FrameKind.STOP), epochs, numbers, numbers),
    st.builds(epoch_frame, epochs, numbers, leaders),
)


@given(frames)
def test_a_frame_comes_back(frame: LogFrame) -> None:
    data = frame.encode()
    read = decode_frame(data)
    assert read == known_frame(frame, data)
    assert len(data) == FRAME_HEADER_BYTES + len(frame.data)


@given(frames, st.data())
def test_a_changed_byte_is_noticed(frame: LogFrame, data: st.DataObject) -> None:
    encoded = bytearray(frame.encode())
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameDamaged):
        decode_frame(bytes(encoded))


@given(frames, st.data())
def test_a_frame_that_is_cut_or_longer_is_refused(frame: LogFrame, data: st.DataObject) -> None:
    encoded = frame.encode()
    with pytest.raises(FrameDamaged):
        decode_frame(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(FrameDamaged):
        decode_frame(encoded + data.draw(st.binary(min_size=1, max_size=20)))


@given(st.binary(max_size=200), st.booleans())
def test_other_bytes_are_refused(data: bytes, begins_alike: bool) -> None:
    with pytest.raises(FrameDamaged):
        decode_frame(b"PENFRAME" * begins_alike + data)


@given(frames, st.data())
def test_whatever_has_a_valid_checksum_is_a_frame_or_refused(frame: LogFrame, data: st.DataObject) -> None:
    """A field that makes no sense is refused, although its sender summed it."""
    encoded = bytearray(frame.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(12, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    encoded[8:12] = crc32c(memoryview(encoded)[12:]).to_bytes(4, "little")
    try:
        read = decode_frame(bytes(encoded))
    except FrameDamaged:
        return
    assert read.frame.encode() == encoded


def with_field(at: int, value: bytes, frame: LogFrame | None = None) -> bytes:
    encoded = bytearray((frame or LogFrame(FrameKind.DATA, 2, 64, 1, b"12345678")).encode())
    encoded[at : at + len(value)] = value
    encoded[8:12] = crc32c(memoryview(encoded)[12:]).to_bytes(4, "little")
    return bytes(encoded)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (with_field(12, b"\2\0"), "its version is 2"),
        (with_field(14, b"\7"), "7 is not a valid FrameKind"),
        (with_field(15, b"\2"), "a flag is 2"),
        (with_field(16, b"\0\0\1\0"), "part 65536"),
        (with_field(20, b"\xff\xff\xff\xff"), "says that it has 4294967295 bytes, and has 8"),
        (with_field(24, bytes(8)), "epoch 0"),
        (with_field(32, b"\xff" * 8), "8 bytes at log_offset 18446744073709551615"),
        (with_field(14, b"\2"), "a STOP frame has no bytes"),
        (with_field(14, b"\1"), "an EPOCH frame of 8 bytes"),
        (with_field(64, b"\xff", epoch_frame(3, 0, LEADER)), "can't decode"),
        (LogFrame(FrameKind.DATA, 2, 64, 1, b"1").encode()[:-1] + b"2", "its checksum is another one"),
        (b"", "it is no frame"),
    ],
)
def test_the_reason_is_told(data: bytes, reason: str) -> None:
    with pytest.raises(FrameDamaged, match=reason):
        decode_frame(data)


@pytest.mark.parametrize("address", ["", "x" * 256])
def test_an_address_has_a_length(address: str) -> None:
    with pytest.raises(ValueError, match="EPOCH"):
        epoch_frame(1, 0, Leader(address, PROCESS))


def test_a_frame_is_bounded() -> None:
    with pytest.raises(ValueError, match="bytes at log_offset"):
        LogFrame(FrameKind.DATA, 1, 0, 1, bytes(MOST_FRAME_BYTES + 1))
    with pytest.raises(ValueError, match="part 1 of a STOP frame"):
        LogFrame(FrameKind.STOP, 1, 0, 1, part=1)


@given(st.binary(min_size=1, max_size=100), st.integers(1, 40))
def test_parts_are_the_whole(data: bytes, largest: int) -> None:
    parts = in_parts(data, largest)
    assert b"".join(parts) == data
    assert all(len(part) == largest for part in parts[:-1])
