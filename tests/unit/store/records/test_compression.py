"""Compressed payloads: what of them gets into the log, and what becomes of them for those who read."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gateway.delivery.expander import MOST_PENDING, Expander
from lightqueue.groups.dead_letters import append_dead_letter
from penstock.sdk.compression import NEVER, Compression, as_stored, chosen
from penstock.sdk.errors import Unreadable
from penstock.sdk.message import Batch, Message
from penstock.sdk.message_id import StorePlace
from penstock.sdk.outgoing import outgoing
from store.records._records import RecordBatch, records_from
from store.records.compression import PIECE_BYTES, BadFrame, compressed, plain, stated_bytes
from store.records.record_bytes import walk
from store.records.records import RecordFlag, RecordType, read_records
from store.state.group_settings import GroupSettings
from store.state.group_states import GroupState
from tests.support.stores import KEPT_BYTES, Stores, fill, publish_delayed, read_all, run_upkeep

MESSAGE = bytes((RecordType.MESSAGE,))
TEXT = b"the same again and again. " * 400
PLACE = StorePlace.of("10.0.0.1", 7700)


def records(*payloads: bytes) -> bytes:
    """Messages to t/0, t/1, ... whose payloads are frames where they look like one, each at another log_offset."""
    batch = RecordBatch()
    for number, payload in enumerate(payloads):
        is_frame = payload.startswith(zstandard.FRAME_HEADER)
        flags = RecordFlag.COMPRESSED | 1 if is_frame else 1
        batch.append(RecordType.MESSAGE, payload, topic=b"t/%d" % number, attributes=b"\3\1\0k", flags=flags)
    data, at = bytearray(bytes(batch)), 0
    while at < len(data):
        data[at + 8 : at + 16] = at.to_bytes(8, "little")
        at += int.from_bytes(data[at : at + 4], "little")
    return bytes(data)


def void(_: object) -> None:
    """Nothing is left for a later turn."""


def fault(frame: bytes, most_plain_bytes: int = 1 << 24) -> str:
    """Why a store does not take a message with this payload as a compressed one."""
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, frame, topic=b"t", flags=int(RecordFlag.COMPRESSED))
    try:
        RecordBatch().extend_checked(bytes(batch), MESSAGE, batch.size, 0, most_plain_bytes)
    except ValueError as error:
        return str(error).partition(": ")[2]
    return ""


def without_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


@given(st.binary(min_size=1, max_size=300), st.integers(1, 2_000), st.sampled_from((1, 3, 19)))
def test_compressed_payloads_are_accepted_up_to_the_limit(data: bytes, times: int, level: int) -> None:
    payload = data * times
    frame = compressed(payload, level)
    assert plain(frame) == payload
    assert stated_bytes(frame) == len(payload)
    assert fault(frame, len(payload)) == ""
    assert fault(frame, len(payload) - 1) == "compressed payload that states more than store.max_plain_bytes"


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b"", "compressed payload that is no zstd frame"),
        (b"21.5 C and so on", "compressed payload that is no zstd frame"),
        (compressed(TEXT, 3)[:5], "compressed payload that is no zstd frame"),
        (compressed(TEXT, 3)[:6], "compressed payload that is no zstd frame"),
        (without_size(TEXT), "compressed payload that does not state its size"),
        (compressed(b"", 3), "compressed payload of nothing"),
        (b"\x28\xb5\x2f\xfd\x21\x05\x00", "compressed payload that needs a dictionary"),
        (b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8, "compressed payload that states more than store.max_plain_bytes"),
    ],
)
def test_invalid_compressed_payloads_are_refused(frame: bytes, expected: str) -> None:
    assert fault(frame) == expected


def test_readers_get_what_was_published() -> None:
    frame = compressed(TEXT, 3)
    found = Expander(void).as_published(records_from(records(b"short", frame, b"tail", frame), 7))
    assert [found[number][9] for number in range(4)] == [b"short", TEXT, b"tail", TEXT]
    assert [(found[number][4], found[number][5], found[number][7]) for number in range(4)] == [
        (1, b"t/%d" % number, b"\3\1\0k") for number in range(4)
    ]
    assert (found.first, found.next) == (7, 11)
    one = Expander(void).as_published(records_from(records(b"short", frame, b"tail"), 7), start=1, count=1)
    assert (len(one), one[0][9]) == (1, TEXT)


def test_records_without_a_compressed_one_are_passed_on_as_they_are() -> None:
    found = records_from(records(b"1", b"2", compressed(TEXT, 3)), 0)
    assert Expander(void).as_published(found, start=0, count=2) is found


def test_a_range_ends_once_it_has_grown_large() -> None:
    frame = compressed(bytes(700_000), 3)
    found = Expander(void).as_published(records_from(records(frame, frame, frame), 3))
    assert (len(found), found.first, found.next) == (2, 3, 5)


def test_a_payload_that_is_damaged_stays_as_it_is() -> None:
    frame = compressed(random.Random(1).randbytes(500) * 20, 3)
    for bad in (frame[:-3], frame[:-3] + b"abc", frame + b"more"):
        assert fault(bad) == ""  # the store looks at the beginning alone
        with pytest.raises(BadFrame):
            plain(bad)
        found = Expander(void).as_published(records_from(records(bad, frame), 0))
        assert [found[0][4] & RecordFlag.COMPRESSED, found[1][4] & RecordFlag.COMPRESSED] == [RecordFlag.COMPRESSED, 0]
        message = Message(next(iter(walk(records(bad)))), None, PLACE)
        with pytest.raises(Unreadable, match="cannot be decompressed"):
            _ = message.payload


class Waiting:
    """A session, and how often it was told to go on."""

    def __init__(self) -> None:
        self.link = self
        self.told = 0

    def accept_more(self) -> None:
        self.told += 1


def stepped(expander: Callable[[Callable[..., object]], Expander] = Expander) -> tuple[Expander, deque[Any]]:
    """An Expander, and what it leaves for later turns."""
    later: deque[Any] = deque()
    return expander(later.append), later


def run_all(later: deque[Any]) -> int:
    """How many turns that took."""
    count = 0
    while later:
        later.popleft()()
        count += 1
    return count


def test_a_large_payload_is_decompressed_in_steps_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notify.steps.STEP_S", 0.0)  # a piece each turn
    expander, later = stepped()
    large = random.Random(5).randbytes(100) * 20_000
    found = records_from(records(b"short", compressed(large, 3), b"tail"), 7)
    first, second = Waiting(), Waiting()
    before = expander.for_session(first, found)  # type: ignore[arg-type]
    assert before is not None
    assert (before.first, before.next, before[0][9]) == (7, 8, b"short")
    assert expander.for_session(first, found, start=1) is None  # type: ignore[arg-type]
    assert expander.for_session(second, found, start=1) is None  # type: ignore[arg-type]
    assert run_all(later) >= len(large) // PIECE_BYTES
    assert (first.told, second.told) == (1, 1)
    for session in (first, second):
        whole = expander.for_session(session, found, start=1)  # type: ignore[arg-type]
        assert whole is not None
        assert len(whole) == 1  # the range ends behind so much
        assert whole[0][9] == large
        assert (whole[0][4], whole[0][5], whole[0][7]) == (1, b"t/1", b"\3\1\0k")
    assert not later


def test_session_does_not_wait_twice_for_a_payload_that_was_pushed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notify.steps.STEP_S", 0.0)
    expander, later = stepped(lambda soon: Expander(soon, most_bytes=1))
    frames = [compressed(bytes(300_000 + number), 3) for number in range(3)]
    found = records_from(records(*frames), 0)
    session = Waiting()
    for place in range(2):
        assert expander.for_session(session, found, 1, place, 1) is None  # type: ignore[arg-type]
    run_all(later)  # the second one pushes the first one out
    whole = expander.for_session(session, found, 1, 0, 1)  # type: ignore[arg-type]
    assert whole is not None
    assert len(whole[0][9]) == 300_000


def test_large_payloads_that_are_damaged_are_found_out_in_steps() -> None:
    frame = compressed(random.Random(1).randbytes(500_000), 3)
    other = compressed(bytes(400_000), 3)
    for bad in (frame[:-3], frame[:-3] + b"abc", frame + b"more", frame + other):
        expander, later = stepped()
        found = records_from(records(bad), 0)
        session = Waiting()
        assert expander.for_session(session, found) is None  # type: ignore[arg-type]
        run_all(later)
        assert session.told == 1
        whole = expander.for_session(session, found)  # type: ignore[arg-type]
        assert whole is not None
        is_intact = bad == frame[:-3] + b"abc"  # noise is stored as it is, and has no checksum
        assert bool(whole[0][4] & RecordFlag.COMPRESSED) is not is_intact


def test_no_more_than_some_payloads_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notify.steps.STEP_S", 0.0)
    expander, later = stepped()
    frames = [compressed(bytes(300_000 + number), 3) for number in range(MOST_PENDING + 1)]
    found = records_from(records(*frames), 0)
    sessions = [Waiting() for _ in frames]
    at_once = [
        expander.for_session(session, found, 1, number, 1)  # type: ignore[arg-type]
        for number, session in enumerate(sessions)
    ]
    assert [each is None for each in at_once] == [True] * MOST_PENDING + [False]
    run_all(later)
    assert [session.told for session in sessions] == [1] * MOST_PENDING + [0]


def test_a_frame_gives_no_more_than_it_states() -> None:
    bomb = bytearray(compressed(bytes(1 << 20), 3))
    assert bomb[4] >> 6 == 2  # its size has four bytes
    at = 5 if bomb[4] & 32 else 6
    bomb[at : at + 4] = (4_096).to_bytes(4, "little")
    assert fault(bytes(bomb), 4_096) == ""
    with pytest.raises(BadFrame):
        plain(bytes(bomb))


def test_the_client_compresses_above_a_bound_and_where_it_saves_something() -> None:
    settings = Compression()
    assert as_stored(TEXT[:4096], settings) == (TEXT[:4096], 0)
    frame, flag = as_stored(TEXT[:4097], settings)
    assert (plain(frame), flag) == (TEXT[:4097], RecordFlag.COMPRESSED)
    noise = random.Random(2).randbytes(10_000)
    assert as_stored(noise, settings) == (noise, 0)
    assert as_stored(TEXT, NEVER) == (TEXT, 0)
    assert chosen(False) == NEVER
    assert chosen(True) == Compression()
    assert len(as_stored(TEXT, Compression(level=19))[0]) <= len(as_stored(TEXT, Compression(level=1))[0])


@pytest.mark.parametrize(
    ("compress", "size", "is_compressed"),
    [(None, 4_096, False), (None, 4_097, True), (True, 100, True), (False, 8_000, False)],
)
def test_each_message_may_say_otherwise(compress: bool | None, size: int, is_compressed: bool) -> None:
    message = outgoing("t", bytes(size), False, Compression(), compress=compress)
    (record,) = read_records(memoryview(message.record))
    assert bool(record.flags & RecordFlag.COMPRESSED) is is_compressed
    batch = Batch(memoryview(message.record), 1, 0, PLACE)
    assert [each.payload for each in batch] == list(batch.payloads()) == [bytes(size)]


@pytest.mark.parametrize(("above", "level"), [(-1, 3), (0, 0), (0, 23)])
def test_settings_out_of_range_are_refused(above: int, level: int) -> None:
    with pytest.raises(ValueError, match="level 1 to 22"):
        Compression(above, level)


PROGRAM = """
import sys
sys.modules["zstandard"] = None  # as if it was not installed
from penstock.sdk.compression import NEVER, Compression, as_published, chosen
from penstock.sdk.errors import ClientError
assert chosen(True) == NEVER
for attempt in (lambda: chosen(Compression()), lambda: as_published(b"x")):
    try:
        attempt()
    except ClientError as error:
        print(error)
