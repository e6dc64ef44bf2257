"""Consumer groups: lag, consumers, and moving or dropping one. The store judges each user."""

from __future__ import annotations

from starlette.responses import Response

from penstock.console.errors import Problem
from penstock.console.pages.rendering import PageVisit, page
from store.wire.group_messages import GroupDone, GroupDrop, GroupInfo, GroupList, GroupReset, GroupsListed

MOST_PLACE = 64


@page("/groups")
async def groups_page(visit: PageVisit) -> Response:
    """`skip`: how many groups to leave out."""
    skip = visit.number("skip", 0)
    found, _ = await visit.caller.connection.request(GroupList("", skip), GroupsListed)
    after = skip + len(found.groups) if found.more else None
    return visit.show("groups.html", groups=found.groups, after=after, names=visit.caller.connection.names)


@page("/group")
async def group_page(visit: PageVisit) -> Response:
    group = await _group(visit, visit.asked("name"), visit.asked("filter"))
    return visit.show("group.html", group=group, names=visit.caller.connection.names)


async def _group(visit: PageVisit, name: str, topic_filter: str) -> GroupInfo:
    """Raises Problem."""
    connection, skip, more = visit.caller.connection, 0, bool(name)
    while more:
        found, _ = await connection.request(GroupList(connection.names.group(name), skip), GroupsListed)
        for group in found.groups:
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


@page("/group/drop", ["POST"])
async def drop(visit: PageVisit) -> Response:
    form, connection = await visit.form(), visit.caller.connection
    name, topic_filter = form.get("name", ""), form.get("filter", "")
    request = GroupDrop(connection.names.group(name), connection.names.topic(topic_filter))
    await connection.request(request, GroupDone)
    return visit.show("done.html", what="Dropped", name=name)
