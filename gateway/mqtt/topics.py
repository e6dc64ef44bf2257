"""Topic names, topic filters and shared subscriptions (MQTT 5.0, 4.7 and 4.8.2), and delayed publishes."""

from __future__ import annotations

from typing import Final

from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reason_codes import ReasonCode
from store.topics import MOST_TOPIC_LEVELS, SHARE_PREFIX

MAX_TOPIC_BYTES: Final = 65_535
"""[MQTT-4.7.3-3]."""

_BRIDGES: Final = "$SYS/broker/connection/"
_STATE: Final = "/state"
DELAYED_PREFIX: Final = "$delayed/"
MOST_DELAY_DIGITS: Final = 10


class TopicAliases:
    """The topic aliases of a client, and their topic names."""

    __slots__ = ("names", "size_bytes")

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.size_bytes = 0  # of the names

    def give(self, alias: int, topic_name: str) -> None:
        """Set an alias to a topic name, or change it."""
        self.size_bytes += len(topic_name.encode()) - len(self.names.get(alias, "").encode())
        self.names[alias] = topic_name


def is_state_of_bridge(topic_name: str) -> bool:
    """Whether Mosquitto publishes to a topic that one of its bridges is connected, or, by a will, that it is not."""
    return topic_name.startswith(_BRIDGES) and topic_name.endswith(_STATE)


def validate_topic_name(topic_name: str, field: str = "topic_name", wildcard_rule: str = "MQTT-3.3.2-2") -> None:
    """Raise ProtocolError(TOPIC_NAME_INVALID) unless `topic_name` is valid for a PUBLISH.

    `wildcard_rule`: the statement of the standard that forbids wildcards in this field.
    """
    fault = topic_fault(topic_name)
    if fault is None and ("+" in topic_name or "#" in topic_name):
        fault = f"contains a wildcard [{wildcard_rule}]"
    if fault is not None:
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, f"{field}: {fault}")


def validate_topic_filter(topic_filter: str, field: str = "topic_filter") -> None:
    """Raise ProtocolError(TOPIC_FILTER_INVALID) unless `topic_filter` is well-formed.

    The further rules of shared subscriptions are in `split_shared`.
    """
    fault = topic_fault(topic_filter)
    if fault is None and not _has_good_wildcards(topic_filter):
        fault = _wildcard_fault(topic_filter)
    if fault is not None:
        raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, f"{field}: {fault}")


def split_shared(topic_filter: str, field: str = "topic_filter") -> tuple[str | None, str]:
    """The share name (None if not shared) and the topic filter after it; both are valid.

    `$share` without a slash is an ordinary filter [MQTT-4.8.2-1].
    """
    validate_topic_filter(topic_filter, field)
    if not topic_filter.startswith(SHARE_PREFIX):
        return None, topic_filter
    share_name, _, shared_filter = topic_filter.removeprefix(SHARE_PREFIX).partition("/")
    fault = _share_fault(share_name, shared_filter)
    if fault is not None:
        raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, f"{field}: {fault}")
    return share_name, shared_filter


def split_delayed(topic_name: str, max_delay_s: int, field: str = "topic_name") -> tuple[int, str]:
    """The delay in seconds, at most `max_delay_s`, and the topic name after it of `$delayed/SECONDS/TOPIC`."""
    seconds, _, real_name = topic_name.removeprefix(DELAYED_PREFIX).partition("/")
    is_number = seconds.isascii() and seconds.isdecimal() and len(seconds) <= MOST_DELAY_DIGITS
    if not is_number or not real_name:
        fault = "is not $delayed/SECONDS/TOPIC"
    elif not max_delay_s or int(seconds) > max_delay_s:
        fault = f"delays for {seconds} s, longer than store.max_delay_s = {max_delay_s}"
    else:
        return int(seconds), real_name
    raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, f"{field}: {fault}")


def topic_fault(topic: str) -> str | None:
    """The reason why a text is neither a topic name nor a filter, apart from its wildcards; None if it may be one."""
    if not topic:
        return "is empty [MQTT-4.7.3-1]"
    if "\0" in topic:
        return "contains U+0000 [MQTT-4.7.3-2]"
    try:
        size_bytes = len(topic.encode())
    except UnicodeEncodeError:
        return "contains a surrogate [MQTT-1.5.4-1]"
    if size_bytes > MAX_TOPIC_BYTES:
        return f"has {size_bytes} bytes, more than {MAX_TOPIC_BYTES} [MQTT-4.7.3-3]"
    levels = topic.count("/") + 1
    if levels > MOST_TOPIC_LEVELS:
        return f"has {levels} levels, more than {MOST_TOPIC_LEVELS}"
    return None


def _has_good_wildcards(topic_filter: str) -> bool:
    """Whether _wildcard_fault() is None, without a look at each level: a packet may have hundreds of filters."""
    if "#" in topic_filter:
        parent = topic_filter[:-1]
        if "#" in parent or not topic_filter.endswith("#") or not (not parent or parent.endswith("/")):
            return False
    if "+" not in topic_filter:
        return True
    return f"/{topic_filter}/".replace("/", "//").count("/+/") == topic_filter.count("+")


def _wildcard_fault(topic_filter: str) -> str | None:
    *parents, last = topic_filter.split("/")
    if "#" in last and last != "#":
        return "'#' shares its level with other characters [MQTT-4.7.1-1]"
    if any("#" in level for level in parents):
        return "'#' is not the last character [MQTT-4.7.1-1]"
    if any("+" in level and level != "+" for level in (*parents, last)):
        return "'+' shares its level with other characters [MQTT-4.7.1-2]"
    return None


def _share_fault(share_name: str, shared_filter: str) -> str | None:
    if not share_name:
        return "has an empty share name [MQTT-4.8.2-1]"
    if "+" in share_name or "#" in share_name:
        return "has a wildcard in its share name [MQTT-4.8.2-2]"
    if not shared_filter:
        return "has no topic filter after its share name [MQTT-4.8.2-2]"
    return None
