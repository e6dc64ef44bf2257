"""What comes to a topic while its page is open: a look each LOOK_EVERY_S, whatever the rate."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator

from starlette.responses import Response

from penstock.console.api.streams import (
    EVENTS,
    KEEP_ALIVE_S,
    BoundedStream,
    is_over,
    over,
    problem_of_end,
)
from penstock.console.pages.rendering import TEMPLATES, PageVisit, page
from penstock.console.pages.topic import rows, topic_of
from penstock.console.views.topic_looks import TopicLook, TopicLooks
from penstock.sdk.errors import ClientError, TimedOut

LOOK_EVERY_S = 0.25
MOST_DIGITS = 18


@page("/topic/live")
async def live(visit: PageVisit) -> Response:
    """Rows as server-sent events, from queue_offset `after` on; a reader that was cut off goes on after the last."""
    after = visit.number("after", 0)
    last = visit.request.headers.get("last-event-id", "")
    if last.isascii() and last.isdigit() and len(last) <= MOST_DIGITS:
        after = int(last)
    looks = TopicLooks(visit.caller.connection, topic_of(visit), after)
    return BoundedStream(visit.console, visit.caller, _events(visit, looks), EVENTS)


async def _events(visit: PageVisit, looks: TopicLooks) -> AsyncGenerator[bytes, None]:
    """Rows of each look that found some. The id of an event is the queue_offset to go on from."""
    loop = asyncio.get_running_loop()
    ending = over(visit.console, visit.caller)
    said_s = loop.time()
    yield b"retry: 1000\n\n"
    try:
        while True:
            next_s = loop.time() + LOOK_EVERY_S
            found = await _look(looks, ending)
            if is_over(visit.console, visit.caller):
                return
            if found.messages or found.others:
                yield b"id: %d\n" % looks.next_offset + _event_of(_shown(visit, found))
                said_s = loop.time()
            elif loop.time() - said_s >= KEEP_ALIVE_S:
                yield b": still there\n\n"
                said_s = loop.time()
            await asyncio.wait((ending,), timeout=max(0, next_s - loop.time()))
    except ClientError as error:
        text = problem_of_end(error).detail
        yield _event_of(TEMPLATES.get_template("live_end.html").render(text=text))
    finally:
        ending.cancel()


async def _look(looks: TopicLooks, ending: asyncio.Task[None]) -> TopicLook:
    """The next look; an empty one if the stream ends meanwhile or the store is away."""
    looking = asyncio.ensure_future(looks.look())
    try:
        await asyncio.wait((looking, ending), return_when=FIRST_COMPLETED)
        return looking.result() if looking.done() else TopicLook([], 0)
    except TimedOut:
        return TopicLook([], 0)
    finally:
        looking.cancel()


def _shown(visit: PageVisit, found: TopicLook) -> str:
    shown = rows(visit, found.messages[::-1])
    return TEMPLATES.get_template("live_rows.html").render(rows=shown, others=found.others)


def _event_of(html: str) -> bytes:
    lines = (line for line in html.splitlines() if line.strip())
    return "".join(f"data: {line}\n" for line in lines).encode() + b"\n"
