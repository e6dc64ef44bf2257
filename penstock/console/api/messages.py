"""Reading messages: pages, one message, and streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.console.access.callers import Caller
from penstock.console.access.state import caller_of, console_of
from penstock.console.api.parameters import checked_limit
from penstock.console.api.problems import bad_parameter
from penstock.console.api.streams import EVENTS, NDJSON, events, ndjson
from penstock.console.store.connection import StoreConnection
from penstock.console.views.cursor import PageCursor, parse_cursor, query_of, text_of
from penstock.console.views.history import NO_END, HistoryPage, HistoryPages, HistorySpan
from penstock.console.views.messages import MessageFields, Order, encoded, made, page_of
from penstock.console.views.sizes import ANSWER_BYTES, fitting, shown_bytes
from penstock.sdk.positions import moment, where
from store.records.record_bytes import walk
from store.wire import messages as wire

JSON = "application/json"
MOST_FILTER = 2_048  # characters: as %XX they fit into the 64 KiB of a URL

router = APIRouter(tags=["messages"])


class MessageModel(BaseModel):
    """A stored message. What it does not have is left out."""

    message_id: str
    topic: str
    log_offset: int = Field(description="Its place in the log, in bytes.")
    stored_at: str = Field(description="When it was stored, RFC 3339 in UTC.")
    queue_offset: int | None = Field(default=None, description="Its place in its topic, where one topic is read.")
    payload: str | None = Field(default=None, description="Its payload as text, if that is UTF-8.")
    payload_base64: str | None = Field(default=None, description="Its payload, if that is not UTF-8.")
    qos: int = 0
    retain: bool = False
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str] | None = Field(
        default=None, description="User properties; of several of one name the last."
    )
    user_properties: list[list[str]] | None = Field(default=None, description="All, if a name comes twice.")
    content_type: str | None = None
    client_id: str = Field(default="", description="Of the MQTT client that published it.")
    expires_after_s: int | None = None
    response_topic: str | None = None
    correlation_data_base64: str | None = None
    lost: int = Field(default=0, description="Messages before it that are lost, as the log is damaged.")
    unreadable: str = Field(
        default="", description="Why it has no payload here: it cannot be decompressed, or is larger than 16 MiB."
    )


class PageModel(BaseModel):
    """Its payloads have 4 MiB together, decompressed, or it has one message; it may have fewer than `limit`."""

    messages: list[MessageModel]
    next: str | None = Field(description="The cursor of the next page in this order; null: that was all.")


Filter = Annotated[
    str, Query(alias="filter", min_length=1, max_length=MOST_FILTER, description="A topic, a topic filter, or #.")
]
Start = Annotated[
    str | None,
    Query(
        max_length=64,
        description="That one included: earliest, now, -15m, -1h, -7d, RFC 3339, a log_offset, or @7 in one topic. "
        "Default: earliest, of a stream of events now.",
    ),
]
Stop = Annotated[str | None, Query(max_length=64, description="That one not included; as start. Default: now.")]


@router.get(
    "/messages",
    operation_id="read_messages",
    summary="Read messages",
    response_model=PageModel,
    responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}, EVENTS: {"schema": {"type": "string"}}}}},
)
async def read(
    request: Request,
    caller: Annotated[Caller, Depends(caller_of)],
    topic_filter: Filter,
    start: Start = None,
    stop: Stop = None,
    limit: Annotated[
        int | None,
        Query(ge=1, description="Messages of a page, which may have fewer; of NDJSON any number (default: all)."),
    ] = None,
    order: Annotated[Order | None, Query(description="asc: oldest first (default); desc: newest first.")] = None,
    key: Annotated[
        str | None, Query(min_length=1, max_length=1_024, description="Messages with this key, newest first.")
    ] = None,
    tag: Annotated[str, Query(max_length=255, description="Messages with this tag alone.")] = "",
    cursor: Annotated[str | None, Query(max_length=1_024, description="`next` of the page before.")] = None,
) -> Response:
    """`Accept: application/x-ndjson` streams all of them as lines. `Accept: text/event-stream` goes on live, and
    resumes after `Last-Event-ID` without a gap or a repeat; without one it begins at `start` (default: now).

    A page with `order=desc` comes by the index, whatever the length of the log.
    """
    accept = request.headers.get("accept", "")
    if EVENTS in accept:
        _refuse(request, ("stop", "limit", "order", "key", "cursor"), "a stream of events")
        return await _live(request, caller, HistorySpan(topic_filter, start or "now", tag=tag))
    span = HistorySpan(topic_filter, position_of(start, "start", "earliest"), position_of(stop, "stop", "now"), tag)
    if NDJSON in accept:
        _refuse(request, ("order", "key", "cursor"), "a stream, which is oldest first,")
        pages = history_of(caller.connection)
        begin, end = await pages.log_offset(span, span.start), await pages.log_offset(span, span.stop)
        reading = caller.connection.read(span.topic_filter, start=begin, stop=end, tag=tag)
        return ndjson(console_of(request), caller, reading, limit)
    limit = checked_limit(request, limit)
    query = query_of("messages", topic_filter, start, stop, order, key, tag)
    goes_on = parse_cursor(cursor, query) if cursor is not None else None
    if key is not None:
        return await _with_key(caller.connection, span, key, order, limit, goes_on, query)
    pages = history_of(caller.connection)
    step = pages.backward if order == "desc" else pages.forward
    page = await step(span, limit, (goes_on.at, goes_on.until) if goes_on is not None else None)
    return await _answer(caller.connection, page, query)


@router.get("/messages/{message_id}", operation_id="get_message", summary="One message", response_model=MessageModel)
async def one(message_id: str, caller: Annotated[Caller, Depends(caller_of)]) -> Response:
    """The message that a receipt names."""
    message = await caller.connection.at(message_id)
    found: list[MessageFields] = [(message.record, message.queue_offset)]
    return Response(await made(lambda messages: encoded(messages[0]), found, caller.connection.place), media_type=JSON)


def _refuse(request: Request, names: Sequence[str], what: str) -> None:
    """Raises Problem if the query has one of these parameters: it would be ignored."""
    given = [name for name in names if name in request.query_params]
    if given:
        raise bad_parameter(given[0], f"{what} does not have it", "ask for pages (Accept: application/json)")


def position_of(text: str | None, name: str, default: str) -> str | int:
    """A position as the SDK has it. Raises Problem."""
    if text is None:
        return default
    position: str | int = int(text) if text.isdecimal() else text
    try:
        where(position)
    except ValueError as error:
        raise bad_parameter(name, str(error)) from None
    return position


def history_of(connection: StoreConnection) -> HistoryPages:
    """The pages of a connection, which remember places of its log."""
    if not isinstance(connection.pages, HistoryPages):
        connection.pages = HistoryPages(connection)
    return connection.pages


async def _answer(connection: StoreConnection, page: HistoryPage, query: bytes) -> Response:
    goes_on = None if page.next is None else text_of(PageCursor(query, *page.next))
    return Response(await page_of(page.messages, goes_on, connection.place), media_type=JSON)


async def _with_key(
    connection: StoreConnection,
    span: HistorySpan,
    key: str,
    order: Order | None,
    limit: int,
    goes_on: PageCursor | None,
    query: bytes,
) -> Response:
    """A page of messages with a key: newest first, by the index of keys."""
    if order == "asc":
        raise bad_parameter("order", "messages with a key are found newest first", "leave out order, or give desc")
    if isinstance(span.start, int) or isinstance(span.stop, int):
        raise bad_parameter("start", "a log_offset does not go with key", "give times")
    before = goes_on.at if goes_on is not None else NO_END
    in_log = connection.names.topic(span.topic_filter)
    found: list[MessageFields] = []
    left_bytes = ANSWER_BYTES
    while before and len(found) < limit:
        request = wire.Find(key, in_log, moment(span.start), moment(span.stop), before, limit - len(found))
        answer, records = await connection.request(request, wire.Found)
        part = list(walk(records))
        number = max(fitting(part, left_bytes), int(not found))
        found += [(record, None) for record in part[:number]]
        left_bytes -= sum(map(shown_bytes, part[:number]))
        before = answer.before
        if number < len(part):
            before = found[-1][0][0]
            break
    return await _answer(connection, HistoryPage(found, (before, 0) if before else None), query)


async def _live(request: Request, caller: Caller, span: HistorySpan) -> Response:
    """A stream of events, after the last one that this client has."""
    last = request.headers.get("last-event-id")
    pages = history_of(caller.connection)
    if last is not None:
        if not last.isdecimal() or int(last) >= NO_END:
            raise bad_parameter("Last-Event-ID", f"{last[:100]!r} is no log_offset", "send it as an event had it")
        start = await pages.behind(span.topic_filter, int(last))
    else:
        # The place of `now` is that of the request, not that of the first look into the log.
        start = await pages.log_offset(span, position_of(str(span.start), "start", "now"))
    reading = caller.connection.read(span.topic_filter, start=start, stop=None, tag=span.tag)
    return events(console_of(request), caller, reading)
