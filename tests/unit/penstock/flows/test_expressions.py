"""`where` and `map`: what they give for a message, what makes a message unfit, and what the CEL library promises."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from penstock.flows.errors import Unfit
from penstock.flows.expressions import MOST_CHARACTERS, MOST_JSON_BYTES, MOST_TOPICS, BadExpression, Condition, Template
from tests.unit.penstock.flows.messages import message

READING = b'{"celsius": 91.5, "n": 3, "site": {"name": "a"}, "tags": ["x", "y"], "big": 18446744073709551615}'


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("json.celsius > 90", True),
        ("json.celsius > 92 || json.n == 3", True),
        ("json.n > 3.5", False),
        ("json.site.name == 'a' && levels[1] == '7'", True),
        ("json.tags.exists(t, t == 'y')", True),
        ("has(json.missing) && json.missing > 1", False),
        ("json.big > 1u", True),
        ("topic.startsWith('plant/')", True),
        ("topic.matches('^plant/[0-9]+/temp$')", True),
        ("headers['unit'] == 'C'", True),
        ("'unit' in headers && !('x' in headers)", True),
        ("key == 'm-7' && client_id == 'dev-7' && qos == 1 && !retain", True),
        ("size(payload) > 10", True),
        ("time > timestamp('2023-11-14T22:13:20Z') && time < timestamp('2023-11-14T22:13:21Z')", True),
        ("time.getFullYear() == 2023", True),
    ],
)
def test_where(where: str, expected: bool) -> None:
    found = message(READING, key="m-7", headers=[("unit", "C")], content_type="application/json")
    assert Condition(where).holds(found) is expected


@pytest.mark.parametrize(
    ("where", "payload", "why"),
    [
        ("json.celsius > 90", b"nonsense", "the payload is not JSON"),
        ("json.celsius > 90", b"\xff\xfe", "the payload is not JSON"),
        ("json.celsius > 90", b"[" * 100_000, "the payload is not JSON"),
        ("json.celsius > 90", b'{"a": 1}', "Key not found in map"),
        ("json.celsius > 90", b"3", ""),
        ("json.celsius > 90", b'{"celsius": "hot"}', ""),
        ("json.celsius", b'{"celsius": 3}', "`where` gives int, and not a bool"),
        ("json.n / 0 == 1", READING, "divide by zero"),
        ("levels[9] == 'x'", READING, ""),
        ("json.big + 1u > 0u", READING, "overflow"),
        ("json.a == 1", b'{"a": ' + b"1" * MOST_JSON_BYTES + b"}", "too large to be read as JSON"),
    ],
)
def test_a_message_that_it_cannot_judge_is_unfit(where: str, payload: bytes, why: str) -> None:
    with pytest.raises(Unfit) as caught:
        Condition(where).holds(message(payload))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("alarms/{levels[1]}", b"alarms/7"),
        ("{json.celsius}", b"91.5"),
        ("{json.n + 1} of {{all}}", b"4 of {all}"),
        ("{json.site}", b'{"name":"a"}'),
        ("{json.tags}", b'["x","y"]'),
        ("{payload}", READING),
        ("{time}", b"2023-11-14T22:13:20.123000Z"),
        ("{json.n > 2 ? 'much' : 'little'}", b"much"),
        ("{'}' + topic}", b"}plant/7/temp"),
        ("{ {'a': json.n}.a }", b"3"),
        ("", b""),
    ],
)
def test_map(template: str, expected: bytes) -> None:
    assert Template(template).made(message(READING)) == expected


def test_bytes_that_are_no_text_are_a_payload_and_no_topic() -> None:
    assert Template("{payload}").made(message(b"\xff")) == b"\xff"
    with pytest.raises(Unfit, match="not UTF-8"):
        Template("a/{payload}").text(message(b"\xff"))


@pytest.mark.parametrize(
    "text",
    [
        "true " + "|| true " * (MOST_CHARACTERS // 7),
        "(" * 300 + "true" + ")" * 300,
        "json.l.filter(x, x > 1).size() > 0",
        "json.l . map(x, x).size() > 0",
        "unknown(3)",
        "true; false",
        "topic ==",
    ],
)
def test_oversized_or_wrong_expressions_do_not_compile(text: str) -> None:
    with pytest.raises(BadExpression) as caught:
        Condition(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "where",
    [
        "json.l.all(x, json.l.all(y, x == y))",
        "json.l.all(x, json.l.exists(y, json.l.exists(z, z == 2)))",
        "json.l.all(x, json.s.matches('^(a+)+$'))",
    ],
)
def test_the_library_ends_what_would_not_end(where: str) -> None:
    """Its steps are counted, and its patterns take time that grows with the text (RE2)."""
    payload = b'{"l": [' + b",".join([b"1"] * 5_000) + b'], "s": "' + b"a" * 1_000 + b'!"}'
    began_s = time.process_time()
    with suppress(Unfit):
        Condition(where).holds(message(payload))
    assert time.process_time() - began_s < 5


def test_expressions_of_the_topic_alone_are_cached_by_topic() -> None:
    where, template = Condition("levels[1] == '7'"), Template("{levels[0]}/{topic}")
    changing = Template("{levels[1]}-{json.n}")
    for number in range(2):
        for level in ("7", "8"):
            found = message(b'{"n": %d}' % number, topic=f"plant/{level}")
            assert where.holds(found) is (level == "7")
            assert template.text(found) == f"plant/plant/{level}"
            assert changing.text(found) == f"{level}-{number}"
    for number in range(2 * MOST_TOPICS):
        assert template.text(message(topic=f"{number}")) == f"{number}/{number}"
    assert template.text(message(topic="plant/7")) == "plant/plant/7"
    with pytest.raises(Unfit, match="index"):
        where.holds(message(topic="plant"))
