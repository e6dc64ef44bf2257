"""The admin endpoint: /metrics, /healthz and /readyz over HTTP, served by threads beside the loop.

The loop owns the state, so the threads ask it: they never read a session or a queue themselves. They do the slow part
(HTTP, text), and can still answer when the loop is stuck. The HTTP server is admin_server.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from gateway.listen_address import ListenError
from notify.links.address import is_loopback
from penstock.errors import PenstockError
from penstock.servers.admin_server import AdminServer
from penstock.servers.prometheus import FigureCollector
from store.figures import Reading

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("penstock.admin")

ANSWER_S = 2.0
"""How long a request waits for the loop."""
SILENT_S = 5.0
"""A loop without a turn for so long is stuck."""

Answer = TypeVar("Answer")


class LoopSilent(PenstockError):
    """The loop does not answer."""


class LoopWatch:
    """Asks the loop questions from other threads, and measures how long ago it last turned."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._turned_at_s = clock()
        self._asked = False

    def check(self) -> None:
        """Have the loop record that it turns. Call it several times a second."""
        if not self._asked and not self._loop.is_closed():
            self._asked = True
            self._loop.call_soon_threadsafe(self._turned)

    def _turned(self) -> None:
        self._turned_at_s = self._clock()
        self._asked = False

    @property
    def silent_s(self) -> float:
        return self._clock() - self._turned_at_s

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Call `question` in the loop and return its result. Raises LoopSilent."""
        if self._loop.is_closed() or self.silent_s > SILENT_S:
            raise LoopSilent(f"the loop has not turned for {self.silent_s:.0f} s")
        answer: Future[Answer] = Future()
        self._loop.call_soon_threadsafe(_answer, question, answer)
        try:
            return answer.result(ANSWER_S)
        except TimeoutError:
            answer.cancel()
            raise LoopSilent(f"the loop did not answer within {ANSWER_S:.0f} s") from None


def _answer(question: Callable[[], Answer], answer: Future[Answer]) -> None:
    if answer.set_running_or_notify_cancel():
        try:
            answer.set_result(question())
        except BaseException as error:
            answer.set_exception(error)
            raise


class AdminSource(Protocol):
    """The source of the pages. Threads call it, so state of the loop is asked by LoopWatch."""

    def collectors(self, watch: LoopWatch) -> list[Collector]:
        """The collectors of /metrics."""

    def unready(self, watch: LoopWatch) -> str:
        """Why clients should not be sent here now; empty if they may be. Raises LoopSilent."""

    @property
    def health(self) -> str:
        """A warning for operators although the process works; empty: none. Called in any thread."""

    @property
    def starting(self) -> str:
        """The progress of the start, during which the loop may not turn; empty once it is over. Called in any
        thread.
        """


class LoopSource(NamedTuple):
    """A source that is answered by the loop of this process."""

    readings: Callable[[], Iterator[list[Reading]]]  # in steps
    why_unready: Callable[[], str]
    why_look: Callable[[], str] = lambda: ""  # called in any thread
    how_far: Callable[[], str] = lambda: ""  # called in any thread

    def collectors(self, watch: LoopWatch) -> list[Collector]:
        return [*collectors_of_process(), FigureCollector(lambda: self._steps(watch))]

    def _steps(self, watch: LoopWatch) -> Iterator[list[Reading]]:
        """Each step is one call in the loop, which turns between them."""
        if self.starting:
            return
        steps = self.readings()
        while (step := watch.ask(partial(next, steps, None))) is not None:
            yield step

    def unready(self, watch: LoopWatch) -> str:
        return watch.ask(self.why_unready)

    @property
    def health(self) -> str:
        return self.why_look()

    @property
    def starting(self) -> str:
        return self.how_far()


def collectors_of_process() -> list[Collector]:
    """Collectors of the process's memory, CPU time and Python."""
    nowhere = CollectorRegistry()  # else each would register itself
    return [ProcessCollector(registry=nowhere), PlatformCollector(registry=nowhere)]


class AdminApp:
    """The pages, as a WSGI application."""

    def __init__(self, source: AdminSource, watch: LoopWatch) -> None:
        self._source = source
        self._watch = watch
        registry = CollectorRegistry()
        for collector in source.collectors(watch):
            registry.register(collector)
        self._pages: dict[str, WSGIApplication] = {
            "/metrics": make_wsgi_app(registry),
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        page = self._pages.get(environ["PATH_INFO"])
        if page is None:
            return _text(start_response, "404 Not Found", "try " + ", ".join(self._pages))
        if environ["REQUEST_METHOD"] != "GET":
            return _text(start_response, "405 Method Not Allowed", "use GET")
        try:
            return page(environ, start_response)
        except LoopSilent as error:
            return _text(start_response, "503 Service Unavailable", str(error))

    def _healthz(self, _: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Whether the loop turns. It need not answer: it may be busy for longer than a probe waits."""
        if starting := self._source.starting:
            return _text(start_response, "200 OK", f"ok; {starting}")
        silent_s = self._watch.silent_s
        if silent_s > SILENT_S:
            raise LoopSilent(f"the loop has not turned for {silent_s:.0f} s")
        return _text(start_response, "200 OK", "; ".join(filter(None, ("ok", self._source.health))))

    def _readyz(self, _: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Whether clients should be sent here."""
        reason = self._source.starting or self._source.unready(self._watch)
        if reason:
            return _text(start_response, "503 Service Unavailable", reason)
        return _text(start_response, "200 OK", "ready")


def _text(start_response: StartResponse, status: str, text: str) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
    return [f"{text}\n".encode()]


class Admin:
    """The admin endpoint; serves from its construction until close()."""

    def __init__(self, address: str, source: AdminSource, loop: asyncio.AbstractEventLoop) -> None:
        """`address` is HOST:PORT. Raises ListenError."""
        host, port = _parse(address)
        watch = LoopWatch(loop)
        try:
            family, *_, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = AdminServer(resolved, family, watch.check)
        except OSError as error:
            reason = error.strerror or str(error)
            remedy = "stop what uses it or choose another port"
            raise ListenError(f"admin {address}: cannot listen there ({reason}); {remedy}") from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.port}"
        self._server.start(AdminApp(source, watch))

    def close(self) -> None:
        self._server.close()


def check_admin_exposure(address: str, allowed: bool) -> None:
    """Refuse an address beyond loopback unless the operator allows it: there is no password. Raises ListenError."""
    if not allowed and not is_loopback(_parse(address)[0]):
        raise ListenError(
            f"admin {address}: reachable by other machines, and has no password; listen on 127.0.0.1 "
            "or set allow_admin_beyond_loopback = true"
        )


def _parse(address: str) -> tuple[str, int]:
    parts = urlsplit(f"//{address}")
    if parts.hostname is None or parts.port is None:
        raise ListenError(f"admin {address}: not an address; use HOST:PORT, with port 0 for any free one")
    return parts.hostname, parts.port
