"""Requests to an HTTP server: pooled, bounded in time and number, and paused while the server keeps failing."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from gateway.auth.settings import AuthSettings
from notify.links.address import without_credentials

log = logging.getLogger("penstock.gateway")

MOST_ANSWER_BYTES = 64 << 10
MOST_DOCUMENT_BYTES = 512 << 10
PARSED_AT_ONCE_BYTES = 8 << 10
"""Answers longer than this are parsed in a thread."""
DENIALS = frozenset({401, 403})
"""Status codes that count as an answer, not as a failure."""


class Breaker:
    """A circuit breaker: after so many failures in a row it pauses requests, then lets one through as a test.
    No I/O.
    """

    def __init__(self, failures: int, pause_s: float) -> None:
        self._most = failures
        self._pause_s = pause_s
        self._failures = 0
        self._until_s = 0.0
        self._tries = False  # the test request is under way

    @property
    def is_open(self) -> bool:
        return self._failures >= self._most

    def lets(self, now_s: float) -> bool:
        if not self.is_open:
            return True
        if now_s < self._until_s or self._tries:
            return False
        self._tries = True
        return True

    def succeeded(self) -> None:
        self._failures = 0
        self._tries = False

    def failed(self, now_s: float) -> None:
        self._failures += 1
        self._tries = False
        if self.is_open:
            self._until_s = now_s + self._pause_s


def parse_object(data: bytes | bytearray) -> dict[str, Any]:
    """Parse a JSON object strictly: without NaN, Infinity, and numbers that no float holds.

    Raises ValueError, and RecursionError if it is nested too deeply.
    """
    found = json.loads(data, parse_constant=_no_number, parse_float=_finite)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


class Http:
    """Owner of the connections to HTTP servers, and of the requests under way."""

    def __init__(self, settings: AuthSettings, header: tuple[str, str] | None) -> None:
        """Create in the loop. `header` is sent with each POST."""
        self.header = header
        self._most = settings.http_max_waiting
        timeout = aiohttp.ClientTimeout(total=settings.http_timeout_ms / 1000)
        connector = aiohttp.TCPConnector(limit=settings.http_connections)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests = 0
        self.failures = 0
        self.not_asked = 0

    def counts(self) -> dict[str, int]:
        """Requests by result; `spared` ones were refused without being sent."""
        return {"sent": self.requests, "failed": self.failures, "spared": self.not_asked}

    def post(self, url: str, breaker: Breaker, body: Mapping[str, Any], then: Callable[[Any], None]) -> None:
        """POST, and call `then` with the JSON of the answer; `{"result": "deny"}` for 401 and 403; None for every
        failure.
        """
        loop = asyncio.get_running_loop()
        if len(self._tasks) >= self._most or not breaker.lets(loop.time()):
            self.not_asked += 1
            then(None)
            return
        self._start(self._post(url, breaker, body), then)

    def get(self, url: str, read: Callable[[Any], object], then: Callable[[Any], None]) -> None:
        """GET, and call `then` with the result of `read` (run in a thread) on the JSON document; None if
        there is none.
        """
        self._start(self._get(url, read), then)

    def _start(self, request: Any, then: Callable[[Any], None]) -> None:
        async def run() -> None:
            then(await request)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, url: str, breaker: Breaker, body: Mapping[str, Any]) -> Any:
        was_open = breaker.is_open
        headers = dict([self.header]) if self.header else None
        answer = await self._answer("POST", url, headers=headers, json=body)
        now_s = asyncio.get_running_loop().time()
        if answer is None:
            breaker.failed(now_s)
            if breaker.is_open and not was_open:
                shown = without_credentials(url)
                log.error("%s keeps failing: not asked for a while; clients that need it are refused", shown)
        else:
            breaker.succeeded()
            if was_open:
                log.info("%s answers again", without_credentials(url))
        return answer

    async def _get(self, url: str, read: Callable[[Any], object]) -> Any:
        document = await self._answer("GET", url)
        return None if document is None else await asyncio.to_thread(read, document)

    async def _answer(self, method: str, url: str, **arguments: Any) -> Any:
        """The parsed answer; None if there is no valid one in time: the fault is logged."""
        self.requests += 1
        try:
            async with self._session.request(method, url, allow_redirects=False, **arguments) as response:
                if method == "POST" and response.status in DENIALS:
                    return {"result": "deny"}
                if response.status != 200:
                    raise ValueError(f"status {response.status}")
                most = MOST_ANSWER_BYTES if method == "POST" else MOST_DOCUMENT_BYTES
                data = bytearray()
                while len(data) <= most and (more := await response.content.read(most)):
                    data += more
                if len(data) > most:
                    raise ValueError(f"more than {most} bytes")
                if len(data) > PARSED_AT_ONCE_BYTES:
                    return await asyncio.to_thread(parse_object, data)
                return parse_object(data)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError) as error:
            self.failures += 1
            shown = without_credentials(url)
            log.warning("%s: %s", shown, str(error).replace(url, shown) or type(error).__name__)
            return None

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
