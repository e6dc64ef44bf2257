"""Delayed messages that are yet to be published, and retained messages."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from penstock.console.access.callers import Caller
from penstock.console.access.state import caller_of
from penstock.console.api.clients import no_such
from penstock.console.api.messages import JSON, Filter, PageModel
from penstock.console.api.parameters import After, PageLimit
from penstock.console.api.topics import check_topic
from penstock.console.store.connection import StoreConnection
from penstock.console.views.cursor import PageCursor, parse_cursor, query_of, text_of
from penstock.console.views.messages import MessageFields, page_of, rfc3339
from penstock.console.views.sizes import ANSWER_BYTES, shown_bytes
from penstock.sdk.errors import NotFound, NotPermitted
from penstock.sdk.filters import matches_any
from penstock.sdk.message import TOPIC
from store.wire import messages as wire

AT_A_TIME = 8
"""Retained messages that are read at a time."""

router = APIRouter()
Asking = Annotated[Caller, Depends(caller_of)]


class DelayedModel(BaseModel):
    topic: str
    key: str | None
    due: str = Field(description="When it is published, RFC 3339 in UTC.")
    due_ms: int
    log_offset: int
    message_id: str


class DelayedPage(BaseModel):
    delayed: list[DelayedModel]
    next: str | None


@router.get(
    "/delayed",
    operation_id="list_delayed",
    summary="Delayed messages, those first that are due first",
    tags=["delayed"],
)
async def delayed(
    caller: Asking,
    limit: PageLimit,
    topic_filter: Annotated[str, Query(alias="filter", max_length=2_048)] = "#",
    after: After = None,
) -> DelayedPage:
    """Those of topics that the user may subscribe to."""
    query = query_of("delayed", topic_filter)
    cursor = parse_cursor(after, query) if after is not None else PageCursor(query)
    connection = caller.connection
    answer, _ = await connection.request(wire.ListDelayed((cursor.at, cursor.until), limit), wire.DelayedFound)
    rows = []
    for log_offset, due_ms, in_log, key in answer.messages:
        topic = connection.names.plain_topic(in_log)
        if matches_any((topic_filter,), topic):
            message_id = connection.place.message_id(log_offset)
            rows.append(
                DelayedModel(
                    topic=topic,
                    key=key.decode(errors="replace") or None,
                    due=rfc3339(due_ms),
                    due_ms=due_ms,
                    log_offset=log_offset,
                    message_id=message_id,
                )
            )
    return DelayedPage(delayed=rows, next=None if answer.next is None else text_of(PageCursor(query, *answer.next)))


@router.delete(
    "/delayed/{log_offset}",
    operation_id="cancel_delayed",
    summary="Take back a delayed message",
    status_code=204,
    tags=["delayed"],
)
async def cancel(
    caller: Asking,
    log_offset: int,
    due_ms: Annotated[int, Query(ge=0, lt=1 << 62, description="As the list has it.")],
) -> Response:
    """404: it is published already, or was taken back before."""
    if not 0 <= log_offset < 1 << 62:
        raise no_such("delayed message at log_offset", str(log_offset))
    answer, _ = await caller.connection.request(wire.CancelDelayed(log_offset, due_ms), wire.DelayedCancelled)
    if not answer.was_pending:
        raise no_such("delayed message at log_offset", str(log_offset))
    return Response(status_code=204)


@router.get(
    "/retained", operation_id="list_retained", summary="Retained messages", response_model=PageModel, tags=["retained"]
)
async def retained(caller: Asking, topic_filter: Filter, limit: PageLimit, after: After = None) -> Response:
    """In the order of their topics."""
    connection = caller.connection
    query = query_of("retained", topic_filter)
    behind = parse_cursor(after, query).after if after is not None else ""
    request = wire.Retained(connection.names.topic(topic_filter), behind, limit)
    answer, _ = await connection.request(request, wire.RetainedFound)
    found, following = await _read_retained(connection, [each[0] for each in answer.messages], answer.next)
    goes_on = None if following is None else text_of(PageCursor(query, after=following))
    return Response(await page_of(found, goes_on, connection.place), media_type=JSON)


async def _read_retained(
    connection: StoreConnection, log_offsets: list[int], following: str | None
) -> tuple[list[MessageFields], str | None]:
    """The messages there that an answer has room for, and the topic, as the log has it, behind which it goes on."""
    found: list[MessageFields] = []
    left_bytes = ANSWER_BYTES
    for at in range(0, len(log_offsets), AT_A_TIME):
        read = await asyncio.gather(*(_at(connection, each) for each in log_offsets[at : at + AT_A_TIME]))
        for message in read:
            if message is None:
                continue
            left_bytes -= shown_bytes(message[0])
            if left_bytes < 0 and found:
                return found, found[-1][0][TOPIC].decode()
            found.append(message)
    return found, following


async def _at(connection: StoreConnection, log_offset: int) -> MessageFields | None:
    """The message there, if it is still kept, and this user may read it."""
    try:
        message = await connection.get(connection.place.message_id(log_offset))
    except (NotFound, NotPermitted):
        return None
    return message.record, message.queue_offset


@router.delete(
    "/retained/{topic:path}",
    operation_id="remove_retained",
    summary="Remove a retained message",
    status_code=204,
    tags=["retained"],
)
async def remove_retained(caller: Asking, topic: str) -> Response:
    """By a retained message without a payload, as MQTT has it. The history of the topic keeps what was there."""
    check_topic(topic, "topic")
    await caller.connection.publish(topic, b"", retain=True)
    return Response(status_code=204)
