"""Handles of deliveries: they say where a message is, to the one for whom they were made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.console.store.handles import HANDLE_CHARACTERS, BadHandle, DeliveryPlace, ForeignHandle, HandleSeal

LOG, ANN, GROUP = b"L" * 16, ("", "ann"), ("billing", "line/#")
NUMBERS = st.integers(0, (1 << 63) - 1)


@given(NUMBERS, NUMBERS)
def test_a_handle_says_where_its_message_is(serial: int, queue_offset: int) -> None:
    place = DeliveryPlace(serial, queue_offset)
    handle = HandleSeal(LOG, ANN, GROUP).handle(place)
    assert len(handle) == HANDLE_CHARACTERS
    assert HandleSeal(LOG, ANN, GROUP).place(handle) == place  # as another process finds it


@pytest.mark.parametrize(
    "other",
    [
        HandleSeal(b"M" * 16, ANN, GROUP),
        HandleSeal(LOG, ("", "bob"), GROUP),
        HandleSeal(LOG, ("acme", "ann"), GROUP),
        HandleSeal(LOG, ("acme", ""), GROUP),
        HandleSeal(LOG, ANN, ("other", "line/#")),
        HandleSeal(LOG, ANN, ("billing", "line/1")),
        HandleSeal(LOG, ANN, ("billin", "gline/#")),
    ],
)
def test_it_is_for_one_log_user_and_group(other: HandleSeal) -> None:
    handle = HandleSeal(LOG, ANN, GROUP).handle(DeliveryPlace(1, 2))
    with pytest.raises(ForeignHandle):
        other.place(handle)


@given(st.integers(0, HANDLE_CHARACTERS - 2), st.sampled_from("AQgw-_09"))
def test_a_changed_handle_is_refused(at: int, letter: str) -> None:
    seal = HandleSeal(LOG, ANN, GROUP)
    handle = seal.handle(DeliveryPlace(7, 9))
    changed = handle[:at] + letter + handle[at + 1 :]
    if changed != handle:
        with pytest.raises((BadHandle, ForeignHandle)):
            seal.place(changed)


@pytest.mark.parametrize(
    "text", ["", "x", "x" * 38, "x" * 40, "é" * 39, "!" * 39, "\0" * 39, "=" * 39, "A" * 39, "\ud800" * 39]
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(BadHandle):
        HandleSeal(LOG, ANN, GROUP).place(text)


@given(st.text(max_size=60))
def test_any_text_is_a_handle_or_refused(text: str) -> None:
    with pytest.raises((BadHandle, ForeignHandle)):
        HandleSeal(LOG, ANN, GROUP).place(text)
