"""Delayed messages that are yet to be published, and retained messages."""

from __future__ import annotations

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
from penstock.console.views.cursor import PageCursor, parse_cursor, query_of, text_of
from penstock.console.views.messages import page_of, rfc3339
from penstock.console.views.retained import RetainedPlace, retained_page
from penstock.sdk.filters import matches_any
from store.wire import messages as wire

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
    """In the order of their topics. `#` stands for all that the user may subscribe to: without permission for `#`
    itself for those of one filter of its permissions after another (`readable` of GET /session). A page may have fewer
    than `limit`, and still a next one.
    """
    connection = caller.connection
    query = query_of("retained", topic_filter)
    cursor = parse_cursor(after, query) if after is not None else PageCursor(query)
    found, following = await retained_page(connection, topic_filter, RetainedPlace(cursor.at, cursor.after), limit)
    goes_on = None if following is None else text_of(PageCursor(query, following.filter_number, after=following.after))
    fields = [(message.record, message.queue_offset) for message in found]
    return Response(await page_of(fields, goes_on, connection.place), media_type=JSON)


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
