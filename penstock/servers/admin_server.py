"""The HTTP server of the admin endpoint. One thread waits for all connections; a few threads make the answers.

A connection costs only a socket until its request is complete: an idle or slow connection takes no worker. An address
may have MOST_OF_ADDRESS connections; if it has more, or if there are too many in all, the oldest one without a complete
request is closed. HTTP is the standard library's wsgiref, over bytes in memory.
"""

from __future__ import annotations

import io
import logging
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler

from store.files.descriptors import first_of_store

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

log = logging.getLogger("penstock.admin")

MOST_CONNECTIONS = 256
MOST_OF_ADDRESS = 32
WORKERS = 8
HEAD_BYTES = 16 << 10
REQUEST_S = 5.0
"""How long a connection may take to send its request, and again to read the answer."""
POLL_S = 0.25
BACKLOG = 128
READ_BYTES = 4_096
ACCEPTED_AT_A_TIME = 64


class _State(Enum):
    """The event that a connection waits for."""

    HEAD = "its request"
    ANSWER = "a worker"
    TAKING = "its client to take the answer"
    END = "its client to close"


@dataclass(slots=True, eq=False)
class _Connection:
    socket: socket.socket
    peer: Any
    until_s: float
    state: _State = _State.HEAD
    head: bytearray = field(default_factory=bytearray)
    answer: memoryview = field(default_factory=lambda: memoryview(b""))


class _Request(WSGIRequestHandler):
    """One request, with its head and its answer in memory."""

    def setup(self) -> None:
        self.rfile = io.BytesIO(self.request)
        self.wfile = io.BytesIO()
        self._errors = io.StringIO()

    def get_stderr(self) -> io.StringIO:  # wsgiref writes the traceback of a page's error here
        return self._errors

    def finish(self) -> None:
        if self._errors.getvalue():
            log.error("request failed: %s", self._errors.getvalue())

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s: " + format, self.client_address[0], *args)


class _Site:
    """The server's attributes that wsgiref reads."""

    def __init__(self, app: WSGIApplication, address: Any) -> None:
        self._app = app
        self.server_name, self.server_port = address[:2]
        self.base_environ = {
            "SERVER_NAME": str(self.server_name),
            "SERVER_PORT": str(self.server_port),
            "GATEWAY_INTERFACE": "CGI/1.1",
            "REMOTE_HOST": "",
            "CONTENT_LENGTH": "",
            "SCRIPT_NAME": "",
        }

    def get_app(self) -> WSGIApplication:
        return self._app

    def answer(self, head: bytes, peer: Any) -> bytes:
        """The whole answer to a request; empty if the request is not HTTP."""
        try:
            request = _Request(head, peer, self)  # type: ignore[arg-type]
        except (OSError, ValueError, HTTPException) as error:
            log.debug("%s: %s", peer, error)
            return b""
        return request.wfile.getvalue()  # type: ignore[attr-defined,no-any-return]