"""


def test_without_the_library_the_client_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=os.environ, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("pip install 'zstandard>=" in line for line in lines)


def test_a_message_that_is_appended_again_is_still_compressed(tmp_path: Path) -> None:
    """A retained one that retention carries, a delayed one at its time, a dead letter, which may lose its payload."""
    stores = Stores(tmp_path / "data", retention_bytes=KEPT_BYTES)
    store = stores()
    frame = compressed(TEXT, 3)
    flags = int(RecordFlag.COMPRESSED)
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, frame, topic=b"kept", flags=flags | RecordFlag.RETAIN)
    store.append(batch)
    publish_delayed(store, "late", frame, due_ms=store.now_ms() - 1, flags=flags)
    while store.tick():
        pass
    (late,) = read_all(store, store.queues.topic_queue(b"late"))
    assert (plain(late.payload), late.flags) == (TEXT, flags)
    fill(store, 10)
    run_upkeep(store)
    log_offset = store.retained.get(b"kept")
    assert log_offset is not None
    assert log_offset >= store.log.first
    kept = store.record(log_offset)
    assert (plain(kept.payload), kept.flags) == (TEXT, flags | RecordFlag.RETAIN | RecordFlag.CARRIED)

    state = GroupState("billing", "late", GroupSettings(), [0])
    for most_bytes, payload, flag in ((1 << 20, frame, flags), (100, b"", 0)):
        batch = RecordBatch()
        assert append_dead_letter(batch, state, late, "no such order", 3, store.now_ms(), most_bytes)
        (dead,) = read_records(memoryview(bytes(batch)))
        assert (dead.payload, dead.flags) == (payload, flag)
    stores.close()
