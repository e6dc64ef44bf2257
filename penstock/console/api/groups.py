"""Consumer groups: what they lag behind, who consumes, and where they go on."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from penstock.console.access.callers import Caller
from penstock.console.access.state import caller_of
from penstock.console.api.clients import no_such
from penstock.console.store.connection import StoreConnection
from store.wire import group_messages as of_group

router = APIRouter(tags=["groups"])
Asking = Annotated[Caller, Depends(caller_of)]
FilterOf = Annotated[str, Query(alias="filter", min_length=1, max_length=2_048, description="The group's filter.")]


class ConsumerModel(BaseModel):
    peer: str
    consumer: str
    in_flight: int
    partitions: list[int]


class GroupModel(BaseModel):
    """A group; a name and a filter make it."""

    group: str
    topic_filter: str
    acked_offset: int = Field(description="All before this queue_offset is done with.")
    next_offset: int = Field(description="Where its queue ends.")
    lag: int = Field(description="Messages that are not done with.")
    in_flight: int
    retries: int = Field(description="Messages that wait to be handed out again.")
    dead_letters: int = Field(description="Since it was made.")
    consumers: int
    some_consumers: list[ConsumerModel]
    settings: dict[str, Any]


class GroupsModel(BaseModel):
    groups: list[GroupModel]


class GroupMove(BaseModel):
    to: str = Field(max_length=64, description="earliest, latest (now), -1h, an RFC 3339 time, or a queue_offset.")


class GroupMoved(BaseModel):
    queue_offset: int = Field(description="Where it goes on.")


@router.get("/groups", summary="Consumer groups")
async def groups(
    caller: Asking, name: Annotated[str, Query(max_length=255, description="Those of this name; empty: all.")] = ""
) -> GroupsModel:
    """Those whose messages the user may subscribe to."""
    found = await _listed(caller.connection, name)
    return GroupsModel(groups=[_model(caller.connection, each) for each in found])


@router.post("/groups/{group}/move", summary="Have a group go on elsewhere")
async def move(caller: Asking, group: str, topic_filter: FilterOf, wanted: GroupMove) -> GroupMoved:
    """Its consumers lose the messages that they hold."""
    names = caller.connection.names
    to = "latest" if wanted.to == "now" else wanted.to
    await _the_one(caller.connection, group, topic_filter)
    message = of_group.GroupReset(names.group(group), names.topic(topic_filter), to)
    done, _ = await caller.connection.request(message, of_group.GroupDone)
    return GroupMoved(queue_offset=done.queue_offset)


@router.delete("/groups/{group}", summary="Forget a group that has no consumers", status_code=204)
async def drop(caller: Asking, group: str, topic_filter: FilterOf) -> None:
    names = caller.connection.names
    await _the_one(caller.connection, group, topic_filter)
    message = of_group.GroupDrop(names.group(group), names.topic(topic_filter))
    await caller.connection.request(message, of_group.GroupDone)


async def _listed(connection: StoreConnection, name: str) -> list[of_group.GroupInfo]:
    found: list[of_group.GroupInfo] = []
    more, skip = True, 0
    names = connection.names
    while more:
        request = of_group.GroupList(names.group(name) if name else "", skip)
        answer, _ = await connection.request(request, of_group.GroupsListed)
        skip += len(answer.groups)
        filters = [names.plain_topic(each.topic_filter) for each in answer.groups]
        permitted = await connection.permitted("subscribe", filters) if filters else []
        found += [each for each, is_seen in zip(answer.groups, permitted, strict=True) if is_seen]
        more = answer.more and bool(answer.groups)
    return found


async def _the_one(connection: StoreConnection, group: str, topic_filter: str) -> None:
    """Raises Problem if there is no such group."""
    in_log = connection.names.topic(topic_filter)
    if not any(each.topic_filter == in_log for each in await _listed(connection, group)):
        raise no_such(f"group over {topic_filter[:200]!r} called", group)


def _model(connection: StoreConnection, found: of_group.GroupInfo) -> GroupModel:
    fields: dict[str, Any] = msgspec.to_builtins({name: getattr(found, name) for name in _SHOWN})
    return GroupModel(
        group=connection.names.plain_group(found.group),
        topic_filter=connection.names.plain_topic(found.topic_filter),
        settings=msgspec.structs.asdict(found.settings),
        some_consumers=[ConsumerModel(**msgspec.structs.asdict(each)) for each in found.some],
        **fields,
    )


_SHOWN = ("acked_offset", "next_offset", "lag", "in_flight", "retries", "dead_letters", "consumers")
