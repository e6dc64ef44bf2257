"""A topic: its messages from the newest back to the first, a time to jump to, and what comes, live."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

from starlette.responses import JSONResponse, Response

from penstock.console.api.streams import (
    EVENTS,
    KEEP_ALIVE_S,
    BoundedStream,
    is_over,
    over,
    problem_of_end,
)
from penstock.console.errors import Problem
from penstock.console.pages.rendering import TEMPLATES, PageVisit, page, query
from penstock.console.views.chart_values import chart_values
from penstock.console.views.cursor import PageCursor, parse_cursor, query_of, text_of
from penstock.console.views.history import HistoryPages, HistorySpan
from penstock.console.views.messages import MessageFields
from penstock.console.views.payloads import numeric_fields, preview_of
from penstock.console.views.sizes import bounded_payload, in_worker
from penstock.sdk.errors import ClientError, NotFound, Unreadable
from penstock.sdk.message import Message
from penstock.sdk.positions import Position
from penstock.sdk.reading import Reading

ROWS = 50
LIVE_ROWS = 20
LIVE_EVERY_S = 0.25
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
    now = await history.log_offset(HistorySpan(name), "now")
    span = HistorySpan(name, stop=time_of(at)) if at else HistorySpan(name)
    goes_on = parse_cursor(cursor, kind) if cursor else None
    found = await history.backward(span, ROWS, (goes_on.at, goes_on.until) if goes_on else None)
    newer = await history.log_offset(span, span.stop) if at and not cursor else None
    newest = await history.behind(name, found.messages[0][0][0]) if found.messages else now
    return {
        "rows": rows(visit, found.messages),
        "older": text_of(PageCursor(kind, *found.next)) if found.next else None,
        "newer": newer,
        "live_from": None if at or cursor else newest,
        "at": at,
        "is_older": bool(cursor),
    }


async def _newer(visit: PageVisit, name: str) -> dict[str, Any]:
    history = HistoryPages(visit.caller.connection)
    found = await history.forward(HistorySpan(name, start=visit.number("newer", 0)), ROWS)
    messages = found.messages[::-1]
    newest = await history.behind(name, messages[0][0][0]) if messages else visit.number("newer", 0)
    return {
        "rows": rows(visit, messages),
        "older": None,
        "newer": found.next[0] if found.next else None,
        "live_from": None if found.next else newest,
        "at": "",
        "is_older": False,
    }


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


# --- live


@page("/topic/live")
async def live(visit: PageVisit) -> Response:
    """Rows as server-sent events, from log_offset `after` on; a reader that was cut off goes on behind the last."""
    name, connection = topic_of(visit), visit.caller.connection
    last = visit.request.headers.get("last-event-id", "")
    after = visit.number("after", 0)
    if last.isascii() and last.isdigit() and len(last) < 19:
        after = await HistoryPages(connection).behind(name, int(last))
    reading = connection.read(name, start=after, stop=None)
    return BoundedStream(visit.console, visit.caller, _events(visit, reading), EVENTS)


async def _events(visit: PageVisit, reading: Reading) -> AsyncGenerator[bytes, None]:
    """The newest LIVE_ROWS of what came within LIVE_EVERY_S, and how many others did."""
    batches = reading.batches()
    following = asyncio.ensure_future(anext(batches))
    ending = over(visit.console, visit.caller)
    yield b"retry: 1000\n\n"
    try:
        while True:
            await asyncio.wait((following, ending), timeout=KEEP_ALIVE_S, return_when=FIRST_COMPLETED)
            if is_over(visit.console, visit.caller):
                return
            if not following.done():
                yield b": still there\n\n"
                continue
            newest: deque[Message] = deque(maxlen=LIVE_ROWS)
            number = 0
            ends_s = asyncio.get_running_loop().time() + LIVE_EVERY_S
            while following.done():
                batch = following.result()
                number += len(batch)
                newest.extend(batch)
                following = asyncio.ensure_future(anext(batches))
                await asyncio.wait((following,), timeout=max(0, ends_s - asyncio.get_running_loop().time()))
            yield _event(newest, number)
    except (ClientError, StopAsyncIteration) as error:
        text = problem_of_end(error).detail if isinstance(error, ClientError) else "the store ended the stream"
        yield _event_of(TEMPLATES.get_template("live_end.html").render(text=text))
    finally:
        ending.cancel()
        following.cancel()
        reading.close()


def _event(newest: deque[Message], number: int) -> bytes:
    html = TEMPLATES.get_template("live_rows.html").render(
        rows=[row(message) for message in reversed(newest)], left_out=number - len(newest)
    )
    return b"id: %d\n" % newest[-1].log_offset + _event_of(html)


def _event_of(html: str) -> bytes:
    lines = (line for line in html.splitlines() if line.strip())
    return "".join(f"data: {line}\n" for line in lines).encode() + b"\n"


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
