"""A topic: its messages from the newest back to the first, a time to jump to, and a chart of their numbers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from starlette.responses import JSONResponse, Response

from penstock.console.errors import Problem
from penstock.console.pages.rendering import PageVisit, page, query
from penstock.console.views.chart_values import chart_values
from penstock.console.views.cursor import PageCursor, parse_cursor, query_of, text_of
from penstock.console.views.history import HistoryPages, HistorySpan
from penstock.console.views.messages import MessageFields
from penstock.console.views.payloads import numeric_fields, preview_of
from penstock.console.views.sizes import bounded_payload, in_worker
from penstock.console.views.topic_looks import end_of
from penstock.sdk.errors import NotFound, Unreadable
from penstock.sdk.message import Message
from penstock.sdk.positions import Position

ROWS = 50
MOST_TIME = 64
LOOKED_AT_FOR_FIELDS = 20
LOOKED_AT_S = 1.0
MOST_CHART_FIELDS = 4
RANGES = (("-5m", "5 minutes"), ("-1h", "1 hour"), ("-1d", "1 day"), ("-7d", "7 days"), ("earliest", "all"))


@page("/topic")
async def topic_page(visit: PageVisit) -> Response:
    """`cursor`: older messages; `newer`: those from a log_offset on; `at`: those before a time; `view`: chart."""
    name = topic_of(visit)
    if visit.asked("view", most=16) == "chart":
        return await chart_page(visit, name)
    if "newer" in visit.request.query_params:
        values = await _newer(visit, name)
    else:
        values = await _older(visit, name)
    return visit.show("topic_part.html" if visit.is_part else "topic.html", topic=name, view="messages", **values)


def topic_of(visit: PageVisit) -> str:
    """Raises Problem."""
    name = visit.asked("name")
    if not name or "+" in name or "#" in name:
        raise Problem(400, "bad-parameter", "name: no topic", "choose one on the page Topics")
    return name


async def _older(visit: PageVisit, name: str) -> dict[str, Any]:
    history, kind = HistoryPages(visit.caller.connection), query_of("topic page", name)
    at, cursor = visit.asked("at", most=MOST_TIME), visit.asked("cursor")
    end = await end_of(history, name)
    span = HistorySpan(name, stop=time_of(at)) if at else HistorySpan(name)
    goes_on = parse_cursor(cursor, kind) if cursor else None
    found = await history.backward(span, ROWS, (goes_on.at, goes_on.until) if goes_on else None)
    newer = await history.log_offset(span, span.stop) if at and not cursor else None
    return {
        "rows": rows(visit, found.messages),
        "older": text_of(PageCursor(kind, *found.next)) if found.next else None,
        "newer": newer,
        "live_from": None if at or cursor else _behind(found.messages, end),
        "at": at,
        "is_older": bool(cursor),
    }


async def _newer(visit: PageVisit, name: str) -> dict[str, Any]:
    history = HistoryPages(visit.caller.connection)
    end = await end_of(history, name)
    found = await history.forward(HistorySpan(name, start=visit.number("newer", 0)), ROWS)
    messages = found.messages[::-1]
    return {
        "rows": rows(visit, messages),
        "older": None,
        "newer": found.next[0] if found.next else None,
        "live_from": None if found.next else _behind(messages, end),
        "at": "",
        "is_older": False,
    }


def _behind(messages: list[MessageFields], end: int) -> int:
    """queue_offset after the newest of these messages, which is the first; `end` if there is none."""
    newest = messages[0][1] if messages else None
    return end if newest is None else newest + 1


def time_of(text: str) -> Position:
    """`-15m`, or an RFC 3339 time, which is in UTC unless it says otherwise. Raises Problem."""
    if text.startswith("-") or text in ("earliest", "now"):
        return text
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Problem(400, "bad-parameter", "at: no time", "write it as 2026-01-31T12:00:00 or -15m") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def rows(visit: PageVisit, messages: list[MessageFields]) -> list[tuple[Message, str]]:
    """Messages with one line of their payloads."""
    place = visit.caller.connection.place
    return [row(Message(record, queue_offset, place)) for record, queue_offset in messages]


def row(message: Message) -> tuple[Message, str]:
    return message, preview_of(message)


# --- charts


def _fields_of(message: Message) -> list[str]:
    try:
        return numeric_fields(bounded_payload(message))
    except Unreadable:
        return []


async def chart_page(visit: PageVisit, name: str) -> Response:
    history = HistoryPages(visit.caller.connection)
    newest = (await history.backward(HistorySpan(name), LOOKED_AT_FOR_FIELDS)).messages
    place = visit.caller.connection.place
    fields: dict[str, None] = {}
    looked_until_s = asyncio.get_running_loop().time() + LOOKED_AT_S
    for record, queue_offset in newest:
        fields |= dict.fromkeys(await in_worker(_fields_of, Message(record, queue_offset, place)))
        if asyncio.get_running_loop().time() > looked_until_s:
            break
    asked = visit.request.query_params.getlist("field")[:MOST_CHART_FIELDS]
    chosen = [field for field in asked if len(field) <= 1_024] or list(fields)[:1]
    start, stop = visit.asked("start", "earliest", MOST_TIME), visit.asked("stop", "now", MOST_TIME)
    time_of(start), time_of(stop)
    address = query("/topic/chart", name=name, start=start, stop=stop) + "".join(
        "&" + query("", field=field)[1:] if field else "&field=" for field in chosen
    )
    return visit.show(
        "topic_chart.html",
        topic=name,
        view="chart",
        fields=sorted({*fields, *chosen}),
        chosen=chosen,
        start=start,
        stop=stop,
        ranges=RANGES,
        address=address if chosen else "",
    )


@page("/topic/chart")
async def chart(visit: PageVisit) -> Response:
    """The points of fields over a time, for a chart."""
    name, connection = topic_of(visit), visit.caller.connection
    fields = visit.request.query_params.getlist("field")[:MOST_CHART_FIELDS]
    start, stop = visit.asked("start", "earliest", MOST_TIME), visit.asked("stop", "now", MOST_TIME)
    span = HistorySpan(name, time_of(start), time_of(stop))
    try:
        found = await chart_values(HistoryPages(connection), connection.place, span, fields)
    except NotFound as error:
        raise Problem(404, "no-such-topic", str(error), "choose one on the page Topics") from None
    note = f"{len(found.times)} points of {found.messages} messages"
    if found.is_late:
        note += f"; {found.read} of these were read, the oldest ones, as that took long: choose a shorter time"
    elif found.read < found.messages:
        note += f"; {found.read} of these were read, in parts that are spread evenly"
    named = [{"label": field or "value", "values": column} for field, column in zip(fields, found.values, strict=True)]
    return JSONResponse({"times": found.times, "series": named, "note": f"{note}."})
