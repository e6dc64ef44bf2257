"""Consumer groups: what they lag behind, who consumes, where they go on, and whether they are paused."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, Field

from penstock.console.access.callers import Caller
from penstock.console.access.state import caller_of
from penstock.console.api.clients import no_such
from penstock.console.api.parameters import MOST_NAMED
from penstock.console.errors import Problem
from penstock.console.store.connection import StoreConnection
from penstock.console.store.groups import (
    GroupKey,
    listed_groups,
    look_at_move,
    move_group,
    pause_group,
    paused_groups,
    tags_of_groups,
    the_group,
    works_of_groups,
)
from store.state.consumer_work import ConsumerWork
from store.wire import group_messages as of_group

router = APIRouter(tags=["groups"])
Asking = Annotated[Caller, Depends(caller_of)]
GroupNamed = Annotated[str, Path(min_length=1, max_length=255)]
FilterOf = Annotated[str, Query(alias="filter", min_length=1, max_length=2_048, description="The group's filter.")]


class ConsumerModel(BaseModel):
    peer: str
    consumer: str
    in_flight: int
    partitions: list[int]


class WorkModel(BaseModel):
    """What a flow tells of its work since its process started."""

    sent: int = Field(description="Messages that are where it leads.")
    failed: int = Field(description="Attempts that failed.")
    dead: int = Field(description="Dead letters.")
    lost: int = Field(description="Records that Kafka deleted before the flow had read them.")
    outages: int = Field(description="How often the place that it leads to, or comes from, was away.")
    lag: int | None = Field(description="Records in Kafka that it has yet to bring; null for a flow from the store.")
    away: bool = Field(description="Its place takes, or gives, nothing now.")
    error: str = Field(description="The newest one; empty: there was none.")
    error_ms: int = Field(description="When that was, Unix time in ms.")


class GroupModel(BaseModel):
    """A group; a name and a filter make it."""

    group: str
    topic_filter: str
    tag: str = Field(description="It has messages with one of these tags alone (A||B); empty: all.")
    acked_offset: int = Field(description="All before this queue_offset is done with.")
    next_offset: int = Field(description="Where its queue ends.")
    lag: int = Field(description="Messages that are not done with.")
    in_flight: int
    retries: int = Field(description="Messages that wait to be handed out again.")
    dead_letters: int = Field(description="Since it was made.")
    consumers: int
    paused: bool = Field(description="It hands out nothing; what consumers hold stays theirs.")
    some_consumers: list[ConsumerModel]
    work: WorkModel | None = Field(description="Of a flow; null: its consumers tell nothing.")
    settings: dict[str, Any]


class GroupsModel(BaseModel):
    groups: list[GroupModel]


class GroupMove(BaseModel):
    to: str = Field(max_length=64, description="earliest, latest (now), -1h, an RFC 3339 time, or a queue_offset.")
    dry_run: bool = Field(False, description="Only say what the move would do.")


class GroupMoved(BaseModel):
    queue_offset: int = Field(description="Where it goes on.")
    skipped: int = Field(description="Messages that are not done with, and that nobody gets now.")
    repeated: int = Field(description="Messages that are done with, and that come again.")
    exact: bool = Field(
        description="false: at most about so many: it is ordered, or goes on between messages that consumers hold."
    )
    moved: bool = Field(description="false: a dry run.")


class GroupPaused(BaseModel):
    paused: bool
    queue_offset: int = Field(description="All before it is done with.")


@router.get("/groups", operation_id="list_groups", summary="Consumer groups")
async def groups(
    caller: Asking, name: Annotated[str, Query(max_length=255, description="Those of this name; empty: all.")] = ""
) -> GroupsModel:
    """Those whose messages the user may subscribe to."""
    connection = caller.connection
    found, paused = await listed_groups(connection, name), await paused_groups(connection, name)
    works, tags = await works_of_groups(connection, name), await tags_of_groups(connection, name)
    return GroupsModel(groups=[_model(connection, each, paused, works, tags) for each in found])


@router.get("/groups/{group}", operation_id="get_group", summary="One consumer group")
async def one(
    caller: Asking,
    group: GroupNamed,
    topic_filter: Annotated[
        str | None,
        Query(
            alias="filter",
            min_length=1,
            max_length=2_048,
            description="Its filter, where several groups have this name.",
        ),
    ] = None,
) -> GroupModel:
    """As the list has it; 404: there is none whose messages the user may subscribe to. 422: it is one of several."""
    connection = caller.connection
    if topic_filter is not None:
        found = await _the_one(connection, group, topic_filter)
    else:
        found = await _of_this_name(connection, group)
    paused, works = await paused_groups(connection, group), await works_of_groups(connection, group)
    return _model(connection, found, paused, works, await tags_of_groups(connection, group))


@router.post("/groups/{group}/move", operation_id="move_group", summary="Have a group go on elsewhere")
async def move(caller: Asking, group: GroupNamed, topic_filter: FilterOf, wanted: GroupMove) -> GroupMoved:
    """Its consumers lose the messages that they hold. With `dry_run` it moves nothing, and says what a move would skip
    and repeat.
    """
    connection = caller.connection
    look = await look_at_move(connection, await _the_one(connection, group, topic_filter), wanted.to)
    at = look.queue_offset
    if not wanted.dry_run:
        names = connection.names
        at = await move_group(connection, (names.group(group), names.topic(topic_filter)), look.queue_offset)
    return GroupMoved(
        queue_offset=at,
        skipped=look.skipped,
        repeated=look.repeated,
        exact=look.is_exact,
        moved=not wanted.dry_run,
    )


@router.post("/groups/{group}/pause", operation_id="pause_group", summary="Have a group hand out nothing")
async def pause(caller: Asking, group: GroupNamed, topic_filter: FilterOf) -> GroupPaused:
    """Its lag grows. What its consumers hold stays theirs, and counts when it is settled. It holds across restarts."""
    return await _paused(caller.connection, group, topic_filter, paused=True)


@router.post(
    "/groups/{group}/resume", operation_id="resume_group", summary="Have a paused group hand out messages again"
)
async def resume(caller: Asking, group: GroupNamed, topic_filter: FilterOf) -> GroupPaused:
    return await _paused(caller.connection, group, topic_filter, paused=False)


async def _paused(connection: StoreConnection, group: str, topic_filter: str, paused: bool) -> GroupPaused:
    await _the_one(connection, group, topic_filter)
    return GroupPaused(paused=paused, queue_offset=await pause_group(connection, group, topic_filter, paused))


@router.delete(
    "/groups/{group}", operation_id="drop_group", summary="Forget a group that has no consumers", status_code=204
)
async def drop(caller: Asking, group: GroupNamed, topic_filter: FilterOf) -> None:
    names = caller.connection.names
    await _the_one(caller.connection, group, topic_filter)
    message = of_group.GroupDrop(names.group(group), names.topic(topic_filter))
    await caller.connection.request(message, of_group.GroupDone)


async def _the_one(connection: StoreConnection, group: str, topic_filter: str) -> of_group.GroupInfo:
    """Raises Problem if there is no such group."""
    found = await the_group(connection, group, topic_filter)
    if found is None:
        raise no_such(f"group over {topic_filter[:200]!r} called", group)
    return found


async def _of_this_name(connection: StoreConnection, name: str) -> of_group.GroupInfo:
    """Raises Problem if there is none, or several."""
    found = await listed_groups(connection, name)
    if not found:
        raise no_such("group called", name)
    if len(found) > 1:
        filters = [connection.names.plain_topic(each.topic_filter)[:200] for each in found[:MOST_NAMED]]
        detail = f"{len(found)} groups are called {name!r}; filters of theirs: {', '.join(map(repr, filters))}"
        raise Problem(422, "several-groups", detail, "give the filter of one of them")
    return found[0]


def _model(
    connection: StoreConnection,
    found: of_group.GroupInfo,
    paused: set[GroupKey],
    works: dict[GroupKey, ConsumerWork],
    tags: dict[GroupKey, str],
) -> GroupModel:
    work = works.get((found.group, found.topic_filter))
    fields: dict[str, Any] = msgspec.to_builtins({name: getattr(found, name) for name in _SHOWN})
    return GroupModel(
        group=connection.names.plain_group(found.group),
        topic_filter=connection.names.plain_topic(found.topic_filter),
        settings=msgspec.structs.asdict(found.settings),
        tag=tags.get((found.group, found.topic_filter), ""),
        paused=(found.group, found.topic_filter) in paused,
        work=WorkModel(**msgspec.structs.asdict(work)) if work is not None else None,
        some_consumers=[ConsumerModel(**msgspec.structs.asdict(each)) for each in found.some],
        **fields,
    )


_SHOWN = ("acked_offset", "next_offset", "lag", "in_flight", "retries", "dead_letters", "consumers")
