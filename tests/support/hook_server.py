"""An HTTP server that takes what flows send, on a thread of its own, and answers as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from aiohttp import web

from loadtest.ports import free_port

CUT = -1
"""As a status: the connection ends in the middle of the answer."""
SILENT = -2
"""No answer, as long as the other side waits."""


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, object]:
        """The CloudEvent in structured mode."""
        found: dict[str, object] = json.loads(self.body)
        return found


Answer = Callable[[Request], int | tuple[int, dict[str, str]]]


class HookServer:
    """`answer` says the status, and headers if there are some; taken is what was answered with 2xx."""

    def __init__(self, answer: Answer = lambda _: 204) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.taken: list[Request] = []
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._runner: web.AppRunner | None = None
        self.open()

    def open(self) -> None:
        self._await(self._open())

    def shut(self) -> None:
        """Connections are cut and new ones refused."""
        self._await(self._shut())

    def close(self) -> None:
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _await(self, doing: object) -> None:
        asyncio.run_coroutine_threadsafe(doing, self._loop).result(30)  # type: ignore[arg-type]

    async def _open(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def _shut(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        found = Request(request.path, {name.lower(): value for name, value in request.headers.items()}, body)
        self.requests.append(found)
        answered = self.answer(found)
        status, headers = answered if isinstance(answered, tuple) else (answered, {})
        if status == SILENT:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3_600)
        if status in (CUT, SILENT):
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"cut")
            assert request.transport is not None
            request.transport.abort()
            return response
        if 200 <= status < 300:
            self.taken.append(found)
        return web.Response(status=status, headers=headers, text="as it was told" if status >= 300 else "")
