"""Payloads as text, JSON and bytes: exact, bounded, and without anything that changes the look of a page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.console.views import payloads
from penstock.console.views.json_numbers import number_at, path_of
from penstock.console.views.payloads import PayloadForm
from penstock.console.views.visible import visible


@pytest.mark.parametrize(
    ("payload", "form"),
    [(b'{"a": 1}', "json"), (b"[1]", "json"), (b"21.5", "text"), (b"NaN", "text"), (b"\xff\x00", "hex"), (b"", "text")],
)
def test_the_form_that_suits(payload: bytes, form: str) -> None:
    assert payloads.form_of(payload) == PayloadForm(form)


def test_numbers_are_shown_as_they_were_written() -> None:
    tree = payloads.json_tree(b'{"a": 1.10, "b": %s}' % (b"9" * 100))
    assert tree is not None
    assert [part.text for part in tree.parts] == ["1.10", "9" * 100]


def test_numbers_have_pointers() -> None:
    payload = b'{"a/b": {"~": [true, 2.5]}, "s": "3", "n": null, "big": 1e999}'
    assert payloads.numeric_fields(payload) == ["/a~1b/~0/1"]
    assert number_at(payload, path_of("/a~1b/~0/1")) == 2.5
    assert number_at(payload, path_of("/s")) is None
    assert number_at(payload, path_of("/a~1b/~0/-1")) is None
    assert payloads.numeric_fields(b"21.5") == [""]
    assert number_at(b"21.5", path_of("")) == 21.5


@pytest.mark.parametrize("payload", [b"[" * 100_000, b"[" * 900 + b"]" * 900, b'{"a":' * 50_000, b"[1," * 300_000])
def test_deep_and_long_json_is_bounded(payload: bytes) -> None:
    payloads.json_tree(payload)
    payloads.numeric_fields(payload)
    assert len(payloads.preview(payload)) <= payloads.PREVIEW_CHARACTERS


def test_no_more_values_are_shown_than_the_bound() -> None:
    tree = payloads.json_tree(b"[%s]" % b",".join([b"1"] * 10_000))
    assert tree is not None
    assert (len(tree.parts), tree.left_out) == (payloads.MOST_NODES - 1, 10_000 - payloads.MOST_NODES + 1)


@given(st.binary(max_size=2_000))
def test_any_payload_is_shown_without_controls(payload: bytes) -> None:
    for text in (payloads.preview(payload), payloads.whole_text(payload)):
        assert visible(text, "\t\n") == text
    assert "".join(line.bytes_text.replace(" ", "") for line in payloads.hex_lines(payload)) == payload.hex()


@given(st.text())
def test_visible_text_stays_unchanged(text: str) -> None:
    assert visible(visible(text)) == visible(text)


def test_marks_of_direction_are_named() -> None:
    assert visible("a\u202eb\u200b\x1b[0m") == "a⟨U+202E⟩b⟨U+200B⟩⟨U+001B⟩[0m"
