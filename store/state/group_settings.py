"""The settings of a consumer group. They are in the log and on the wire."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from store.records.records import MOST_TAG_BYTES

LATEST = "latest"
"""Where a new group begins by itself: at what is published from now on."""
MOST_PARTITIONS = 256
MOST_MS = 7 * 86_400_000
MOST_IN_FLIGHT = 65_536
MOST_DELIVERIES = 1_000
MOST_TAGS = 32

Milliseconds = Annotated[int, Meta(ge=1, le=MOST_MS)]


class BadTags(ValueError):
    """An expression of tags that no message can match, or that is too long."""


def tags_of(expression: str) -> list[bytes]:
    """The tags of `A||B`: a group with it has the messages that have one of them. Empty: all. Raises BadTags.

    A tag with `||` in it cannot be named.

    >>> tags_of("fast||slow")
    [b'fast', b'slow']
    """
    if not expression:
        return []
    if len(expression) > MOST_TAGS * (MOST_TAG_BYTES + 2):
        raise BadTags(f"{len(expression)} characters of tags are too many; {MOST_TAGS} tags can be named")
    tags = [tag.encode() for tag in expression.split("||")]
    if len(tags) > MOST_TAGS:
        raise BadTags(f"{len(tags)} tags are too many; {MOST_TAGS} can be named")
    for tag in tags:
        if not 0 < len(tag) <= MOST_TAG_BYTES:
            raise BadTags(
                f"a tag has 1 to {MOST_TAG_BYTES} bytes, and {tag[:50]!r} in {expression[:200]!r} has {len(tag)}"
            )
    return list(dict.fromkeys(tags))


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
