"""Records from another process: the compiled check and its plain-Python model agree on every input, hostile or not."""

import ctypes
import mmap
import random
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.records._records import RecordBatch, check_records, ranges_from, records_bytes, records_from, walk
from store.records.records import RecordType

HEADER = struct.Struct("<IIQQBBHHHII")
TYPES = bytes(RecordType)
FUZZED = 30_000
ODD_SIZES = (0, 1, 7, 8, 39, 40, 41, 48, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFF8, 0xFFFF_FFFF)


# --- the model


def leaves(data: bytes, types: bytes | None, start: int = 0, inside: bool = False) -> Iterator[bytes]:
    """The records, batches opened. Raises ValueError at the first that is none."""
    at = start
    while at < len(data):
        kind, length = checked(data, at, types, inside)
        if kind == RecordType.BATCH:
            yield from leaves(data[: at + length], types, at + HEADER.size, inside=True)
        else:
            yield data[at : at + length]
        at += length


def checked(data: bytes, at: int, types: bytes | None, inside: bool) -> tuple[int, int]:
    """Type and length of a record that is whole."""
    record = data[at:]

    def must(condition: bool, fault: str) -> None:
        if not condition:
            raise ValueError(f"record at byte {at}: {fault}")

    must(len(record) >= HEADER.size, "cut off in its header")
    length, _, _, _, kind, _, topic, client_id, attributes, properties, payload = HEADER.unpack_from(record)
    must(length >= HEADER.size and length % 8 == 0, "impossible length")
    must(length <= len(record), "longer than what is left")
    content = HEADER.size + topic + client_id + attributes + properties + payload
    must(content + -content % 8 == length, "parts do not add up to its length")
    must(not any(record[content:length]), "padding that is not zero")
    must(kind != RecordType.MESSAGE or topic > 0, "message without a topic")
    must(kind != RecordType.BATCH or payload == length - HEADER.size, "batch that holds more than records")
    must(types is None or kind in types, "type that is not allowed")
    must(kind != RecordType.BATCH or not inside, "batch in a batch")
    return kind, length


def model(data: bytes, types: bytes | None = None) -> list[bytes] | str:
    """The records, or what is wrong."""
    try:
        return list(leaves(data, types))
    except ValueError as error:
        return str(error)


def outcome(call: Callable[[], object]) -> object:
    """What a call returns, or the text of its ValueError."""
    try:
        return call()
    except ValueError as error:
        return str(error)


def compare(data: memoryview | bytes, types: bytes = TYPES) -> bool:
    """All that takes foreign records says of these what the model says. Whether they are whole records."""
    plain = bytes(data)
    expected = model(plain, types)
    fault = expected if isinstance(expected, str) else None
    assert outcome(lambda: check_records(data, types)) == (fault or len(expected))
    assert outcome(lambda: bytes(RecordBatch.adopt(data, types))) == (fault or plain)
    expected = model(plain)
    if isinstance(expected, str):
        assert outcome(lambda: records_from(data, 7)) == expected
        assert outcome(lambda: ranges_from(data, [(7, 1)])) == expected
        return False
    records = records_from(data, 7)
    assert (records.first, records.next, len(records)) == (7, 7 + len(expected), len(expected))
    assert [records[i] for i in range(len(records))] == [next(walk(record)) for record in expected]
    assert records_bytes(records) == b"".join(expected)
    return True


# --- records, and what may have become of them

short = st.binary(max_size=20)
plain_records = st.tuples(
    st.sampled_from([kind for kind in RecordType if kind != RecordType.BATCH]),
    st.binary(min_size=1, max_size=9),
    short,
    short,
)
specs = st.lists(plain_records | st.lists(plain_records, max_size=3), max_size=5)
patches = st.lists(st.tuples(st.integers(0, 400), st.sampled_from((1, 2, 4)), st.integers(0, 2**32 - 1)), max_size=3)
Plain = tuple[RecordType, bytes, bytes, bytes]


def build(items: list[Plain | list[Plain]]) -> bytes:
    """Records in log format; an inner list is a batch record."""
    batch = RecordBatch()
    for item in items:
        if isinstance(item, list):
            batch.begin_atomic()
        for kind, topic, properties, payload in item if isinstance(item, list) else [item]:
            batch.append(kind, payload, topic=topic, client_id=topic, attributes=payload, properties=properties)
        if isinstance(item, list):
            batch.end_atomic()
    return bytes(batch)


