"""Messages between a store and its peers about consumer groups; as store.wire.messages.

A group has a name and a topic filter. `ref` is the store's number for one of its consumers.
"""

from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from store.state.consumer_work import ConsumerWork
from store.state.group_settings import MOST_MS, GroupSettings
from store.wire.base import (
    MOST_ITEMS,
    Count,
    Items,
    LogOffset,
    Name,
    Positive,
    QueueOffset,
    Ref,
    TopicFilter,
    WireMessage,
)

GroupName = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^/+#\x00]*\Z")]
Milliseconds = Annotated[int, Meta(ge=0, le=MOST_MS)]


class Receipt(NamedTuple):
    """Messages that were handed out under a `serial`: that at queue_offset `first` and those after it."""

    serial: Positive
    first: QueueOffset
    number: Annotated[int, Meta(ge=1, le=MOST_ITEMS)]


Receipts = Annotated[list[Receipt], Items]


class GroupOpen(WireMessage, frozen=True):
    """I am a consumer of this group, from now on until GroupClose; one of its name is the same.

    A group that is not there is made, and begins at `start`: `earliest`, `latest`, a time or a queue_offset as in
    Locate. `settings`: nil takes those that it has; one that is made has those in `if_new` then.
    `user`: for whom a gateway asks, where users are known; empty: an anonymous client. `or_refuse`: a new group is
    refused if the filter's queue lacks messages from `start` on; else it begins with those that the queue has. `tag`:
    the group has messages with one of these tags alone (`A||B`), by priority (`A > B`) if it says so; empty: all, None:
    as it has it. It cannot be changed.
    `lasting`: what the consumer is handed stays leased until its time is over, although the consumer goes meanwhile:
    any consumer of the group may settle it.
    """

    group: GroupName
    topic_filter: TopicFilter
    consumer: Annotated[str, Meta(max_length=256)]
    settings: GroupSettings | None
    start: Name
    if_new: GroupSettings | None = None
    user: str | None = None
    or_refuse: bool = False
    tag: Name | None = None
    lasting: bool = False


class GroupOpened(WireMessage, frozen=True):
    """The consumer's ref, and the settings of its group."""

    ref: Ref
    settings: GroupSettings


class GroupClose(WireMessage, frozen=True):
    """The consumer is gone; what it has goes to others.

    `seen`: the last serial that it was told; deliveries with later ones do not count. Null: they do.
    """

    ref: Ref
    seen: Count | None = None


class Pop(WireMessage, frozen=True):
    """Hand out up to `most` messages, and no more once they have `max_bytes`; wait for one for `wait_ms`.

    They are the consumer's for `invisible_ms`; 0 stands for what the group's settings say.
    """

    ref: Ref
    most: Positive
    max_bytes: Positive
    invisible_ms: Milliseconds
    wait_ms: Milliseconds


class Popped(WireMessage, frozen=True):
    """(serial, deliveries so far with this one, queue_offset of the first, number of messages); the records follow.

    None if there was nothing in time.
    """

    handed: Annotated[list[tuple[Positive, Positive, QueueOffset, Positive]], Items]


class Ack(WireMessage, frozen=True):
    """Acknowledge messages: they are done with."""

    ref: Ref
    receipts: Receipts


class ChangeInvisible(WireMessage, frozen=True):
    """Extend leases: these messages are the consumer's for `invisible_ms` from now on."""

    ref: Ref
    receipts: Receipts
    invisible_ms: Milliseconds


class Reject(WireMessage, frozen=True):
    """Hand them out again after `delay_ms` (nil: as the settings say); or never, if `dead` says why.

    `unseen`: the consumer has not looked at them, so this delivery does not count.
    """

    ref: Ref
    receipts: Receipts
    delay_ms: Milliseconds | None
    dead: Annotated[str, Meta(max_length=1_024)]
    unseen: bool = False


class Settled(WireMessage, frozen=True):
    """A change of leases is in the log, as safe as the flush policy promises; the `stale` receipts changed nothing."""

    stale: Receipts


