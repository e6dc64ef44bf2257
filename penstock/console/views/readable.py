"""What a user without permission for all topics may read: the filters of its rules, and the prefixes that they have."""

from __future__ import annotations

from typing import NamedTuple

from gateway.auth.topic_patterns import Filter
from penstock.console.store.connection import StoreConnection
from penstock.sdk.errors import NotPermitted
from store.wire.messages import FailureCode

EVERYTHING = "#"


class ReadableTopics(NamedTuple):
    """`filters`: each may be subscribed to as a whole. `prefixes`: what their topics begin with, empty: anything.
    `are_all`: rules name no more.
    """

    filters: list[str]
    prefixes: list[str]
    are_all: bool


async def readable_of(connection: StoreConnection) -> ReadableTopics:
    """Raises a ClientError."""
    found, are_all = await connection.readable()
    filters = sorted(uncovered(found))
    return ReadableTopics(filters, sorted({prefix_of(each) for each in filters}), are_all)


async def readable_below(connection: StoreConnection, prefix: str) -> list[str]:
    """Filters of all topics with a prefix that a user may read: `prefix#` alone, or all filters of its rules.

    Raises NotPermitted where none of them has such a topic, or another ClientError.
    """
    whole = prefix + EVERYTHING
    (is_permitted,) = await connection.permitted("subscribe", [whole])
    if is_permitted:
        return [whole]
    filters = (await readable_of(connection)).filters
    below = Filter.parse(whole)
    if not any(below.meets(Filter.parse(each)) for each in filters):
        raise NotPermitted(FailureCode.NOT_PERMITTED, f"subscribe {whole}")
    return filters


def uncovered(topic_filters: list[str]) -> list[str]:
    """Those filters that no other one covers.

    >>> uncovered(["a/#", "+/b", "a/b", "a/+/c"])
    ['a/#', '+/b']
    """
    kept: dict[str, Filter] = {}
    for text in topic_filters:  # wider ones come first
        parsed = Filter.parse(text)
        if not any(each.covers(parsed) for each in kept.values()):
            kept[text] = parsed
    return list(kept)


def prefix_of(topic_filter: str) -> str:
    """The whole levels with which each topic of a filter begins, with a slash after them; its last level is none.

    >>> prefix_of("a/b/#"), prefix_of("a/+/c"), prefix_of("+/a"), prefix_of("a/b/c"), prefix_of("#")
    ('a/b/', 'a/', '', 'a/b/', '')
    """
    levels = topic_filter.split("/")[:-1]
    literal = levels[: levels.index("+")] if "+" in levels else levels
    return "".join(f"{level}/" for level in literal)
