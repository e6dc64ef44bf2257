"""The admin endpoint: /metrics, /healthz and /readyz over HTTP, served by threads beside the loop.

The loop owns what is asked for, so it is asked: a thread never looks at a session or a queue itself. It does the slow
part (HTTP, text), and it can still answer when the loop no longer does. HTTP is the standard library's wsgiref, which
handles one GET per connection; requests are bounded in number, size and time, as nothing here is worth more.
"""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from http.client import HTTPException, LineTooLong
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from gateway.listen_address import ListenError
from gateway.metrics import FigureCollector, Reading
from notify.address import is_loopback
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("penstock.admin")

MOST_REQUESTS = 8
HEAD_BYTES = 16 << 10
REQUEST_S = 5.0
ANSWER_S = 2.0
"""How long a request waits for the loop."""
SILENT_S = 5.0
"""A loop that has not turned for so long is stuck."""
POLL_S = 0.25

Answer = TypeVar("Answer")


class LoopSilent(PenstockError):
    """The loop does not answer."""


class LoopWatch:
    """Asks the loop things from another thread, and knows for how long it has not turned."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._turned_at_s = clock()
        self._asked = False

    def check(self) -> None:
        """Have the loop note that it turns. To be called several times a second."""
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
        """What `question` answers when the loop calls it. Raises LoopSilent."""
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
    """Whom the pages are about. Asked by threads of its own, so what belongs to the loop is asked of that."""

    def collectors(self, watch: LoopWatch) -> list[Collector]:
        """Those of /metrics."""

    def unready(self, watch: LoopWatch) -> str:
        """Why clients had better not be sent here now; empty if they may be. Raises LoopSilent."""


class LoopSource(NamedTuple):
    """What is known on the loop of this process."""

    readings: Callable[[], list[Reading]]
    why_unready: Callable[[], str]

    def collectors(self, watch: LoopWatch) -> list[Collector]:
        return [*collectors_of_process(), FigureCollector(lambda: watch.ask(self.readings))]

    def unready(self, watch: LoopWatch) -> str:
        return watch.ask(self.why_unready)


def collectors_of_process() -> list[Collector]:
    """Of its memory, its CPU time, its Python."""
    nowhere = CollectorRegistry()  # each would register itself
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
        """Whether the loop turns. It is not asked to answer: it may be busy for longer than a probe waits."""
        silent_s = self._watch.silent_s
        if silent_s > SILENT_S:
            raise LoopSilent(f"the loop has not turned for {silent_s:.0f} s")
        return _text(start_response, "200 OK", "ok")

    def _readyz(self, _: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Whether clients should be sent here."""
        reason = self._source.unready(self._watch)
        if reason:
            return _text(start_response, "503 Service Unavailable", reason)
        return _text(start_response, "200 OK", "ready")


def _text(start_response: StartResponse, status: str, text: str) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
    return [f"{text}\n".encode()]


class _Head(io.RawIOBase):
    """The bytes of a request as they come, up to as many as one may have."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left_bytes = HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left_bytes:
            raise LineTooLong("request")
        size = self._connection.recv_into(buffer, min(len(buffer), self._left_bytes))
        self._left_bytes -= size
        return size


class _Handler(WSGIRequestHandler):
    timeout = int(REQUEST_S)

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Head(self.connection))
        self._errors = io.StringIO()

    def get_stderr(self) -> io.StringIO:  # where wsgiref puts the traceback of what went wrong in a page
        return self._errors

    def finish(self) -> None:
        super().finish()
        if self._errors.getvalue():
            log.error("request failed: %s", self._errors.getvalue())

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s: " + format, self.client_address[0], *args)


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, and few of them; one that takes too long is ended."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Any, family: int, watch: LoopWatch) -> None:
        self.address_family = family
        self._watch = watch
        self._open: dict[Any, float] = {}  # sockets of requests, and since when
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # not HTTPServer's, which looks the host's name up
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            has_room = len(self._open) < MOST_REQUESTS
            if has_room:
                self._open[request] = time.monotonic()
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
            super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called after every request, and every POLL_S."""
        self._watch.check()
        late_s = time.monotonic() - REQUEST_S
        with self._lock:
            for request in [request for request, since_s in self._open.items() if since_s < late_s]:
                del self._open[request]
                with suppress(OSError):  # the client may have gone
                    request.shutdown(socket.SHUT_RDWR)  # its thread sees the end, and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError | HTTPException):
            log.debug("%s: %s", client_address[0], error)
        else:
            log.error("request failed", exc_info=error)


class Admin:
    """Serves from when it is made until close()."""

    def __init__(self, address: str, source: AdminSource, loop: asyncio.AbstractEventLoop) -> None:
        """`address` is HOST:PORT. Raises ListenError."""
        host, port = _parse(address)
        watch = LoopWatch(loop)
        try:
            family, *_, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(resolved, family, watch)
        except OSError as error:
            reason = error.strerror or str(error)
            remedy = "stop what uses it or choose another port"
            raise ListenError(f"admin {address}: cannot listen there ({reason}); {remedy}") from error
        self._server.set_app(AdminApp(source, watch))
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="penstock-admin")
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def check_admin_exposure(address: str, allowed: bool) -> None:
    """Not beyond loopback unless the operator says so, as it asks for no password. Raises ListenError."""
    if not allowed and not is_loopback(_parse(address)[0]):
        raise ListenError(
            f"admin {address}: reachable by other machines, and asks nobody for a password; listen on 127.0.0.1 "
            "or set allow_admin_beyond_loopback = true"
        )


def _parse(address: str) -> tuple[str, int]:
    parts = urlsplit(f"//{address}")
    if parts.hostname is None or parts.port is None:
        raise ListenError(f"admin {address}: not an address; use HOST:PORT, with port 0 for any free one")
    return parts.hostname, parts.port
