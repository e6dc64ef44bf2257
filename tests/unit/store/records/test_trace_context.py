"""W3C Trace Context in a message's properties: what is valid, found and replaced."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mqtt.codec_primitives import encode_varint
from gateway.mqtt.properties import PacketContext, Properties, decode_properties, encode_properties
from store.records.trace_context import (
    MOST_PROPERTIES,
    MOST_VALUE_BYTES,
    TraceContext,
    find_context,
    parse_traceparent,
    with_context,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"
CONTEXT = TraceContext(TRACE, SPAN, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD, CONTEXT),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN, 0)),
        (f"00-{TRACE}-{SPAN}-ff", TraceContext(TRACE, SPAN, 255)),  # unknown flags are no fault
        (f"00-{TRACE}-{SPAN}-03", TraceContext(TRACE, SPAN, 3)),  # level 2: the trace-id is random
        (f"cc-{TRACE}-{SPAN}-01", CONTEXT),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", CONTEXT),
        (f"cc-{TRACE}-{SPAN}-01.what", None),
        (f"00-{TRACE}-{SPAN}-01-", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (GOOD.upper(), None),
        (GOOD[:-1], None),
        (GOOD.replace("-", "_"), None),
        (" " + GOOD, None),
        (GOOD + "\n", None),
        ("", None),
        (f"cc-{TRACE}-{SPAN}-01-" + "x" * MOST_VALUE_BYTES, None),
    ],
)
def test_valid_and_invalid_traceparents(text: str, expected: TraceContext | None) -> None:
    assert parse_traceparent(text.encode()) == expected


@given(st.binary(max_size=80))
def test_anything_is_one_or_none(data: bytes) -> None:
    found = parse_traceparent(data)
    assert found is None or re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", found.traceparent)


def properties(*pairs: tuple[str, str], **more: object) -> bytes:
    return encode_properties(Properties(user_properties=pairs, **more))  # type: ignore[arg-type]


def test_only_one_traceparent_counts() -> None:
    assert find_context(properties(("a", "b"), ("traceparent", GOOD), content_type="x")) == CONTEXT
    assert find_context(properties(("traceparent", GOOD), ("traceparent", GOOD))) is None
    assert find_context(properties(("Traceparent", GOOD))) is None
    assert find_context(properties(("a", "traceparent"), ("a", GOOD))) is None
    assert find_context(b"") is None


def test_a_tracestate_comes_along_unless_it_is_too_long() -> None:
    found = find_context(properties(("tracestate", "a=1"), ("traceparent", GOOD), ("tracestate", "b=2")))
    assert found == CONTEXT._replace(tracestate="a=1,b=2")
    assert find_context(properties(("traceparent", GOOD), ("tracestate", "a=" + "1" * MOST_VALUE_BYTES))) == CONTEXT


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
NAMES = st.one_of(TEXT, st.sampled_from(["traceparent", "tracestate"]))
VALUES = st.one_of(TEXT, st.sampled_from([GOOD, GOOD[:-1]]))


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5), st.booleans(), st.none() | TEXT, st.none() | st.binary())
def test_replacing_it_changes_nothing_else(
    pairs: list[tuple[str, str]], expires: bool, content_type: str | None, correlation_data: bytes | None
) -> None:
    before = Properties(
        user_properties=tuple(pairs),
        content_type=content_type,
        correlation_data=correlation_data,
        message_expiry_interval=60 if expires else None,
    )
    if sum(name == "traceparent" for name, _ in pairs) > 1:
        return
    data = encode_properties(before)
    context = TraceContext("1" * 32, "2" * 16, 1)
    made = with_context(data, context)
    expected = [(name, context.traceparent if name == "traceparent" else value) for name, value in pairs]
    if not any(name == "traceparent" for name, _ in pairs):
        expected.append(("traceparent", context.traceparent))
    assert decoded(made) == (expected, content_type, correlation_data, before.message_expiry_interval)
    found = find_context(made)
    assert found is not None
    assert found.traceparent == context.traceparent


def decoded(data: bytes) -> tuple[object, ...]:
    found, _ = decode_properties(encode_varint(len(data)) + data, 0, PacketContext.PUBLISH)
    return list(found.user_properties), found.content_type, found.correlation_data, found.message_expiry_interval


def test_bytes_that_are_no_properties_take_no_longer() -> None:
    """A client of the store may send any; the traceparent in them is found or not."""
    hostile = b"\x26\x00\x0btraceparent\x00\x00" + bytes(1 << 20)
    began_s = time.perf_counter()
    assert find_context(hostile) is None
    assert time.perf_counter() - began_s < 0.1
    assert find_context(properties(*[("a", "b")] * MOST_PROPERTIES, ("traceparent", GOOD))) is None