class AdminServer:
    """Listens from its construction; serves from start() to close(). The thread owns all connections."""

    def __init__(self, address: Any, family: int, tick: Callable[[], object]) -> None:
        """`tick` is called several times a second. Raises OSError."""
        self._tick = tick
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listening.bind(address)
            self._listening.listen(BACKLOG)
            self._listening.setblocking(False)
        except OSError:
            self._listening.close()
            raise
        self.port: int = self._listening.getsockname()[1]
        self._descriptors = first_of_store()
        self._connections: dict[_Connection, None] = {}  # oldest first
        self._of_host: Counter[str] = Counter()
        self._answered: deque[tuple[_Connection, bytes]] = deque()
        self._selector = selectors.DefaultSelector()
        self._bell, self._bell_end = socket.socketpair()
        self._bell.setblocking(False)
        self._bell_end.setblocking(False)
        self._workers = ThreadPoolExecutor(WORKERS, "penstock-admin-worker")
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="penstock-admin", daemon=True)

    def start(self, app: WSGIApplication) -> None:
        self._site = _Site(app, self._listening.getsockname())
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._ring()
        self._thread.join()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _ring(self) -> None:
        """Wake the thread."""
        with suppress(OSError):  # full: the thread is awake anyway
            self._bell.send(b"\0")

    # --- the thread

    def _run(self) -> None:
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._selector.register(self._bell_end, selectors.EVENT_READ, self._rung)
        while not self._is_closing:
            for key, _ in self._selector.select(POLL_S):
                key.data()
            self._tick()
            self._end_late()
        for connection in list(self._connections):
            self._close(connection)
        for each in (self._selector, self._listening, self._bell, self._bell_end):
            each.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_A_TIME):
            try:
                accepted, peer = self._listening.accept()
            except OSError:  # none is left, its client has gone, or there are no descriptors
                return
            accepted.setblocking(False)
            connection = _Connection(accepted, peer, time.monotonic() + REQUEST_S)
            host = _host(connection)
            self._connections[connection] = None
            self._of_host[host] += 1
            self._selector.register(accepted, selectors.EVENT_READ, partial(self._read, connection))
            if self._of_host[host] > MOST_OF_ADDRESS:
                self._close_oldest(host)
            if len(self._connections) > MOST_CONNECTIONS or accepted.fileno() >= self._descriptors:
                self._close_oldest("")
            if connection in self._connections:
                self._read(connection)  # most have sent their request by now

    def _close_oldest(self, host: str) -> None:
        """Close the oldest connection that is not being answered, of a host or (empty) of any; at worst the newest."""
        for connection in self._connections:
            if connection.state is not _State.ANSWER and host in ("", _host(connection)):
                self._close(connection)
                return

    def _read(self, connection: _Connection) -> None:
        if connection not in self._connections:  # it gave way to one that was accepted in the same round
            return
        try:
            data = connection.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if connection.state is _State.HEAD and connection.head:
                self._ask(connection)  # a head without its end: wsgiref decides what it is
            else:
                self._close(connection)
        elif connection.state is _State.HEAD:
            connection.head += data
            if _is_complete(connection.head):
                self._ask(connection)
            elif len(connection.head) > HEAD_BYTES:
                self._close(connection)

    def _ask(self, connection: _Connection) -> None:
        """Give the request to a worker. Nothing is read meanwhile."""
        connection.state = _State.ANSWER
        self._selector.unregister(connection.socket)
        self._workers.submit(self._work, connection)

    def _work(self, connection: _Connection) -> None:
        """Make the answer, in a worker's thread."""
        answer = b""
        try:
            answer = self._site.answer(bytes(connection.head), connection.peer)
        finally:
            self._answered.append((connection, answer))
            self._ring()

    def _rung(self) -> None:
        with suppress(BlockingIOError):
            self._bell_end.recv(READ_BYTES)
        while self._answered:
            connection, answer = self._answered.popleft()
            connection.state = _State.TAKING
            connection.answer = memoryview(answer)
            connection.until_s = time.monotonic() + REQUEST_S
            self._selector.register(connection.socket, selectors.EVENT_WRITE, partial(self._write, connection))
            self._write(connection)

    def _write(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        try:
            while connection.answer:
                connection.answer = connection.answer[connection.socket.send(connection.answer) :]
            connection.socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)
            return
        # Closing a socket with unread bytes would discard the answer, so bytes that still come are read and ignored.
        connection.state = _State.END
        self._selector.modify(connection.socket, selectors.EVENT_READ, partial(self._read, connection))

    def _end_late(self) -> None:
        now_s = time.monotonic()
        late = [each for each in self._connections if each.until_s < now_s and each.state is not _State.ANSWER]
        for connection in late:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        del self._connections[connection]
        host = _host(connection)
        self._of_host[host] -= 1
        if not self._of_host[host]:
            del self._of_host[host]
        with suppress(KeyError):  # a worker has it
            self._selector.unregister(connection.socket)
        connection.socket.close()


def _host(connection: _Connection) -> str:
    return str(connection.peer[0])


def _is_complete(head: bytearray) -> bool:
    """Whether the empty line after the headers is there. Requests to this endpoint have no body."""
    return b"\r\n\r\n" in head or b"\n\n" in head or head.startswith(b"\r\n")
