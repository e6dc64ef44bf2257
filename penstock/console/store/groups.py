"""Consumer groups as one user sees them, and pausing one. The store judges each request by the user's permissions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from penstock.console.errors import Problem
from penstock.console.store.connection import StoreConnection
from penstock.sdk.errors import StoreRefused
from store.state.consumer_work import ConsumerWork
from store.wire import group_messages as of_group
from store.wire.handshake import LASTING_VERSION, PAUSING_VERSION, WORK_VERSION
from store.wire.messages import FailureCode, Locate, Located

T = TypeVar("T")
GroupKey = tuple[str, str]
"""Name and topic filter, as the log has them."""


class MoveLook(NamedTuple):
    """What a move of a group to a queue_offset does: messages that are not done with and never come, and those that are
    done with and come again. Not `is_exact`: at most so many, about.
    """

    queue_offset: int
    skipped: int
    repeated: int
    is_exact: bool


async def listed_groups(connection: StoreConnection, name: str = "") -> list[of_group.GroupInfo]:
    """Those of a name (empty: all) whose messages the user may subscribe to. Raises a ClientError."""
    found: list[of_group.GroupInfo] = []
    more = True
    skip = 0
    in_log = connection.names.group(name) if name else ""
    while more:
        answer, _ = await connection.request(of_group.GroupList(in_log, skip), of_group.GroupsListed)
        skip += len(answer.groups)
        found += await seen_groups(connection, answer.groups)
        more = answer.more and bool(answer.groups)
    return found


async def seen_groups(connection: StoreConnection, groups: list[of_group.GroupInfo]) -> list[of_group.GroupInfo]:
    """Those of them whose messages the user may subscribe to. Raises a ClientError."""
    if not groups:
        return []
    filters = [connection.names.plain_topic(each.topic_filter) for each in groups]
    permitted = await connection.permitted("subscribe", filters)
    return [each for each, is_seen in zip(groups, permitted, strict=True) if is_seen]


async def paused_groups(connection: StoreConnection, name: str = "") -> set[GroupKey]:
    """Those of a name (empty: all) that are paused; none where the store cannot pause. Raises a ClientError."""
    if not _knows(connection, PAUSING_VERSION):
        return set()
    in_log = connection.names.group(name) if name else ""

    async def page(skip: int) -> tuple[list[of_group.GroupInfo], bool]:
        answer, _ = await connection.request(of_group.PausedGroups(in_log, skip), of_group.GroupsListed)
        return answer.groups, answer.more

    return {(each.group, each.topic_filter) for each in await _all_of(page)}


async def _all_of(page: Callable[[int], Awaitable[tuple[list[T], bool]]]) -> list[T]:
    """All items of a list of the store; `page` asks for those after so many, and says whether more follow."""
    found: list[T] = []
    more = True
    while more:
        items, more = await page(len(found))
        found += items
        more = more and bool(items)
    return found


async def works_of_groups(connection: StoreConnection, name: str = "") -> dict[GroupKey, ConsumerWork]:
    """What consumers tell of their work, of the groups of a name (empty: all); none where the store is too old to know.

    Raises a ClientError.
    """
    if not _knows(connection, WORK_VERSION):
        return {}
    in_log = connection.names.group(name) if name else ""

    async def page(skip: int) -> tuple[list[of_group.GroupWork], bool]:
        answer, _ = await connection.request(of_group.ListWork(in_log, skip), of_group.WorkListed)
        return answer.works, answer.more

    return {(each.group, each.topic_filter): each.work for each in await _all_of(page)}


async def tags_of_groups(connection: StoreConnection, name: str = "") -> dict[GroupKey, str]:
    """The tags (`A||B`) of the groups of a name (empty: all) that have some; none where the store is too old to say.

    Raises a ClientError.
    """
    if not _knows(connection, LASTING_VERSION):
        return {}
    in_log = connection.names.group(name) if name else ""

    async def page(skip: int) -> tuple[list[of_group.GroupTags], bool]:
        answer, _ = await connection.request(of_group.ListTags(in_log, skip), of_group.TagsListed)
        return answer.tags, answer.more

    return {(each.group, each.topic_filter): each.tag for each in await _all_of(page)}


async def pause_group(connection: StoreConnection, name: str, topic_filter: str, paused: bool) -> int:
    """Have a group deal nothing more, or go on. Returns the queue_offset before which all is done with.

    Raises Problem, or a ClientError.
    """
    if not _knows(connection, PAUSING_VERSION):
        raise Problem(501, "store-too-old", "this store cannot pause groups", "upgrade the store")
    names = connection.names
    request = of_group.GroupPause(names.group(name), names.topic(topic_filter), paused)
    done, _ = await connection.request(request, of_group.GroupDone)
    return done.queue_offset


async def the_group(connection: StoreConnection, name: str, topic_filter: str) -> of_group.GroupInfo | None:
    """The group, if the user may subscribe to its messages. Raises a ClientError."""
    in_log, skip, more = connection.names.topic(topic_filter), 0, True
    while more:
        answer, _ = await connection.request(
            of_group.GroupList(connection.names.group(name), skip), of_group.GroupsListed
        )
        for group in await seen_groups(connection, answer.groups):
            if group.topic_filter == in_log:
                return group
        skip += len(answer.groups)
        more = answer.more and bool(answer.groups)
    return None


async def look_at_move(connection: StoreConnection, group: of_group.GroupInfo, to: str) -> MoveLook:
    """What a move to a place would do; nothing is moved. Raises Problem, or a ClientError."""
    to = to.strip().removeprefix("@")
    if to in ("latest", "now"):
        return move_look(group, group.next_offset)
    try:
        located, _ = await connection.request(Locate(group.topic_filter, to), Located)
    except StoreRefused as error:
        if error.code != FailureCode.NO_SUCH_POSITION:
            raise
        raise Problem(
            422, "no-such-place", str(error), "give earliest, latest, -1h, an RFC 3339 time, or a queue_offset"
        ) from None
    return move_look(group, located.queue_offset)


async def move_group(connection: StoreConnection, group: GroupKey, queue_offset: int) -> int:
    """Have a group go on there. Returns where it goes on. Raises a ClientError."""
    request = of_group.GroupReset(*group, str(queue_offset))
    done, _ = await connection.request(request, of_group.GroupDone)
    return done.queue_offset


def move_look(group: of_group.GroupInfo, queue_offset: int) -> MoveLook:
    """What a move there would do, from the group's figures. Which of the messages after the first open one are done
    with they do not say: a move between them may not be exact, nor is that of an ordered
    group.
    """
    end, acked = group.next_offset, group.acked_offset
    held = group.in_flight + group.retries
    looked_until = end - group.lag + held
    """All after it is new; in front of it all but what is held is done with."""
    is_ordered = group.settings.partitions > 0
    if queue_offset >= looked_until:
        return MoveLook(queue_offset, max(0, group.lag - max(0, end - queue_offset)), 0, not is_ordered)
    if queue_offset <= acked:
        return MoveLook(queue_offset, 0, max(0, end - group.lag - queue_offset), not is_ordered)
    skipped = min(held, queue_offset - acked)
    is_exact = not is_ordered and end - group.lag == acked  # none after the first open one is done with
    return MoveLook(queue_offset, skipped, looked_until - queue_offset - max(0, held - skipped), is_exact)


def _knows(connection: StoreConnection, version: int) -> bool:
    """An older store would end the connection. A store that is away now is asked: the request waits for it."""
    welcome = connection.welcome
    return welcome is None or welcome.version >= version
