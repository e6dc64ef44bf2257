"""The HTTP server of the admin endpoint, without a Penstock behind it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any

from penstock.servers.admin_server import MOST_OF_ADDRESS, AdminServer

TIMEOUT_S = 20


def page(_: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    start("200 OK", [("Content-Length", "2")])
    return [b"ok"]


class Pause:
    """Holds the server's thread between two rounds."""

    def __init__(self) -> None:
        self._may_go, self._stands = threading.Event(), threading.Event()
        self._may_go.set()

    def tick(self) -> None:
        if not self._may_go.is_set():
            self._stands.set()
            self._may_go.wait(TIMEOUT_S)

    def begin(self) -> None:
        self._stands.clear()
        self._may_go.clear()
        assert self._stands.wait(TIMEOUT_S)

    def end(self) -> None:
        self._may_go.set()


def test_a_connection_that_gave_way_in_the_round_in_which_it_says_more() -> None:
    pause = Pause()
    server = AdminServer(("127.0.0.1", 0), socket.AF_INET, pause.tick)
    server.start(page)
    with ExitStack() as closing:
        closing.callback(server.close)
        closing.callback(pause.end)

        def connect() -> socket.socket:
            return closing.enter_context(socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S))

        first = connect()
        first.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(3):
            pause.begin()  # the server has accepted it, and read that
            pause.end()
        pause.begin()
        others = [connect() for _ in range(MOST_OF_ADDRESS)]
        first.sendall(b"Host: x\r\n")
        pause.end()
        with suppress(ConnectionResetError):  # what it said last was not read
            assert first.recv(1) == b""
        others[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert others[-1].recv(100).startswith(b"HTTP/1.0 200 OK")