@given(specs, patches, st.binary(max_size=50), st.sets(st.sampled_from(RecordType)))
def test_the_check_is_the_model(
    items: list[Plain | list[Plain]], patches: list[tuple[int, int, int]], tail: bytes, types: set[RecordType]
) -> None:
    data = build(items)
    assert compare(data)
    assert compare(data, bytes(types))
    compare(data + tail)
    patched = bytearray(data)
    for at, size, value in patches:
        if at + size <= len(patched):
            patched[at : at + size] = value.to_bytes(4, "little")[:size]
    compare(bytes(patched))


@given(specs, st.integers(0, 7), st.booleans())
def test_records_last_wherever_they_came_from(items: list[Plain | list[Plain]], shift: int, writable: bool) -> None:
    data = build(items)
    expected = list(leaves(data, None))
    buffer = bytearray(shift) + data
    received = memoryview(buffer)[shift:] if writable else memoryview(bytes(buffer))[shift:]
    records = records_from(received, 0)
    buffer[:] = bytes(len(buffer))
    del buffer, received
    assert records_bytes(records) == b"".join(expected)


@given(specs, st.data())
def test_any_division_into_ranges(items: list[Plain | list[Plain]], data: st.DataObject) -> None:
    expected = list(leaves(build(items), None))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(expected)), max_size=4)))
    parts = [expected[a:b] for a, b in pairwise([0, *cuts, len(expected)])]
    ranges = ranges_from(build(items), [(100 * number, len(part)) for number, part in enumerate(parts)])
    for number, (records, part) in enumerate(zip(ranges, parts, strict=True)):
        assert (records.first, records.next) == (100 * number, 100 * number + len(part))
        assert records_bytes(records) == b"".join(part)
        start = data.draw(st.integers(0, len(part)))
        count = data.draw(st.integers(0, len(part) - start))
        assert records_bytes(records, start, count) == b"".join(part[start : start + count])


# --- by the thousand, before a page that must not be touched


class GuardedPage:
    """Memory that ends where the process may not read."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map, mmap.PAGESIZE))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0

    def holding(self, data: bytes) -> memoryview:
        """The data, up to the very end."""
        data = data[: mmap.PAGESIZE]
        view = memoryview(self._map)[mmap.PAGESIZE - len(data) : mmap.PAGESIZE]
        view[:] = data
        return view.toreadonly()


def mutated(rng: random.Random, data: bytes) -> bytes:
    result = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 5))):
        at = rng.randrange(len(result) + 1)
        match rng.randrange(6):
            case 0 if at < len(result):
                result[at] ^= 1 << rng.randrange(8)
            case 1 if at + 4 <= len(result):  # most headers lie at multiples of 8
                at -= at % 4
                result[at : at + 4] = rng.choice(ODD_SIZES).to_bytes(4, "little")
            case 2:
                del result[at:]
            case 3:
                result[at:at] = result[: rng.randrange(100)]
            case 4:
                result[at:at] = rng.randbytes(rng.randrange(1, 60))
            case 5 if len(result) > 24:
                result[24] = rng.choice((1, 2, 2, 16, 99))
    return bytes(result)


def random_items(rng: random.Random) -> list[Any]:
    def one() -> Plain:
        kind = rng.choice([kind for kind in RecordType if kind != RecordType.BATCH])
        return (
            kind,
            rng.randbytes(rng.randrange(1, 12)),
            rng.randbytes(rng.choice((0, 5))),
            rng.randbytes(rng.randrange(50)),
        )

    return [one() if rng.random() < 0.7 else [one() for _ in range(rng.randrange(4))] for _ in range(rng.randrange(6))]


@pytest.mark.parametrize("seed", [1, 2])
def test_hostile_records_are_refused_and_nothing_behind_them_is_read(seed: int) -> None:
    rng = random.Random(seed)
    page = GuardedPage()
    whole = 0
    for _ in range(FUZZED):
        whole += compare(page.holding(mutated(rng, build(random_items(rng)))))
    assert FUZZED // 10 < whole < FUZZED * 9 // 10
