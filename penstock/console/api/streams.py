"""Streams of messages: NDJSON of what is stored, and server-sent events that go on live.

A reader that is slow costs what it was sent last and what is read ahead, some MiB; a reader that takes nothing for a
minute is cut off.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import count, repeat

from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from penstock.console.access.callers import Caller, unknown_user
from penstock.console.access.logins import until_over
from penstock.console.access.problem_answer import problem_answer
from penstock.console.access.state import ConsoleState
from penstock.console.api.problems import problem_of
from penstock.console.errors import Problem
from penstock.console.views.messages import MessageFields, StoredMessage, encoded, lines, made
from penstock.console.views.sizes import shown_bytes
from penstock.sdk.errors import ClientClosed, ClientError
from penstock.sdk.message import Batch
from penstock.sdk.reading import Reading
from store.records.record_bytes import walk

NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
PART_MESSAGES = 1_024
PART_BYTES = 256 << 10
AHEAD_BYTES = 256 << 10
KEEP_ALIVE_S = 15.0
STUCK_S = 60.0
NOT_BUFFERED = {"x-accel-buffering": "no"}


class BoundedStream(StreamingResponse):
    """A stream that counts while it is open, keeps its user's connection, and ends when its reader takes nothing for
    STUCK_S. Making one raises Problem if there are too many.
    """

    def __init__(
        self, console: ConsoleState, caller: Caller, content: AsyncGenerator[bytes, None], media_type: str
    ) -> None:
        self._console, self._caller = console, caller
        self._of = caller.payer
        _check_streams(console, self._of)
        super().__init__(content, media_type=media_type, headers=NOT_BUFFERED)
        console.streams.update(open=1, total=1)
        console.streams_of[self._of] += 1
        caller.connection.holders += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_soon(message: Message) -> None:
            try:
                async with asyncio.timeout(STUCK_S):
                    await send(message)
            except TimeoutError:
                _cut_off(receive)

        try:
            await super().__call__(scope, receive, send_soon)
        finally:
            self._ended()

    def _ended(self) -> None:
        self._console.streams["open"] -= 1
        self._console.streams_of[self._of] -= 1
        if not self._console.streams_of[self._of]:
            del self._console.streams_of[self._of]
        self._caller.connection.holders -= 1


def _cut_off(receive: Receive) -> None:
    """End the connection at once: what waits to be sent would keep it open. The stream is told as of any other end."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)  # of uvicorn's cycle of a request
    if transport is not None:
        transport.abort()


def _check_streams(console: ConsoleState, of: str) -> None:
    """Raises Problem."""
    settings = console.settings
    if console.streams_of[of] >= settings.max_streams_per_user:
        raise Problem(
            429,
            "too-many-streams-of-user",
            f"{settings.max_streams_per_user} streams of this user are open",
            "close some, or raise the setting console.max_streams_per_user",
            {"Retry-After": "5"},
        )
    if console.streams["open"] >= settings.max_streams:
        raise Problem(
            503,
            "too-many-streams",
            f"{settings.max_streams} streams are open",
            "close some, or raise the setting console.max_streams",
            {"Retry-After": "5"},
        )


def is_over(console: ConsoleState, caller: Caller) -> bool:
    """Whether the caller's streams have to end: the console stops, or the login is over."""
    login = caller.login
    return console.stopping.is_set() or (login is not None and login.is_over(asyncio.get_running_loop().time()))


def over(console: ConsoleState, caller: Caller) -> asyncio.Task[None]:
    """A task that ends when is_over(); to be cancelled."""
    return asyncio.create_task(until_over(caller.login, console.stopping))


def parts_of(batch: Batch) -> Iterator[list[MessageFields]]:
    """The messages of a batch, some at a time, so that other requests have their turn, and large ones little room."""
    offsets = repeat(None) if batch.first_queue_offset < 0 else count(batch.first_queue_offset)
    part: list[MessageFields] = []
    size_bytes = 0
    for record, queue_offset in zip(walk(batch.records), offsets, strict=False):
        part.append((record, queue_offset))
        size_bytes += shown_bytes(record)
        if len(part) == PART_MESSAGES or size_bytes >= PART_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part


def problem_of_end(error: ClientError) -> Problem:
    """Why a stream ends. A user's connection is closed under it when the store does not let the user in any more."""
    return unknown_user("this user is not let in any more") if isinstance(error, ClientClosed) else problem_of(error)


async def batches_until_over(
    console: ConsoleState, caller: Caller, reading: Reading
) -> AsyncGenerator[Batch | None, None]:
    """The batches of a reading, until it is complete or the caller's streams have to end; None: KEEP_ALIVE_S passed
    without one. Raises a ClientError.
    """
    batches = reading.batches()
    following: asyncio.Task[Batch] | None = None
    ending = over(console, caller)
    try:
        while not is_over(console, caller):
            following = following or asyncio.ensure_future(anext(batches))
            await asyncio.wait((following, ending), timeout=KEEP_ALIVE_S, return_when=FIRST_COMPLETED)
            if following.done():
                batch, following = following.result(), None
                yield batch
            elif not ending.done():
                yield None
    except StopAsyncIteration:
        return
    finally:
        ending.cancel()
        if following is not None:
            following.cancel()
        reading.close()


def ndjson(console: ConsoleState, caller: Caller, reading: Reading, limit: int | None) -> Response:
    """Messages, one JSON object a line. An error within ends the stream with a line that has `problem`."""

    async def stream() -> AsyncGenerator[bytes, None]:
        left = limit
        place = caller.connection.place
        async with aclosing(batches_until_over(console, caller, reading)) as batches:
            try:
                async for batch in batches:
                    for part in parts_of(batch) if batch is not None else ():
                        taken = part if left is None else part[:left]
                        yield await made(lines, taken, place)
                        if left is not None:
                            left -= len(taken)
                            if left <= 0:
                                return
                        if is_over(console, caller):
                            return
                        await asyncio.sleep(0)
            except ClientError as error:
                yield b'{"problem":' + bytes(problem_answer(problem_of_end(error)).body) + b"}\n"

    return BoundedStream(console, caller, stream(), NDJSON)


def _as_events(messages: list[StoredMessage]) -> bytes:
    return b"".join([b"id: %d\ndata: %b\n\n" % (each.log_offset, encoded(each)) for each in messages])


def events(console: ConsoleState, caller: Caller, reading: Reading) -> Response:
    """Messages as server-sent events, until the client goes. `id` is the log_offset, so that Last-Event-ID goes on."""
    reading.most_ahead_bytes = AHEAD_BYTES

    async def stream() -> AsyncGenerator[bytes, None]:
        place = caller.connection.place
        async with aclosing(batches_until_over(console, caller, reading)) as batches:
            yield b"retry: 1000\n\n"
            try:
                async for batch in batches:
                    if batch is None:
                        yield b": still there\n\n"
                        continue
                    for part in parts_of(batch):
                        yield await made(_as_events, part, place)
                        if is_over(console, caller):
                            return
            except ClientError as error:
                body = bytes(problem_answer(problem_of_end(error)).body)
                yield b"event: problem\ndata: " + body + b"\n\n"

    return BoundedStream(console, caller, stream(), EVENTS)
