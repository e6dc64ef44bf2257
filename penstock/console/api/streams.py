"""Streams of messages: NDJSON of what is stored, and server-sent events that go on live.

A reader that is slow costs the part that it was sent last and what the SDK reads ahead (4 MiB); a reader that takes
nothing for a minute is cut off.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import count, repeat

from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from penstock.console.access.callers import Caller
from penstock.console.access.problem_answer import problem_answer
from penstock.console.access.state import ConsoleState
from penstock.console.api.problems import problem_of
from penstock.console.errors import Problem
from penstock.console.views.messages import encoded, lines, shown
from penstock.sdk.errors import ClientError
from penstock.sdk.message import Batch
from penstock.sdk.reading import Reading
from store.records.record_bytes import walk

NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
PART_MESSAGES = 1_024
KEEP_ALIVE_S = 15.0
STUCK_S = 60.0
NOT_BUFFERED = {"x-accel-buffering": "no"}


class BoundedStream(StreamingResponse):
    """A stream that ends when its reader takes nothing for STUCK_S."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_soon(message: Message) -> None:
            try:
                async with asyncio.timeout(STUCK_S):
                    await send(message)
            except TimeoutError:
                _cut_off(receive)

        await super().__call__(scope, receive, send_soon)


def _cut_off(receive: Receive) -> None:
    """End the connection at once: what waits to be sent would keep it open. The stream is told as of any other end."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)  # of uvicorn's cycle of a request
    if transport is not None:
        transport.abort()


@asynccontextmanager
async def open_stream(console: ConsoleState, caller: Caller) -> AsyncIterator[None]:
    """Counts a stream, which keeps its connection. Raises Problem."""
    if console.streams["open"] >= console.settings.max_streams:
        raise Problem(
            503,
            "too-many-streams",
            f"{console.settings.max_streams} streams are open",
            "close some, or raise the setting console.max_streams",
            {"Retry-After": "5"},
        )
    console.streams.update(open=1, total=1)
    caller.connection.holders += 1
    try:
        yield
    finally:
        console.streams["open"] -= 1
        caller.connection.holders -= 1


def parts_of(batch: Batch) -> list[list[tuple[tuple, int | None]]]:  # type: ignore[type-arg]
    """The messages of a batch, some at a time, so that other requests have their turn."""
    records = list(walk(batch.records))
    offsets = repeat(None) if batch.first_queue_offset < 0 else count(batch.first_queue_offset)
    fields = list(zip(records, offsets, strict=False))
    return [fields[at : at + PART_MESSAGES] for at in range(0, len(fields), PART_MESSAGES)]


def ndjson(console: ConsoleState, caller: Caller, reading: Reading, limit: int | None) -> Response:
    """Messages, one JSON object a line. An error within ends the stream with a line that has `problem`."""

    async def stream() -> AsyncGenerator[bytes, None]:
        left = limit
        place = caller.connection.place
        async with open_stream(console, caller):
            try:
                async for batch in reading.batches():
                    for part in parts_of(batch):
                        taken = part if left is None else part[:left]
                        yield lines(shown(taken, place))
                        if left is not None:
                            left -= len(taken)
                            if left <= 0:
                                return
                        if console.stopping.is_set():
                            return
                        await asyncio.sleep(0)
            except ClientError as error:
                yield b'{"problem":' + bytes(problem_answer(problem_of(error)).body) + b"}\n"
            finally:
                reading.close()

    return BoundedStream(stream(), media_type=NDJSON)


def events(console: ConsoleState, caller: Caller, reading: Reading) -> Response:
    """Messages as server-sent events, until the client goes. `id` is the log_offset, so that Last-Event-ID goes on."""

    async def stream() -> AsyncGenerator[bytes, None]:
        place = caller.connection.place
        async with open_stream(console, caller):
            yield b"retry: 1000\n\n"
            batches = reading.batches()
            following: asyncio.Task[Batch] | None = None
            stopping = asyncio.create_task(console.stopping.wait())
            try:
                while not stopping.done():
                    following = following or asyncio.ensure_future(anext(batches))
                    await asyncio.wait((following, stopping), timeout=KEEP_ALIVE_S, return_when=FIRST_COMPLETED)
                    if not following.done():
                        yield b": still there\n\n"
                        continue
                    batch, following = following.result(), None
                    for part in parts_of(batch):
                        messages = shown(part, place)
                        yield b"".join(
                            [b"id: %d\ndata: %b\n\n" % (each.log_offset, encoded(each)) for each in messages]
                        )
            except StopAsyncIteration:
                return
            except ClientError as error:
                body = bytes(problem_answer(problem_of(error)).body)
                yield b"event: problem\ndata: " + body + b"\n\n"
            finally:
                stopping.cancel()
                if following is not None:
                    following.cancel()
                reading.close()

    return BoundedStream(stream(), media_type=EVENTS, headers=NOT_BUFFERED)
