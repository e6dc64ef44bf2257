"""The settings of a consumer group. They are in the log and on the wire."""

from enum import StrEnum
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from store.records.records import MOST_TAG_BYTES

LATEST = "latest"
"""Where a new group begins by itself: at what is published from now on."""
MOST_PARTITIONS = 256
MOST_MS = 7 * 86_400_000
MOST_IN_FLIGHT = 65_536
MOST_DELIVERIES = 1_000
MOST_TAGS = 32
MOST_PRIORITIES = 8
OTHERS = "*"

Milliseconds = Annotated[int, Meta(ge=1, le=MOST_MS)]


class BadTags(ValueError):
    """An expression of tags that no message can match, or that is too long."""


class TagSet(NamedTuple):
    """The tags of a group's messages that have one priority: one of `tags`, or with `others` none of them."""

    tags: list[bytes]
    others: bool = False


ALL = TagSet([], True)


def tags_of(expression: str) -> list[TagSet]:
    """The messages of a group by priority, first those that come first. Raises BadTags.

    `A||B`: those that have one of these tags. `A > B||C > *`: those with A before those with B or C, and these before
    all others. Empty, or `*`: all. A tag with `||` or `>` in it cannot be named, nor can the tag `*`.

    >>> tags_of("fast||slow")
    [TagSet(tags=[b'fast', b'slow'], others=False)]
    >>> tags_of("alarm > *")
    [TagSet(tags=[b'alarm'], others=False), TagSet(tags=[b'alarm'], others=True)]
    """
    if not expression or expression == OTHERS:
        return [ALL]
    if len(expression) > MOST_TAGS * (MOST_TAG_BYTES + 3):
        raise BadTags(f"{len(expression)} characters of tags are too many; {MOST_TAGS} tags can be named")
    parts = expression.split(">")
    if len(parts) > 1:
        parts = [part.strip() for part in parts]
    if len(parts) > MOST_PRIORITIES:
        raise BadTags(f"{len(parts)} priorities of tags are too many; a group can have {MOST_PRIORITIES}")
    has_others = parts[-1] == OTHERS
    named = [
        list(dict.fromkeys(tag.encode() for tag in part.split("||"))) for part in (parts[:-1] if has_others else parts)
    ]
    tags = [tag for each in named for tag in each]
    if len(tags) > MOST_TAGS:
        raise BadTags(f"{len(tags)} tags are too many; {MOST_TAGS} can be named")
    for tag in tags:
        if tag == OTHERS.encode():
            raise BadTags(
                f"the tag {OTHERS} in {expression[:200]!r} stands for all other messages, so it comes last and alone"
            )
        if not 0 < len(tag) <= MOST_TAG_BYTES:
            raise BadTags(
                f"a tag has 1 to {MOST_TAG_BYTES} bytes, and {tag[:50]!r} in {expression[:200]!r} has {len(tag)}"
            )
    if len(set(tags)) < len(tags):
        raise BadTags(f"a tag in {expression[:200]!r} has two priorities")
    return [TagSet(sorted(each)) for each in named] + [TagSet(sorted(tags), True)] * has_others


def logged_tags(expression: str) -> list[TagSet]:
    """The same of an expression in the log: what an older release took for the name of a tag still is one."""
    try:
        return tags_of(expression)
    except BadTags:
        return [TagSet([expression.encode()])]


class Strategy(StrEnum):
    """The choice of the consumer that gets the next message, in a group that is not ordered."""

    ROUND_ROBIN = "round_robin"
    LEAST_IN_FLIGHT = "least_in_flight"


class GroupSettings(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """How a group deals its messages out.

    `partitions`: 0 gives any message to any consumer; else the group is ordered: a message's key says its partition, a
    partition is one consumer's at a time, and its next message goes out once the one before is settled. A message is
    its consumer's for `invisible_ms`. One that was handed out `max_deliveries` times in vain is a dead letter (0:
    never). One that was rejected waits for `retry_ms`, the next time twice as long, `retry_most_ms` at most. No more
    than `most_in_flight` are in flight or wait for a retry. `strategy`: who gets the next one, where it may be anybody.
    """

    partitions: Annotated[int, Meta(ge=0, le=MOST_PARTITIONS)] = 0
    invisible_ms: Milliseconds = 30_000
    max_deliveries: Annotated[int, Meta(ge=0, le=MOST_DELIVERIES)] = 16
    retry_ms: Milliseconds = 1_000
    retry_most_ms: Milliseconds = 600_000
    most_in_flight: Annotated[int, Meta(ge=1, le=MOST_IN_FLIGHT)] = 10_000
    strategy: Strategy = Strategy.ROUND_ROBIN

    @property
    def cursors(self) -> int:
        """The number of positions that the group has."""
        return max(1, self.partitions)

    def retry_delay_ms(self, deliveries: int) -> int:
        """The wait of a message that was rejected after this number of deliveries."""
        return min(self.retry_most_ms, self.retry_ms << min(deliveries - 1, 40))
