"""Topic names, topic filters and shared subscriptions: what is well-formed and what is not."""

import pytest

from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import split_shared, validate_topic_filter, validate_topic_name
from store.topics import MOST_TOPIC_LEVELS

LONGEST = "a" * 65_535
TOO_LONG_IN_BYTES = "é" * 32_768
DEEPEST = "/".join("a" * MOST_TOPIC_LEVELS)

NAMES = ("a", "/", "//", "a/b", "/a", "a/", "a b", "$SYS/x", "$share", "é/😀", LONGEST, DEEPEST)
NOT_TEXT = ("", "\0", "a\0b", "\ud800", LONGEST + "a", TOO_LONG_IN_BYTES, DEEPEST + "/a", "/" * 60_000)
FILTERS = (*NAMES, "#", "+", "+/+", "/+", "+/", "a/#", "/#", "+/#", "a/+/b", "$SYS/#", "a/+/#")
NOT_FILTERS = ("a#", "#a", "#/a", "a/#/b", "a/b#", "##", "+a", "a+", "a/b+/c", "++", "#+", "+#")


@pytest.mark.parametrize("topic_name", NAMES)
def test_topic_names(topic_name: str) -> None:
    validate_topic_name(topic_name)


@pytest.mark.mqtt("MQTT-3.3.2-2", "MQTT-4.7.0-1", "MQTT-4.7.3-1", "MQTT-4.7.3-2", "MQTT-4.7.3-3")
@pytest.mark.parametrize("topic_name", [*NOT_TEXT, "#", "+", "a/+", "a#b", "a/b+"])
def test_topic_names_that_are_refused(topic_name: str) -> None:
    with pytest.raises(ProtocolError, match=r"^topic_name: ") as caught:
        validate_topic_name(topic_name)
    assert caught.value.reason_code is ReasonCode.TOPIC_NAME_INVALID


@pytest.mark.parametrize("topic_filter", FILTERS)
def test_topic_filters(topic_filter: str) -> None:
    validate_topic_filter(topic_filter)
    assert split_shared(topic_filter) == (None, topic_filter)


@pytest.mark.mqtt("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-1", "MQTT-4.7.3-2", "MQTT-4.7.3-3")
@pytest.mark.parametrize("topic_filter", [*NOT_TEXT, *NOT_FILTERS])
def test_topic_filters_that_are_refused(topic_filter: str) -> None:
    for check in (validate_topic_filter, split_shared):
        with pytest.raises(ProtocolError, match=r"^topic_filter: ") as caught:
            check(topic_filter)
        assert caught.value.reason_code is ReasonCode.TOPIC_FILTER_INVALID


@pytest.mark.parametrize(
    ("topic_filter", "share_name", "shared_filter"),
    [
        ("$share/g/a", "g", "a"),
        ("$share/g/a/b", "g", "a/b"),
        ("$share/g/#", "g", "#"),
        ("$share/g/+/x", "g", "+/x"),
        ("$share/g//a", "g", "/a"),
        ("$share/g//", "g", "/"),
        ("$share/ g/$SYS/#", " g", "$SYS/#"),
        ("$share/$share/$share/g/a", "$share", "$share/g/a"),
        ("$SHARE/g/a", None, "$SHARE/g/a"),
        ("/$share/g/a", None, "/$share/g/a"),
    ],
)
def test_shared_subscriptions(topic_filter: str, share_name: str | None, shared_filter: str) -> None:
    assert split_shared(topic_filter) == (share_name, shared_filter)


@pytest.mark.mqtt("MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.parametrize(
    "topic_filter",
    ["$share/", "$share//", "$share//a", "$share/g", "$share/g/", "$share/+/a", "$share/#"],
)
def test_shared_subscriptions_that_are_refused(topic_filter: str) -> None:
    with pytest.raises(ProtocolError, match=r"share name|topic filter") as caught:
        split_shared(topic_filter)
    assert caught.value.reason_code is ReasonCode.TOPIC_FILTER_INVALID


def test_a_long_share_name_with_a_wildcard() -> None:
    with pytest.raises(ProtocolError, match="shares its level"):
        split_shared("$share/g+/a")
