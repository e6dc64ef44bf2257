"""The worker process of a flow that leads to a function. Its flow starts it:

    python -m penstock.flows.functions.worker MODULE NAME [CALLS ANSWERS]

Calls come by the socket with the first descriptor, answers go by the one with the second. Without them the process only
says what is wrong with the function. A function that is not asynchronous is called for one message after the other; of
an asynchronous one all calls that have come are under way. If the flow is gone the process ends at once, whatever the
function does.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from penstock.flows.functions import FunctionMessage, RejectMessage
from penstock.flows.functions.frames import LENGTH_BYTES, Call, CallAnswer, Ready, decode_call, framed
from penstock.flows.functions.handler import BadHandler, BadOutput, loaded, outputs_of

BAD_HANDLER: Final = 78  # the exit code, EX_CONFIG of sysexits.h
TRACED_S: Final = 60.0  # between two tracebacks of errors of one kind
MOST_TRACED: Final = 1_000  # kinds
MOST_TOLD: Final = 500  # characters of an error

Handler = Callable[[FunctionMessage], Any]


class Worker:
    """Calls a function, and answers."""

    def __init__(self, handler: Handler, calls: socket.socket, answers: socket.socket) -> None:
        self._handler, self._calls, self._answers = handler, calls, answers
        self._traced: dict[str, float] = {}

    def read(self, take: Callable[[Call], object]) -> None:
        """Take calls until the flow is gone; then end the process."""
        with self._calls.makefile("rb") as file:
            while len(length := file.read(LENGTH_BYTES)) == LENGTH_BYTES:
                data = file.read(int.from_bytes(length, "big"))
                take(decode_call(data))
        os._exit(0)

    def serve(self) -> None:
        """One call after the other."""
        calls: queue.SimpleQueue[Call] = queue.SimpleQueue()  # the flow has a bound for them
        threading.Thread(target=self.read, args=(calls.put,), daemon=True).start()
        while True:
            call = calls.get()
            try:
                answer = CallAnswer(call.number, outputs_of(self._handler(_message(call))))
            except Exception as error:
                answer = self._failed(call, error)
            self._send(answer)

    async def serve_async(self) -> None:
        """All calls that have come."""
        loop = asyncio.get_running_loop()
        under_way: set[asyncio.Task[None]] = set()

        def begin(call: Call) -> None:
            task = loop.create_task(self._do(call))
            under_way.add(task)
            task.add_done_callback(under_way.discard)

        def take(call: Call) -> None:
            loop.call_soon_threadsafe(begin, call)

        threading.Thread(target=self.read, args=(take,), daemon=True).start()
        await asyncio.Event().wait()

    async def _do(self, call: Call) -> None:
        try:
            answer = CallAnswer(call.number, outputs_of(await self._handler(_message(call))))
        except (Exception, asyncio.CancelledError) as error:
            answer = self._failed(call, error)
        self._send(answer)

    def _send(self, answer: CallAnswer) -> None:
        try:
            data = framed(answer)
        except OverflowError as error:
            data = framed(CallAnswer(answer.number, [], refused=f"what it returned is too large: {error}"))
        self._answers.sendall(data)

    def _failed(self, call: Call, error: BaseException) -> CallAnswer:
        if isinstance(error, RejectMessage | BadOutput):
            return CallAnswer(call.number, [], refused=str(error)[:MOST_TOLD] or "the function rejects it")
        kind, now_s = type(error).__qualname__, time.monotonic()
        if now_s - self._traced.get(kind, -TRACED_S) >= TRACED_S and len(self._traced) < MOST_TRACED:
            self._traced[kind] = now_s
            traceback.print_exception(error)
        return CallAnswer(call.number, [], failed=f"{kind}: {error}"[:MOST_TOLD])


def _message(call: Call) -> FunctionMessage:
    time = datetime.fromtimestamp(call.time_ms / 1000, UTC)
    return FunctionMessage(call.topic, call.payload, call.key, call.headers, call.message_id, time, call.content_type)


def main(module: str, name: str, *descriptors: str) -> int:
    """Returns the exit code."""
    try:
        handler, is_async = loaded(module, name)
    except BadHandler as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(error, file=sys.stderr)
        return BAD_HANDLER
    if not descriptors:
        return 0
    calls, answers = (socket.socket(fileno=int(descriptor)) for descriptor in descriptors)
    answers.sendall(framed(Ready(is_async)))
    worker = Worker(handler, calls, answers)
    if is_async:
        asyncio.run(worker.serve_async())
    else:
        worker.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
