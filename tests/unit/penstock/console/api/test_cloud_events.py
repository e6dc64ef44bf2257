"""CloudEvents as the HTTP binding and the JSON format have them, and the messages that they become."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.console.api.cloud_events import MOST_ATTRIBUTES, event_in_headers, event_in_json, events_in_batch
from penstock.console.errors import Problem
from penstock.console.store.publishing import payload_of
from penstock.console.store.stored_once import IdentifiedMessage

EVENT = {"specversion": "1.0", "id": "1", "source": "/plants/7", "type": "measured"}


def in_json(members: dict[str, Any], topic: str | None = "t") -> IdentifiedMessage:
    return event_in_json(json.dumps(EVENT | members).encode(), topic)


def in_headers(topic: str | None = "t", /, **attributes: bytes) -> IdentifiedMessage:
    headers = [(f"ce-{name}".encode(), value.encode()) for name, value in EVENT.items()]
    headers += [(b"host", b"x"), *((f"ce-{name}".encode(), value) for name, value in attributes.items())]
    return event_in_headers(headers, b"body", "text/plain", topic)


def properties(event: IdentifiedMessage) -> dict[str, str]:
    return dict(event.message.headers or ())


@pytest.mark.parametrize(
    ("members", "payload", "content_type"),
    [
        ({}, b"", None),
        ({"data": None}, b"", None),
        ({"data": "a"}, b'"a"', "application/json"),
        ({"data": "a", "datacontenttype": "application/vnd.x+JSON; v=1"}, b'"a"', "application/vnd.x+JSON; v=1"),
        ({"data": "<a>ä</a>", "datacontenttype": "text/xml"}, "<a>ä</a>".encode(), "text/xml"),
        ({"data": [1], "datacontenttype": "text/plain"}, b"[1]", "text/plain"),
        ({"data_base64": "AP8="}, b"\x00\xff", None),
        ({"data_base64": "AP8=", "data": None, "datacontenttype": "image/png"}, b"\x00\xff", "image/png"),
        ({"data_base64": ""}, b"", None),
    ],
)
def test_data(members: dict[str, Any], payload: bytes, content_type: str | None) -> None:
    message = in_json(members).message
    assert (payload_of(message), message.content_type) == (payload, content_type)


def test_data_in_json_is_kept_as_it_was_written() -> None:
    data = b'{"celsius" : 21.50, "n": 12345678901234567890, "n": 1e400}'
    body = json.dumps(EVENT).encode()[:-1] + b', "data": ' + data + b" }"
    assert payload_of(event_in_json(body, "t").message) == data


def test_attributes_are_user_properties_by_their_own_names() -> None:
    more = {"time": "2026-01-31T12:00:00.5+01:00", "dataschema": "urn:x", "traceparent": "00-a", "n": -7, "f": False}
    event = in_json({"subject": "a/b", "none": None, **more}, None)
    assert event.message.topic == "a/b"
    assert properties(event) == EVENT | {"subject": "a/b", **more, "n": "-7", "f": "false"}


def test_the_topic_is_that_of_the_query_before_the_subject() -> None:
    assert in_json({"subject": "a/b"}, "c").message.topic == "c"
    assert in_headers(None, subject=b"a%2Fb").message.topic == "a/b"


@pytest.mark.parametrize(
    "subject", [None, "a/+", "#", "$SYS/a", "$dead/a/b", "$a", "x/" * 200, "x" * 65_536, "+" * 60_000]
)
def test_a_subject_that_is_no_topic(subject: str | None) -> None:
    with pytest.raises(Problem) as caught:
        in_json({"subject": subject}, None)
    assert (caught.value.status, caught.value.kind) == (400, "no-topic")
    assert "topic=" in caught.value.remedy
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "members",
    [
        {"id": None},
        {"id": ""},
        {"id": 7},
        {"source": ""},
        {"type": None},
        {"specversion": "0.3"},
        {"specversion": "1.1"},
        {"specversion": 1.0},
        {"specversion": None},
        {"subject": ""},
        {"subject": True},
        {"time": "yesterday"},
        {"time": "2026-01-31T12:00:00"},
        {"time": "2026-02-30T12:00:00Z"},
        {"time": 7},
        {"datacontenttype": 7},
        {"datacontenttype": "a\u0000"},
        {"Name": "x"},
        {"a-b": "x"},
        {"ä": "x"},
        {"": "x"},
        {"ext": 1.5},
        {"ext": 1 << 31},
        {"ext": {"a": 1}},
        {"ext": ["a"]},
        {"ext": "a\u0000"},
        {"ext": "a\u0085"},
        {"ext": "a\ufdd0"},
        {"ext": "a\U0010ffff"},
        {"ext": "\ud800"},
        {"ext": "x" * 65_536},
        {"data": 1, "data_base64": "AA=="},
        {"data_base64": "?"},
        {"data_base64": "AA"},
        {"data_base64": 7},
        {f"a{number}": "x" for number in range(MOST_ATTRIBUTES)},
    ],
    ids=lambda members: json.dumps(members)[:40],
)
def test_invalid_cloud_events_are_refused(members: dict[str, Any]) -> None:
    with pytest.raises(Problem) as caught:
        in_json(members)
    assert (caught.value.status, caught.value.kind) == (400, "bad-event")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"7", b"{", b'{"data": NaN}', b'{"data":' + b"[" * 100_000])
def test_invalid_json_of_cloud_events_is_refused(body: bytes) -> None:
    with pytest.raises(Problem):
        event_in_json(body, "t")
    with pytest.raises(Problem):
        events_in_batch(body[:-1], "t")


# --- headers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        (b"%e2%82%ac%41", "€A"),
        ("Euro €".encode(), "Euro €"),
        (b'"a \\"b\\" %20"', 'a "b"  '),
        (b"100%", "100%"),
        (b"%2520", "%20"),
        (b'"open', '"open'),
    ],
)
def test_header_values(value: bytes, text: str) -> None:
    assert properties(in_headers(ext=value))["ext"] == text


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn"]), min_size=1, max_size=50))
def test_any_text_comes_back_from_a_header(text: str) -> None:
    assert properties(in_headers(ext=quote(text, safe="").encode()))["ext"] == text


@pytest.mark.parametrize("value", [b"%C0%A0", b"%ff", b"\xff", b"%00", b"%ed%a0%80", b""])
def test_header_values_that_no_attribute_has(value: bytes) -> None:
    with pytest.raises(Problem, match="ext"):
        in_headers(ext=value)


@pytest.mark.parametrize("name", ["id", "datacontenttype", "data", "a-b"])
def test_headers_that_no_event_has(name: str) -> None:
    with pytest.raises(Problem):
        in_headers("t", **{name: b"1"})


def test_a_missing_header_is_named() -> None:
    with pytest.raises(Problem, match="no id and no type"):
        event_in_headers([(b"ce-specversion", b"1.0"), (b"ce-source", b"/s")], b"", None, "t")


# --- batches


def test_each_event_of_a_batch_by_itself() -> None:
    body = json.dumps([EVENT, 7, EVENT | {"id": ""}, EVENT | {"subject": "a/b"}]).encode()
    first, number, nameless, last = events_in_batch(body, "t")
    assert isinstance(first, IdentifiedMessage)
    assert isinstance(last, IdentifiedMessage)
    assert isinstance(number, Problem)
    assert isinstance(nameless, Problem)
    assert events_in_batch(b"[]", None) == []


def test_the_same_event_has_one_key_in_each_mode() -> None:
    keys = {in_json({}).message.key, in_json({"data": 1, "type": "x"}).message.key, in_headers().message.key}
    others = {in_json({"id": "2"}).message.key, in_json({"source": "/plants/71", "id": "1"}).message.key}
    assert len(keys) == 1
    assert len(keys | others) == 3