class GroupWhere(WireMessage, frozen=True):
    """Ask for the position of the consumer's group."""

    ref: Ref


class GroupIs(WireMessage, frozen=True):
    """Everything before `acked_offset` is done with. `began`: log_offset at which the group was made or last reset.

    The queue_offset of a message in the group's queue is the same as long as `began` is.
    """

    began: LogOffset
    acked_offset: QueueOffset


class TellWork(WireMessage, frozen=True):
    """A consumer's report about its work. It is kept in memory while the consumer is there; nothing depends on it."""

    ref: Ref
    work: ConsumerWork


class WorkNoted(WireMessage, frozen=True):
    """`paused`: the consumer's group is."""

    paused: bool


class GroupList(WireMessage, frozen=True):
    """The groups that there are: those of this name (empty: all), without the first `skip`."""

    group: Annotated[str, Meta(max_length=255)]
    skip: Count


class ConsumerInfo(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A consumer: its name, the number of its messages, and its partitions. `peer`: empty where a client may not
    see it: the name is of a client of another user or namespace, or of a gateway, and a tenant asks.
    """

    peer: str
    consumer: str
    in_flight: Count
    partitions: Annotated[list[Count], Items]


class GroupInfo(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A group: everything before `acked_offset` is done with, in a queue that ends at `next_offset`.

    `lag` messages are not done with; of these consumers have `in_flight`, and `retries` wait to be handed out again.
    `dead_letters` it had since it was made. `consumers`: how many; `some` of them, those that came first.
    """

    group: str
    topic_filter: str
    settings: GroupSettings
    acked_offset: QueueOffset
    next_offset: QueueOffset
    lag: Count
    in_flight: Count
    retries: Count
    dead_letters: Count
    consumers: Count
    some: Annotated[list[ConsumerInfo], Items]


class GroupsListed(WireMessage, frozen=True):
    """Groups, in the order of their names and topic filters. `more`: more groups follow."""

    groups: Annotated[list[GroupInfo], Items]
    more: bool


class GroupReset(WireMessage, frozen=True):
    """The group goes on at `to`, as `start` in GroupOpen; the consumers' leases end."""

    group: GroupName
    topic_filter: TopicFilter
    to: Name


class GroupDrop(WireMessage, frozen=True):
    """Forget the group. It must have no consumers."""

    group: GroupName
    topic_filter: TopicFilter


class GroupPause(WireMessage, frozen=True):
    """The group is to deal nothing more, or to go on. What consumers have stays theirs, and they may settle it."""

    group: GroupName
    topic_filter: TopicFilter
    paused: bool


class PausedGroups(WireMessage, frozen=True):
    """Like GroupList, of those groups alone that are paused."""

    group: Annotated[str, Meta(max_length=255)]
    skip: Count


class ListWork(WireMessage, frozen=True):
    """Like GroupList, of those groups alone that have a consumer which told its work."""

    group: Annotated[str, Meta(max_length=255)]
    skip: Count


class GroupWork(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The joined reports of a group's consumers: sums, and the newest error."""

    group: str
    topic_filter: str
    work: ConsumerWork


class WorkListed(WireMessage, frozen=True):
    """The work of groups, in the order of their names and topic filters. `more`: more groups follow."""

    works: Annotated[list[GroupWork], Items]
    more: bool


class ListTags(WireMessage, frozen=True):
    """Like GroupList, of those groups alone that have tags."""

    group: Annotated[str, Meta(max_length=255)]
    skip: Count


class GroupTags(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The tags of which a group's messages have one, as `A||B`."""

    group: str
    topic_filter: str
    tag: str


class TagsListed(WireMessage, frozen=True):
    """The tags of groups, in the order of their names and topic filters. `more`: more groups follow."""

    tags: Annotated[list[GroupTags], Items]
    more: bool


class GroupDone(WireMessage, frozen=True):
    """The group was reset, or paused, and goes on at `queue_offset`; or it was dropped (0)."""

    queue_offset: QueueOffset
