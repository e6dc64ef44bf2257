"""What every request passes first: the names of host and origin, and the size of the body; headers of every answer.

A page of another site can have its own name point to this machine (DNS rebinding), or have a browser send a form here.
The first is refused by the Host header, the second by Origin and Sec-Fetch-Site.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth.sources import source_of
from penstock.console.access.problem_answer import problem_answer
from penstock.console.errors import Problem

BODIES_BYTES = 64 << 20
"""Of all bodies that are received at a time, and in use."""
SHARE_BYTES = BODIES_BYTES // 4
"""Of those of one address."""
SMALL_BYTES = 64 << 10
"""A body up to here is received whatever others hold, so that a login gets through; connections bound their number."""
MOST_LENGTH_DIGITS = 18
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
NOT_CACHED = (b"cache-control", b"no-store")


class HostNames:
    """The names by which browsers may call the console. An address is no name, so it cannot be made to point here."""

    def __init__(self, listen_host: str, more: Iterable[str]) -> None:
        names = ("localhost", listen_host, socket.gethostname(), *more)
        self._names = {name.lower() for name in names}

    def allow(self, host: str) -> bool:
        """Whether a Host header is one of them, with any port unless a setting names one."""
        host = host.lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return host in self._names or name in self._names or _is_address(name.strip("[]"))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Gate:
    """ASGI middleware. `refused` counts what it refuses, by kind of problem."""

    def __init__(
        self, app: ASGIApp, names: HostNames, max_body_bytes: int, body_s: float, refused: Counter[str]
    ) -> None:
        self._app = app
        self._names = names
        self._max_body_bytes = max_body_bytes
        self._body_s = body_s
        self._refused = refused
        self._bodies: Counter[str] = Counter()
        """Bytes of bodies by the source of their address."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in _LOOKED_AT}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_added(message)]
            await send(message)

        held_bytes, source = 0, _source_of(scope)
        try:
            self._check_names(scope, headers)
            body = await self._body(headers, receive, source)
            if body is None:
                await self._app(scope, receive, answer)
                return
            held_bytes = len(body)
            self._hold(source, held_bytes)
            await self._app(scope, _Replayed(body, receive), answer)
        except Problem as problem:  # of the gate itself; the app answers its own
            self._refused[problem.kind] += 1
            await problem_answer(problem)(scope, receive, answer)
        finally:
            self._hold(source, -held_bytes)

    def _hold(self, source: str, size_bytes: int) -> None:
        self._bodies[source] += size_bytes
        if not self._bodies[source]:
            del self._bodies[source]

    def _check_names(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raises Problem."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._names.allow(host):
            raise Problem(
                421,
                "unknown-host",
                f"the console is not known as {host[:100]!r}",
                "use its address, or add the name to the setting console.hosts",
            )
        if scope["method"] in SAFE_METHODS:
            return
        origin = headers.get(b"origin", b"").decode("latin-1")
        is_other = bool(origin) and _host_of(origin) != host.lower()
        if is_other or headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            raise Problem(
                403,
                "foreign-origin",
                f"a page of {origin[:100] or 'another site'} sent this change",
                "make changes from the console's own pages, or with a program that sends no Origin",
            )

    async def _body(self, headers: dict[bytes, bytes], receive: Receive, source: str) -> bytes | None:
        """The whole body; None if there is none. Raises Problem."""
        length = headers.get(b"content-length", b"")
        if not length and b"transfer-encoding" not in headers:
            return None
        if length.isdigit() and (len(length) > MOST_LENGTH_DIGITS or int(length) > self._max_body_bytes):
            raise self._too_large()
        parts: list[bytes] = []
        size_bytes = 0
        try:
            async with asyncio.timeout(self._body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem(400, "incomplete-body", "the connection ended within the body", "send it again")
                    part = message.get("body", b"")
                    size_bytes += len(part)
                    self._hold(source, len(part))
                    parts.append(part)
                    self._check_size(size_bytes, source)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            detail = f"the body did not come within {self._body_s:.0f} s"
            remedy = "send smaller bodies, or raise the setting console.body_s"
            raise Problem(408, "slow-body", detail, remedy) from None
        finally:
            self._hold(source, -size_bytes)

    def _check_size(self, size_bytes: int, source: str) -> None:
        """Raises Problem."""
        if size_bytes > self._max_body_bytes:
            raise self._too_large()
        if size_bytes <= SMALL_BYTES:
            return
        is_full = sum(self._bodies.values()) > max(BODIES_BYTES, self._max_body_bytes)
        if is_full or self._bodies[source] > max(SHARE_BYTES, self._max_body_bytes):
            raise Problem(
                503, "too-many-bodies", "too many large bodies come at a time", "send it again", {"Retry-After": "1"}
            )

    def _too_large(self) -> Problem:
        return Problem(
            413,
            "body-too-large",
            f"a body has {self._max_body_bytes} bytes at most",
            "send less at a time, or raise the setting console.max_body_bytes",
        )


def _host_of(origin: str) -> str:
    """Host and port of an origin; empty if it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # such as an open bracket
        return ""


def _source_of(scope: Scope) -> str:
    """Of the client, as a trusted proxy says it."""
    client = scope.get("client")
    return source_of(client[0]) if client else ""


_LOOKED_AT = {b"host", b"origin", b"sec-fetch-site", b"content-length", b"transfer-encoding"}


def _added(message: Message) -> list[tuple[bytes, bytes]]:
    has_cache_control = any(name == b"cache-control" for name, _ in message.get("headers", ()))
    return HEADERS if has_cache_control else [*HEADERS, NOT_CACHED]


class _Replayed:
    """A body that was received already, and then whatever the connection says."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
