"""What messages take of an answer, before they are decompressed."""

from __future__ import annotations

import pytest
import zstandard

from penstock.console.views.history import _Newest
from penstock.console.views.messages import MessageFields
from penstock.console.views.payloads import preview_of
from penstock.console.views.sizes import (
    ANSWER_BYTES,
    PAYLOAD_BYTES,
    bounded_payload,
    fitting,
    payload_bytes,
    shown_bytes,
)
from penstock.sdk.errors import Unreadable
from penstock.sdk.link import UNNAMED
from penstock.sdk.message import COMPRESSED, Message, RecordTuple
from store.records.compression import compressed

MIB = 1 << 20


def record(payload: bytes, flags: int = 0, log_offset: int = 0) -> RecordTuple:
    return (log_offset, 0, 0, 1, flags, b"t", b"", b"", b"", payload)


def packed(payload: bytes) -> RecordTuple:
    return record(compressed(payload, 3), COMPRESSED)


def test_a_compressed_payload_takes_what_it_states() -> None:
    assert payload_bytes(record(b"abc")) == 3
    assert payload_bytes(packed(b"x" * MIB)) == MIB
    assert payload_bytes(record(b"no frame", COMPRESSED)) == 8
    assert shown_bytes(packed(b"x" * MIB)) >= MIB
    assert shown_bytes(packed(b"x" * (PAYLOAD_BYTES + 1))) < MIB  # it is not shown


def test_a_bomb_is_not_decompressed() -> None:
    bomb = zstandard.ZstdCompressor().compress(b"x" * (PAYLOAD_BYTES + 1))
    with pytest.raises(Unreadable, match=str(PAYLOAD_BYTES + 1)):
        bounded_payload(Message(record(bomb, COMPRESSED), None, UNNAMED))
    assert bounded_payload(Message(record(b"x" * (PAYLOAD_BYTES + 1)), None, UNNAMED))
    assert preview_of(Message(record(bomb, COMPRESSED), None, UNNAMED)).startswith("xxx")


def test_a_preview_of_a_compressed_payload_is_that_of_the_payload() -> None:
    for text in ("ä" * 100_000, "short", "", "line\nline"):
        whole = Message(record(text.encode()), None, UNNAMED)
        if text:
            assert preview_of(Message(packed(text.encode()), None, UNNAMED)) == preview_of(whole)
    assert preview_of(Message(packed(b"\xff\x00" * 1_000), None, UNNAMED)).startswith("ff 00")
    assert preview_of(Message(record(b"no frame", COMPRESSED), None, UNNAMED)).startswith("not readable")


def test_number_of_records_that_fit_into_an_answer() -> None:
    records = [record(b"x" * 100)] * 3
    each = shown_bytes(records[0])
    assert [fitting(records, number * each) for number in range(5)] == [0, 1, 2, 3, 3]
    assert fitting(records, -1) == 0


def test_the_newest_messages_have_room_in_an_answer() -> None:
    newest = _Newest(5)
    messages: list[MessageFields] = [(record(b"x" * MIB, log_offset=number), number) for number in range(20)]
    newest.add(messages)
    part, used_bytes = newest.part(ANSWER_BYTES, at_least_one=True)
    assert [offset for _, offset in part] == [17, 18, 19]
    assert used_bytes <= ANSWER_BYTES
    assert newest.count == 20
    assert [offset for _, offset in newest.part(0, at_least_one=True)[0]] == [19]
    assert newest.part(0, at_least_one=False) == ([], 0)
    small = _Newest(5)
    small.add([(record(b"x", log_offset=number), number) for number in range(20)])
    assert [offset for _, offset in small.part(ANSWER_BYTES, at_least_one=True)[0]] == [15, 16, 17, 18, 19]
