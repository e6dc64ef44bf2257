"""The sockets of browsers and programs: how many there may be, and how long a head may take. uvicorn bounds neither.

A connection without a request under way gives way to a new one where there are too many: first one of the same address,
then one of the address that has most. So nobody is kept out by connections that ask nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.auth.sources import Network, parse_address, source_of
from penstock.config.console_settings import ConsoleSettings
from penstock.console.access.problem_answer import problem_answer
from penstock.console.errors import Problem

MOST_HEAD_BYTES = 128 << 10
LINGER_S = 2.0
"""How long the rest of a body is received and thrown away that was refused: closed at once, a client may miss why."""
PROXIED = "a proxy"
"""Stands for the connections of proxies: who is behind them is not known before the head."""


class HttpConnections:
    """Owner of the console's connections. `refused` counts what is refused, by kind of problem."""

    def __init__(self, settings: ConsoleSettings, counts: Counter[str], refused: Counter[str]) -> None:
        """`counts`: of those that are open (`open`), and that there were (`total`)."""
        self._settings = settings
        self._counts = counts
        self._refused = refused
        self._proxies = networks_of(settings.proxies)
        self._of_source: defaultdict[str, set[BoundedHttp]] = defaultdict(set)

    def protocol(self, **given: Any) -> BoundedHttp:
        """What uvicorn makes for each connection."""
        return BoundedHttp(self, **given)

    def source(self, address: str) -> str:
        """Whom a connection counts for."""
        parsed = parse_address(address)
        if parsed is not None and any(parsed in network for network in self._proxies):
            return PROXIED
        return source_of(address)

    def enter(self, connection: BoundedHttp) -> Problem | None:
        """Count a connection; or why it may not be."""
        own, most = self._of_source[connection.source], self._settings.max_connections_per_address
        if connection.source != PROXIED and len(own) >= most and not _give_way(own):
            return self._too_many(f"{most} connections of this address have requests under way", "_per_address")
        if self._counts["open"] >= self._settings.max_connections and not self._make_room():
            return self._too_many(f"{self._settings.max_connections} connections have requests under way", "")
        self._of_source[connection.source].add(connection)
        self._counts.update(open=1, total=1)
        return None

    def _make_room(self) -> bool:
        by_number = sorted(self._of_source.values(), key=len, reverse=True)
        return any(_give_way(connections) for connections in by_number)

    def _too_many(self, detail: str, which: str) -> Problem:
        self._forget_empty()
        remedy = f"close some, or raise the setting console.max_connections{which}"
        return self.refuse(Problem(503, "too-many-connections", detail, remedy, {"Retry-After": "5"}))

    def refuse(self, problem: Problem) -> Problem:
        self._refused[problem.kind] += 1
        return problem

    def leave(self, connection: BoundedHttp) -> None:
        if connection in self._of_source.get(connection.source, ()):
            self._of_source[connection.source].discard(connection)
            self._counts["open"] -= 1
            self._forget_empty(connection.source)

    def _forget_empty(self, *sources: str) -> None:
        for source in sources or [each for each, connections in self._of_source.items() if not connections]:
            if not self._of_source[source]:
                del self._of_source[source]

    def tick(self, now_s: float) -> None:
        """End the connections whose heads are late. Call it every second or so."""
        for connections in list(self._of_source.values()):
            for connection in list(connections):
                connection.check(now_s, self._settings.head_s)


def networks_of(proxies: Iterable[str]) -> Sequence[Network]:
    """Those of the setting console.proxies that are addresses or networks."""
    found = []
    for proxy in proxies:
        try:
            found.append(ipaddress.ip_network(proxy, strict=False))
        except ValueError:  # uvicorn takes it as a name, which no address is
            continue
    return found


def _give_way(connections: set[BoundedHttp]) -> bool:
    """End the connection that has been without a request for longest, if there is one."""
    idle = [connection for connection in connections if not connection.is_busy]
    if not idle:
        return False
    min(idle, key=lambda connection: connection.idle_s).end()
    return True


class BoundedHttp(HttpToolsProtocol):
    """A connection whose next head has to be complete in time, and has a bound."""

    def __init__(self, table: HttpConnections, **given: Any) -> None:
        super().__init__(**given)
        self._table = table
        self.source = ""
        self.idle_s = self.loop.time()
        """When its last request was answered, or it was made."""
        self._head_began_s: float | None = self.idle_s
        """None: no head is expected, or the keep-alive of uvicorn ends it."""
        self._head_bytes = 0
        self._lingers_until_s: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.source = self._table.source(self.client[0] if self.client else "")
        problem = self._table.enter(self)
        if problem is not None:
            self._answer(problem)

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.leave(self)
        super().connection_lost(exc)

    def end(self) -> None:
        """Make room for another one."""
        self._table.leave(self)
        self.connections.discard(self)  # uvicorn would count it until the next turn of the loop
        self.transport.abort()

    def _answer(self, problem: Problem) -> None:
        """Answer what is not even a request, and close."""
        answer = problem_answer(problem)
        head = b"HTTP/1.1 %d %b\r\n" % (problem.status, HTTPStatus(problem.status).phrase.encode())
        headers = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
        self.connections.discard(self)
        self.transport.write(head + headers + b"connection: close\r\n\r\n" + bytes(answer.body))
        self.transport.close()

    # --- heads

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        was_in_head = self._head_began_s is not None
        super().data_received(data)
        if self.transport.is_closing() or self.is_busy or self._lingers_until_s is not None:
            return
        if self.timeout_keep_alive_task is None and self._head_began_s is None:
            self._head_began_s = self.loop.time()  # even if it is line ends alone
        elif was_in_head and self._head_began_s is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                text = f"a head has {MOST_HEAD_BYTES} bytes at most"
                self._answer(self._table.refuse(Problem(431, "head-too-large", text, "send a shorter request")))

    def on_headers_complete(self) -> None:
        self._head_began_s, self._head_bytes = None, 0
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        now_s = self.idle_s = self.loop.time()
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:  # refused before its end
            self._unset_keepalive_if_required()
            self._lingers_until_s = now_s + LINGER_S

    def check(self, now_s: float, head_s: float) -> None:
        """End what is late."""
        if self._lingers_until_s is not None:
            if now_s > self._lingers_until_s:
                self.transport.abort()
        elif self._head_began_s is not None and not self.is_busy and now_s - self._head_began_s > head_s:
            text = f"the head of a request did not come within {head_s:.0f} s"
            problem = Problem(408, "slow-head", text, "send it in one piece, or raise the setting console.head_s")
            self._answer(self._table.refuse(problem))
