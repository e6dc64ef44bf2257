"""Kinds of damage to a data folder, each with what `penstock store check` has to say of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lightqueue.mending.checking import CheckResult
from lightqueue.message_store import MessageStore
from store.files.marks import MARKS
from store.files.segment import (
    HEADER_BYTES,
    read_header,
    read_records,
    segment_header,
    segment_path,
    segment_paths,
)
from store.mending.foresight import headers
from store.records.records import RecordType
from tests.support.stores import batch_of, flip, publish, publish_delayed, small, subscribe

TOPICS = 5
MESSAGES = 160


@dataclass(frozen=True)
class Injury:
    """`do` gets a data folder, and that of another store."""

    do: Callable[[Path, Path], object]
    kinds: frozenset[str]  # of the findings
    verdict: CheckResult


def make_store(data: Path, seed: int = 0) -> dict[int, bytes]:
    """A store that was used and closed; returns the payload of each message by its log_offset."""
    store = MessageStore(small(data, index_write_buffer_bytes=64 << 10))
    ledger: dict[int, bytes] = {}
    subscribe(store, "pump", ["t/+", "#"])
    for number in range(MESSAGES):
        payload = b"%d/%06d " % (seed, number) + bytes((number % 251 + 1,)) * ((number * 37 + seed * 1000) % 3000)
        ledger[publish(store, f"t/{number % TOPICS}", payload, retain=number % 7 == 0)] = payload
        if number % 20 == 0:
            batch = batch_of()
            batch.begin_atomic()
            for inner in (b"one %d" % number, b"two %d" % number):
                batch.append(RecordType.MESSAGE, inner, topic=b"t/pair")
            batch.end_atomic()
            at = store.append(batch)
            ledger[at + 40] = b"one %d" % number
            ledger[at + 96] = b"two %d" % number
        if number % 50 == 0:
            publish_delayed(store, "t/late", b"late", due_ms=1 << 60)
            store.write_index()
            store.index.flush()
    store.close()
    return ledger


def segment(data: Path, which: int) -> Path:
    return segment_paths(data / "log")[which]


def record_at(path: Path, number: int = 3, record_type: int = RecordType.MESSAGE, least: int = 200) -> int:
    """Position in the file of a record of a type, of at least so many bytes."""
    base = int(path.stem)
    with path.open("rb") as file:
        data, _, _ = read_records(file.fileno(), base, base + HEADER_BYTES)
    found = [
        at - base for at, length, kind in headers(base + HEADER_BYTES, data) if kind == record_type and length >= least
    ]
    return found[number]


def _flips(which: int, position: int) -> Callable[[Path, Path], None]:
    """A bit of a message, so far behind the beginning of its record."""
    return lambda data, _: flip(segment(data, which), record_at(segment(data, which)) + position)


def _flips_header(which: int, position: int) -> Callable[[Path, Path], None]:
    return lambda data, _: flip(segment(data, which), position)


def _flips_batch(data: Path, _: Path) -> None:
    path = segment(data, 1)
    flip(path, record_at(path, 0, RecordType.BATCH, 0) + 16)


def _flips_in_batch(data: Path, _: Path) -> None:
    path = segment(data, 1)
    flip(path, record_at(path, 0, RecordType.BATCH, 0) + 40 + 42)


def zero(path: Path, position: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(size))


def _swap(data: Path, _: Path) -> None:
    one, other = segment_paths(data / "log")[1:3]
    one.rename(data / "x")
    other.rename(one)
    (data / "x").rename(other)


def _junk(path: Path) -> None:
    path.write_bytes(b"junk\n")


def _index_file(pattern: str, do: Callable[[Path], object]) -> Callable[[Path, Path], None]:
    def injure(data: Path, _: Path) -> None:
        do(max((data / "index").glob(pattern), key=lambda path: (path.stat().st_size, path.name)))

    return injure


def _flip_all(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(20, len(data), 512):
        data[at] ^= 1
    path.write_bytes(data)


def _other_index(data: Path, other: Path) -> None:
    shutil.rmtree(data / "index")
    shutil.copytree(other / "index", data / "index")


def _all_segments(data: Path, _: Path) -> None:
    for path in segment_paths(data / "log"):
        path.unlink()


def _both_slots(data: Path, _: Path) -> None:
    flip(data / "log" / MARKS, 20)
    flip(data / "log" / MARKS, 532)


def _stray(which: int, content: bytes, name: str | None = None) -> Callable[[Path, Path], None]:
    """A file in the log's folder, by default with the name of a log_offset in the middle of a segment's records."""

    def injure(data: Path, _: Path) -> None:
        path = segment(data, which)
        (data / "log" / (name or segment_path(path.parent, int(path.stem) + record_at(path)).name)).write_bytes(content)

    return injure


def _stale(which: int) -> Callable[[Path, Path], None]:
    """What a failed roll of an earlier version left: a segment with a header only, where the one before it goes on."""

    def injure(data: Path, _: Path) -> None:
        path = segment(data, which)
        base = int(path.stem) + record_at(path)
        header = read_header(path.read_bytes()[:HEADER_BYTES])
        assert header is not None
        stale = segment_path(path.parent, base)
        stale.write_bytes(segment_header(base, header.identity, header.created_ms))
        os.truncate(stale, 65_536)

    return injure


def _is(do: Callable[[Path, Path], object], verdict: CheckResult, *kinds: str) -> Injury:
    return Injury(do, frozenset(kinds), verdict)


LOSS, MENDS, INTACT = CheckResult.LOSS, CheckResult.MENDS_ITSELF, CheckResult.INTACT

OF_THE_LOG: dict[str, Injury] = {
    "a bit of a magic": _is(_flips_header(1, 2), MENDS, "mended"),
    "a bit of a base": _is(_flips_header(1, 17), MENDS, "mended"),
    "a bit of an identity": _is(_flips_header(0, 45), MENDS, "mended"),
    "a bit of the newest header": _is(_flips_header(-1, 62), MENDS, "mended"),
    "a zeroed header": _is(lambda data, _: zero(segment(data, 0), 0, 64), MENDS, "mended"),
    "a bit of a length": _is(_flips(1, 1), LOSS, "damaged"),
    "a bit of a checksum": _is(_flips(0, 5), LOSS, "damaged"),
    "a bit of a log_offset": _is(_flips(1, 9), LOSS, "damaged"),
    "a bit of a timestamp": _is(_flips(1, 17), LOSS, "damaged"),
    "a bit of a type": _is(_flips(1, 24), LOSS, "damaged"),
    "a bit of a topic": _is(_flips(0, 41), LOSS, "damaged"),
    "a bit of a payload": _is(_flips(1, 150), LOSS, "damaged"),
    "a bit of the newest segment": _is(_flips(-1, 150), LOSS, "damaged"),
    "a bit of a batch's header": _is(_flips_batch, LOSS, "damaged"),
    "a bit in a batch": _is(_flips_in_batch, LOSS, "damaged"),
    "a zeroed sector": _is(lambda data, _: zero(segment(data, 1), 20_480, 512), LOSS, "damaged"),
    "a zeroed page": _is(lambda data, _: zero(segment(data, -1), 4096, 4096), LOSS, "damaged"),
    "a zeroed segment": _is(
        lambda data, _: zero(segment(data, 1), 0, segment(data, 1).stat().st_size), LOSS, "missing", "mended"
    ),
    "a segment cut in a record": _is(lambda data, _: os.truncate(segment(data, 1), 30_001), LOSS, "damaged"),
    "a segment cut behind its header": _is(lambda data, _: os.truncate(segment(data, 1), 64), LOSS, "missing"),
    "an empty segment": _is(lambda data, _: os.truncate(segment(data, 1), 0), LOSS, "missing", "mended"),
    "the newest segment cut": _is(lambda data, _: os.truncate(segment(data, -1), 9_001), LOSS, "damaged"),
    "the first segment deleted": _is(lambda data, _: segment(data, 0).unlink(), LOSS, "missing"),
    "a segment deleted": _is(lambda data, _: segment(data, 1).unlink(), LOSS, "missing"),
    "the newest segment deleted": _is(lambda data, _: segment(data, -1).unlink(), LOSS, "missing"),
    "all segments deleted": _is(_all_segments, LOSS, "missing"),
    "swapped segments": _is(_swap, MENDS, "mended"),
    "a doubled segment": _is(
        lambda data, _: shutil.copy(segment(data, 0), data / "log" / f"{int(segment(data, 1).stem) + 8:020}.log"),
        *(MENDS, "foreign"),
    ),
    "a segment of another store in place of one": _is(
        lambda data, other: shutil.copy(segment(other, 0), segment(data, 0)), LOSS, "foreign", "missing"
    ),
    "a segment of another store in addition": _is(
        lambda data, other: shutil.copy(segment(other, 1), data / "log" / segment(other, 1).name), MENDS, "foreign"
    ),
    **{
        f"a stray file of {what} in {where}": _is(_stray(which, content), MENDS, "foreign")
        for what, content in {"nothing": b"", "zeros": bytes(8_192), "junk": b"junk" * 5_000}.items()
        for where, which in {"the first segment": 0, "a segment": 1, "the newest segment": -1}.items()
    },
    "a stale segment in a segment": _is(_stale(1), MENDS, "foreign"),
    "a stale segment in the newest segment": _is(_stale(-1), MENDS, "foreign"),
    "a stray file behind the log": _is(_stray(-1, b"junk", f"{1 << 50:020}.log"), INTACT, "torn"),
    "a file with a name of nines": _is(_stray(-1, b"junk", "9" * 20 + ".log"), INTACT),
    "a file whose name is no log_offset": _is(_stray(-1, b"junk", f"{4_097:020}.log"), INTACT),
    "marks deleted": _is(lambda data, _: (data / "log" / MARKS).unlink(), MENDS, "mended"),
    "marks zeroed": _is(lambda data, _: zero(data / "log" / MARKS, 0, 576), MENDS, "mended"),
    "a bit of both marks": _is(_both_slots, MENDS, "mended"),
    "a bit of one mark": _is(lambda data, _: flip(data / "log" / MARKS, 20), INTACT),
    "marks of another store": _is(
        lambda data, other: shutil.copy(other / "log" / MARKS, data / "log" / MARKS), MENDS, "mended"
    ),
}

OF_THE_INDEX: dict[str, Injury] = {
    "a table's bytes": _is(_index_file("*.sst", _flip_all), MENDS, "index"),
    "a table deleted": _is(_index_file("*.sst", Path.unlink), MENDS, "index"),
    "a table of nothing": _is(_index_file("*.sst", lambda path: path.write_bytes(b"")), MENDS, "index"),
    "the MANIFEST deleted": _is(_index_file("MANIFEST-*", Path.unlink), MENDS, "index"),
    "a MANIFEST of junk": _is(_index_file("MANIFEST-*", _junk), MENDS, "index"),
    "CURRENT deleted": _is(_index_file("CURRENT", Path.unlink), MENDS, "index"),
    "a CURRENT of junk": _is(_index_file("CURRENT", _junk), MENDS, "index"),
    "OPTIONS of junk": _is(_index_file("OPTIONS-*", _junk), INTACT),
    "OPTIONS deleted": _is(_index_file("OPTIONS-*", Path.unlink), INTACT),
    "IDENTITY deleted": _is(_index_file("IDENTITY", Path.unlink), INTACT),
    "an IDENTITY of junk": _is(_index_file("IDENTITY", _junk), INTACT),
    "the index deleted": _is(lambda data, _: shutil.rmtree(data / "index"), MENDS, "index"),
    "the index of another store": _is(_other_index, MENDS, "index"),
}

INJURIES = OF_THE_LOG | OF_THE_INDEX
