"""Consumer groups: lag, consumers, and pausing, moving or dropping one. The store judges each user."""

from __future__ import annotations

from starlette.responses import Response

from penstock.console.errors import Problem
from penstock.console.pages.rendering import PageVisit, page
from penstock.console.store.groups import pause_group, paused_groups, seen_groups
from store.wire.group_messages import GroupDone, GroupDrop, GroupInfo, GroupList, GroupReset, GroupsListed

MOST_NAME = 255
MOST_PLACE = 64


@page("/groups")
async def groups_page(visit: PageVisit) -> Response:
    """`skip`: how many groups to leave out."""
    skip, connection = visit.number("skip", 0), visit.caller.connection
    found, _ = await connection.request(GroupList("", skip), GroupsListed)
    after = skip + len(found.groups) if found.more else None
    groups, paused = await seen_groups(connection, found.groups), await paused_groups(connection)
    return visit.show("groups.html", groups=groups, paused=paused, after=after, names=connection.names)


@page("/group")
async def group_page(visit: PageVisit) -> Response:
    name, connection = visit.asked("name"), visit.caller.connection
    group = await _group(visit, name, visit.asked("filter"))
    is_paused = (group.group, group.topic_filter) in await paused_groups(connection, name)
    return visit.show("group.html", group=group, is_paused=is_paused, names=connection.names)


async def _group(visit: PageVisit, name: str, topic_filter: str) -> GroupInfo:
    """Raises Problem."""
    connection, skip, more = visit.caller.connection, 0, 0 < len(name) <= MOST_NAME
    while more:
        found, _ = await connection.request(GroupList(connection.names.group(name), skip), GroupsListed)
        for group in await seen_groups(connection, found.groups):
            if group.topic_filter == connection.names.topic(topic_filter):
                return group
        skip, more = skip + len(found.groups), found.more and bool(found.groups)
    raise Problem(
        404, "no-such-group", "there is no group of this name over this filter", "choose one on the page Groups"
    )


@page("/group/move", ["POST"])
async def move(visit: PageVisit) -> Response:
    form, connection = await visit.form(), visit.caller.connection
    name, topic_filter, to = form.get("name", ""), form.get("filter", ""), form.get("to", "").strip()
    if not to or len(to) > MOST_PLACE:
        raise Problem(400, "bad-parameter", "no place to move to", "write earliest, latest, -1h, a time or a number")
    request = GroupReset(connection.names.group(name), connection.names.topic(topic_filter), to.removeprefix("@"))
    done, _ = await connection.request(request, GroupDone)
    return visit.show("done.html", what=f"Moved to message {done.queue_offset}", name=name)


@page("/group/pause", ["POST"])
async def pause(visit: PageVisit) -> Response:
    return await _paused(visit, True)


@page("/group/resume", ["POST"])
async def resume(visit: PageVisit) -> Response:
    return await _paused(visit, False)


async def _paused(visit: PageVisit, paused: bool) -> Response:
    form = await visit.form()
    name, topic_filter = form.get("name", ""), form.get("filter", "")
    await _group(visit, name, topic_filter)
    done = await pause_group(visit.caller.connection, name, topic_filter, paused)
    what = f"{'Paused' if paused else 'Resumed'} at message {done}"
    return visit.show("group_pause.html", what=what, name=name, topic_filter=topic_filter, is_paused=paused)


@page("/group/drop", ["POST"])
async def drop(visit: PageVisit) -> Response:
    form, connection = await visit.form(), visit.caller.connection
    name, topic_filter = form.get("name", ""), form.get("filter", "")
    request = GroupDrop(connection.names.group(name), connection.names.topic(topic_filter))
    await connection.request(request, GroupDone)
    return visit.show("done.html", what="Dropped", name=name)
