"""Consumer groups: lag, consumers, and pausing, moving or dropping one. The store judges each user."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.console.errors import Problem
from penstock.console.pages.rendering import PageVisit, page
from penstock.console.store.groups import (
    look_at_move,
    move_group,
    pause_group,
    paused_groups,
    seen_groups,
    tags_of_groups,
    the_group,
    works_of_groups,
)
from store.wire.group_messages import GroupDone, GroupDrop, GroupInfo, GroupList, GroupsListed

MOST_NAME = 255
MOST_PLACE = 64


@page("/groups")
async def groups_page(visit: PageVisit) -> Response:
    """`skip`: how many groups to leave out."""
    skip, connection = visit.number("skip", 0), visit.caller.connection
    found, _ = await connection.request(GroupList("", skip), GroupsListed)
    after = skip + len(found.groups) if found.more else None
    groups, paused = await seen_groups(connection, found.groups), await paused_groups(connection)
    works = await works_of_groups(connection)
    return visit.show("groups.html", groups=groups, paused=paused, works=works, after=after, names=connection.names)


@page("/group")
async def group_page(visit: PageVisit) -> Response:
    name, connection = visit.asked("name"), visit.caller.connection
    group = await _group(visit, name, visit.asked("filter"))
    key = group.group, group.topic_filter
    is_paused, work = key in await paused_groups(connection, name), (await works_of_groups(connection, name)).get(key)
    tag = (await tags_of_groups(connection, name)).get(key, "")
    return visit.show("group.html", group=group, is_paused=is_paused, work=work, tag=tag, names=connection.names)


async def _group(visit: PageVisit, name: str, topic_filter: str) -> GroupInfo:
    """Raises Problem."""
    found = await the_group(visit.caller.connection, name, topic_filter) if 0 < len(name) <= MOST_NAME else None
    if found is None:
        raise Problem(
            404, "no-such-group", "there is no group of this name over this filter", "choose one on the page Groups"
        )
    return found


@page("/group/move", ["POST"])
async def move(visit: PageVisit) -> Response:
    """Says what the move would skip and repeat; with `sure` it is made, to the place that was said."""
    form, connection = await visit.form(), visit.caller.connection
    name, topic_filter, to = form.get("name", ""), form.get("filter", ""), form.get("to", "").strip()
    if not to or len(to) > MOST_PLACE:
        raise Problem(400, "bad-parameter", "no place to move to", "write earliest, latest, -1h, a time or a number")
    group = await _group(visit, name, topic_filter)
    look = await look_at_move(connection, group, to)
    names: dict[str, Any] = {"name": name, "topic_filter": topic_filter}
    if "sure" not in form:
        return visit.show("group_move.html", look=look, group=group, **names)
    done = await move_group(connection, (group.group, group.topic_filter), look.queue_offset)
    group = await _group(visit, name, topic_filter)
    return visit.show("group_moved.html", what=f"Moved to message {done}", group=group, **names)


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
    return visit.show("group_dropped.html", what="Dropped", name=name)
