"""Batches in which messages get another context: the same records, and the places of each."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.mqtt.properties import Properties, encode_properties
from penstock.tracing.batches import changed, find_traced
from store.records._records import RecordBatch, walk
from store.records.records import RecordType
from store.records.trace_context import NEEDLE, TraceContext, find_context
from store.state.changes import SessionEnded, encode_change

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = GOOD[:-1] + "0"
KINDS = ["plain", "sampled", "not sampled", "bad", "change", "in payload"]
NEW = TraceContext("1" * 32, "2" * 16, 1)


def batch_of(kinds: list[str]) -> RecordBatch:
    batch = RecordBatch()
    for number, kind in enumerate(kinds):
        if kind == "change":
            record_type, payload = encode_change(SessionEnded("c"))
            batch.append(record_type, payload)
            continue
        value = {"sampled": GOOD, "not sampled": NOT_SAMPLED, "bad": "x"}.get(kind)
        pairs = (("a", "b"), *([("traceparent", value)] if value is not None else []))
        payload = NEEDLE + b"\0\x37" + GOOD.encode() if kind == "in payload" else b"x" * number
        batch.append(
            RecordType.MESSAGE,
            payload,
            topic=b"t/%d" % number,
            client_id=b"c" * (number % 9),
            attributes=b"\x03\x01\x00k" if number % 2 else b"",
            properties=encode_properties(Properties(user_properties=pairs)),
            flags=number % 3,
        )
    return batch


@given(st.lists(st.sampled_from(KINDS), max_size=12), st.sets(st.integers(0, 12)))
def test_the_right_messages_get_the_context_and_nothing_else_changes(kinds: list[str], chosen: set[int]) -> None:
    data = bytes(batch_of(kinds))
    found = list(find_traced(data, chosen=chosen))
    messages = [kind for kind in kinds if kind != "change"]
    expected = [
        number
        for number, kind in enumerate(messages)
        if kind == "sampled" or (number in chosen and kind in ("plain", "in payload"))
    ]
    assert [message.number for message in found] == expected
    made = changed(data, [(message, NEW) for message in found])
    before, after = list(walk(data)), list(walk(bytes(made.batch)))
    assert len(before) == len(after)
    number = 0
    for old, new in zip(before, after, strict=True):
        is_message = old[3] == RecordType.MESSAGE
        if is_message and number in expected:
            assert find_context(new[8]) == NEW
            assert new[3:8] == old[3:8]
            assert new[9] == old[9]
        else:
            assert new == old
        number += is_message


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=12), st.sets(st.integers(0, 12)), st.integers(1, 4))
def test_places_are_told_of_the_old_batch(kinds: list[str], chosen: set[int], pieces: int) -> None:
    """Also where the new batch is appended in several pieces."""
    data = bytes(batch_of(kinds))
    made = changed(data, [(message, NEW) for message in find_traced(data, chosen=chosen)])
    starts_before, starts_after = record_starts(data), record_starts(bytes(made.batch))
    told: dict[int, int] = {}

    def placed(first: int, size: int, log_offset: int) -> None:
        for start in starts_before:
            if first <= start < first + size:
                told[start] = log_offset + start - first

    tell = made.placed(placed)
    edges = sorted({0, *starts_after[:: max(1, len(starts_after) // pieces)], made.batch.size})
    for first, end in pairwise(edges):
        tell(first, end - first, log_offset_of(first))
    pieces_of = {start: max(edge for edge in edges if edge <= start) for start in starts_after}
    assert told == {
        old: log_offset_of(pieces_of[new]) + new - pieces_of[new]
        for old, new in zip(starts_before, starts_after, strict=True)
    }
    unknown: list[int] = []
    made.placed(lambda first, size, log_offset: unknown.append(log_offset))(0, made.batch.size, -1)
    assert set(unknown) == {-1}


def log_offset_of(piece: int) -> int:
    """Where a piece of a batch was appended that begins there: others' records stand between them."""
    return 1_000_000 + 100 * piece


def record_starts(data: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += int.from_bytes(data[at : at + 4], "little")
    return starts


def test_a_record_batch_is_opened() -> None:
    batch = RecordBatch()
    batch.begin_atomic()
    for number in range(3):
        properties = encode_properties(Properties(user_properties=(("traceparent", GOOD),)))
        batch.append(RecordType.MESSAGE, b"%d" % number, topic=b"t", properties=properties)
    batch.end_atomic()
    assert [message.number for message in find_traced(bytes(batch))] == [0, 1, 2]


def test_no_more_messages_are_looked_into_than_allowed() -> None:
    left = [True, True, False]
    found = list(find_traced(bytes(batch_of(["sampled", "bad", "sampled", "sampled"])), lambda: left.pop(0)))
    assert [message.number for message in found] == [0]
    assert left == []
