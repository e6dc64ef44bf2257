"""The file of the segments' sums: what was written is read again, and what is damaged is nothing that is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.files.sums import SUMS, State, Sum, Sums, decode_sums, forget_sum, read_sums, write_sums
from store.records._records import crc32c

ENTRIES = [
    Sum(base, base + 4096, bytes([base // 4096]) * 32, 1_700_000_000_000, State.INTACT)
    for base in range(0, 20480, 4096)
]
HEADER = 40
ENTRY = 64


@pytest.fixture
def sums() -> Sums:
    sums = Sums(bytes(range(16)), 1_700_000_000_000)
    for entry in ENTRIES:
        sums.put(entry)
    return sums


def test_written_sums_are_read_back(tmp_path: Path, sums: Sums) -> None:
    write_sums(tmp_path, sums)
    assert read_sums(tmp_path) == sums
    assert [path.name for path in tmp_path.iterdir()] == [SUMS]
    assert (tmp_path / SUMS).stat().st_size == HEADER + len(ENTRIES) * ENTRY


def test_an_entry_counts_for_a_segment_that_ends_where_it_did(sums: Sums) -> None:
    assert sums.of(4096, 8192) == ENTRIES[1]
    assert sums.of(4096, 8200) is None
    assert sums.of(4096, None) is None
    assert sums.of(4100, 8192) is None


def test_a_segment_is_forgotten(tmp_path: Path, sums: Sums) -> None:
    write_sums(tmp_path, sums)
    forget_sum(tmp_path, 4096)
    found = read_sums(tmp_path)
    assert found is not None
    assert list(found.entries.values()) == [ENTRIES[0], *ENTRIES[2:]]
    forget_sum(tmp_path, 4096)
    assert read_sums(tmp_path) == found
    (tmp_path / SUMS).unlink()
    forget_sum(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


def test_each_flipped_byte_costs_one_entry_or_all(sums: Sums) -> None:
    data = sums.encode()
    for at in range(len(data)):
        found = decode_sums(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        if at < HEADER:
            assert found is None
        else:
            assert found is not None
            damaged = (at - HEADER) // ENTRY
            assert list(found.entries.values()) == [*ENTRIES[:damaged], *ENTRIES[damaged + 1 :]]


def test_each_cut_leaves_what_is_whole(sums: Sums) -> None:
    data = sums.encode()
    for size in range(len(data)):
        found = decode_sums(data[:size])
        assert (found is None) == (size < HEADER)
        if found is not None:
            assert list(found.entries.values()) == ENTRIES[: (size - HEADER) // ENTRY]


def test_entries_may_grow(sums: Sums) -> None:
    """A later version may add fields behind those that there are."""
    data = sums.encode()
    header = data[:10] + (ENTRY + 8).to_bytes(2, "little") + data[12:36]
    grown = header + crc32c(header).to_bytes(4, "little")
    for at in range(HEADER, len(data), ENTRY):
        entry = data[at : at + ENTRY - 4] + b"new field"[:8]
        grown += entry + crc32c(entry).to_bytes(4, "little")
    found = decode_sums(grown)
    assert found is not None
    assert list(found.entries.values()) == ENTRIES
