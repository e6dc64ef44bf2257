"""Frames between a flow and its worker, however the socket cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flows.functions.frames import (
    LENGTH_BYTES,
    MOST_FRAME_BYTES,
    CallAnswer,
    FrameCutter,
    Output,
    decode_answer,
    framed,
)

ANSWERS = [
    CallAnswer(number, [Output(f"a/{number}", bytes(number), "", {}, "")] * (number % 3)) for number in range(30)
]
DATA = b"".join(map(framed, ANSWERS))


@given(st.lists(st.integers(0, len(DATA))))
def test_frames_are_whole_wherever_they_are_cut(cuts: list[int]) -> None:
    cutter, ends = FrameCutter(), sorted({*cuts, len(DATA)})
    pieces = [DATA[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert [decode_answer(frame) for piece in pieces for frame in cutter.frames(piece)] == ANSWERS


def test_a_frame_that_is_too_large_is_an_error_behind_those_before_it() -> None:
    cutter, found = FrameCutter(), []
    with pytest.raises(OverflowError):
        found += [*cutter.frames(framed(ANSWERS[1]) + (MOST_FRAME_BYTES + 1).to_bytes(LENGTH_BYTES, "big"))]
    assert found == []
    good = FrameCutter().frames(framed(ANSWERS[1]) + (MOST_FRAME_BYTES + 1).to_bytes(LENGTH_BYTES, "big"))
    assert decode_answer(next(good)) == ANSWERS[1]
