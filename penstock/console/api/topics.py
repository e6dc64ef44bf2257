"""Topics: the tree by level, a search as one types, and one topic."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.console.access.callers import Caller
from penstock.console.access.state import caller_of, console_of
from penstock.console.api.messages import JSON, MessageModel, Start, Stop, history_of, position_of
from penstock.console.api.parameters import After, PageLimit
from penstock.console.api.problems import bad_parameter
from penstock.console.errors import Problem
from penstock.console.views.cursor import PageCursor, parse_cursor, query_of, text_of
from penstock.console.views.messages import encoded
from penstock.console.views.series import series, step_ms_of
from penstock.console.views.sizes import in_worker
from penstock.console.views.topics import TopicsPage

MOST_WITH_LAST = 100

router = APIRouter(tags=["topics"])


class TopicModel(BaseModel):
    """A name at one level of the tree, or a topic that was found."""

    name: str
    topic: str = Field(description="The topic, or the beginning of topics.")
    is_topic: bool = Field(description="Whether it has messages of its own.")
    topics_below: int = Field(description="Topics whose names go on behind it.")
    messages: int | None = Field(description="Messages that it has had, those included that are not kept any more.")
    rate_per_s: float | None = Field(description="Messages a second since it was looked at last; null at first.")
    last: MessageModel | None = Field(description="Its last message, where that was asked for and may be read.")


class TopicsModel(BaseModel):
    topics: list[TopicModel]
    topics_known: int = Field(description="All topics with this prefix.")
    next: str | None = Field(description="The cursor of the next page; null: that was all.")


@router.get(
    "/topics", operation_id="list_topics", summary="Topics: the tree by level, or a search", response_model=TopicsModel
)
async def topics(
    request: Request,
    caller: Annotated[Caller, Depends(caller_of)],
    limit: PageLimit,
    prefix: Annotated[str, Query(max_length=2_048, description="Levels, with a / at the end; empty: all topics.")] = "",
    search: Annotated[
        str | None,
        Query(min_length=1, max_length=1_024, description="A part of the name; in lower case it matches any case."),
    ] = None,
    after: After = None,
    last: Annotated[
        bool, Query(description="With the last message of each topic; of 100 topics, and of 4 MiB, at most.")
    ] = False,
) -> Response:
    """Without `search`, the names of the level after `prefix`. The store is asked for its topics every few seconds.

    A user sees what he may subscribe to: without permission for all topics with this `prefix`, those of them that a
    filter of his permissions matches as a whole (`readable` of GET /session); 403 where there is no such filter.
    """
    if prefix and not prefix.endswith("/"):
        raise bad_parameter("prefix", f"{prefix[:100]!r} does not end with /", "give whole levels, such as line/7/")
    check_topic(prefix, "prefix")
    if last:
        limit = min(limit, MOST_WITH_LAST)
    query = query_of("topics", prefix, search)
    behind = parse_cursor(after, query).after if after is not None else ""
    views, connection = console_of(request).topics, caller.connection
    if search is None:
        rows, known, following = await views.tree(connection, prefix, behind, limit)
    else:
        rows, known, following = await views.search(connection, search, prefix, behind, limit)
    if last:
        number = await views.add_last(connection, history_of(connection), rows)
        if number < len(rows):
            rows = rows[:number]
            following = rows[-1].name if search is None else rows[-1].topic
    goes_on = text_of(PageCursor(query, after=following)) if following else None
    return Response(await in_worker(encoded, TopicsPage(rows, known, goes_on)), media_type=JSON)


@router.get("/topics/{topic:path}", operation_id="get_topic", summary="One topic", response_model=TopicModel)
async def topic(request: Request, topic: str, caller: Annotated[Caller, Depends(caller_of)]) -> Response:
    """Its count, its rate since it was looked at last, and its last message."""
    check_topic(topic, "topic")
    connection = caller.connection
    found = await console_of(request).topics.one(connection, history_of(connection), topic)
    if not found.messages:
        raise Problem(404, "no-such-topic", f"{topic!r} has had no message", "see GET /api/v1/topics")
    return Response(encoded(found), media_type=JSON)


class PointModel(BaseModel):
    """The values of one step."""

    time: str = Field(description="Where the step begins, RFC 3339 in UTC.")
    value: float = Field(description="The mean of the values.")
    min: float
    max: float
    last: float
    count: int


class SeriesModel(BaseModel):
    points: list[PointModel]
    messages: int
    left_out: int = Field(description="Messages without a number there.")
    is_complete: bool = Field(description="The whole range was read.")
    until: str | None = Field(description="Else: where it ends; a request from there on goes on.")


@router.get("/series", operation_id="read_series", summary="A number of a topic over time", response_model=SeriesModel)
async def number_over_time(
    caller: Annotated[Caller, Depends(caller_of)],
    topic: Annotated[str, Query(min_length=1, max_length=2_048)],
    field: Annotated[str, Query(max_length=1_024, description="Names with dots; empty: the payload is a number.")] = "",
    start: Start = "-1h",
    stop: Stop = "now",
    step: Annotated[str, Query(max_length=16, description="500ms, 10s, 1m, 2h or 1d.")] = "1m",
) -> Response:
    """A field of JSON payloads, in steps of time: for Grafana's Infinity data source, and for charts."""
    check_topic(topic, "topic")
    try:
        step_ms = step_ms_of(step)
    except ValueError as error:
        raise bad_parameter("step", str(error)) from None
    begin, end = position_of(start, "start", "-1h"), position_of(stop, "stop", "now")
    found = await series(caller.connection, topic, field, begin, end, step_ms)
    return Response(encoded(found), media_type=JSON)


def check_topic(topic: str, name: str) -> None:
    """Refuse what cannot be a topic. Raises Problem."""
    if "\0" in topic or "+" in topic or "#" in topic or len(topic.encode(errors="replace")) > 65_535:
        raise bad_parameter(name, f"{topic[:100]!r} is no name of a topic", "give one without +, # and U+0000")
