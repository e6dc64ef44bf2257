"""Consumer groups as one user sees them, and pausing one. The store judges each request by the user's permissions."""

from __future__ import annotations

from penstock.console.errors import Problem
from penstock.console.store.connection import StoreConnection
from store.wire import group_messages as of_group
from store.wire.handshake import PAUSING_VERSION

GroupKey = tuple[str, str]
"""Name and topic filter, as the log has them."""


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
    found: set[GroupKey] = set()
    if not _can_pause(connection):
        return found
    more = True
    in_log = connection.names.group(name) if name else ""
    while more:
        answer, _ = await connection.request(of_group.PausedGroups(in_log, len(found)), of_group.GroupsListed)
        found |= {(each.group, each.topic_filter) for each in answer.groups}
        more = answer.more and bool(answer.groups)
    return found


async def pause_group(connection: StoreConnection, name: str, topic_filter: str, paused: bool) -> int:
    """Have a group deal nothing more, or go on. Returns the queue_offset before which all is done with.

    Raises Problem, or a ClientError.
    """
    if not _can_pause(connection):
        raise Problem(501, "store-too-old", "this store cannot pause groups", "upgrade the store")
    names = connection.names
    request = of_group.GroupPause(names.group(name), names.topic(topic_filter), paused)
    done, _ = await connection.request(request, of_group.GroupDone)
    return done.queue_offset


def _can_pause(connection: StoreConnection) -> bool:
    """An older store would end the connection. A store that is away now is asked: the request waits for it."""
    welcome = connection.welcome
    return welcome is None or welcome.version >= PAUSING_VERSION
