"""Many clients with wrong passwords, from any addresses of this machine, at a steady rate."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect


def attempt(
    port: int, username: str, password: str, source: str = "127.0.0.1", client_id: str = "", version: int = 5
) -> socket.socket:
    """A connection that has sent its CONNECT."""
    made = socket.create_connection(("127.0.0.1", port), 20, (source, 0))
    made.sendall(encode(Connect(client_id, version, username=username, password=password.encode()), version))
    return made


def answer(connection: socket.socket) -> int | None:
    """The reason code of an MQTT 5 CONNACK; None: the server closed the connection without one."""
    try:
        data = connection.recv(1_024)
    except ConnectionError:
        return None
    return data[3] if data[:1] == b"\x20" else None


class Flood:
    """Runs in a thread of its own from entering to leaving it."""

    def __init__(
        self, port: int, sources: Sequence[str], user: Callable[[int], str], per_s: int = 200, waits_s: float = 2.0
    ) -> None:
        """`waits_s`: how long each waits for its answer."""
        self._waits_s = waits_s
        self._port = port
        self._sources = itertools.cycle(sources)
        self._user = user
        self._per_s = per_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0
        self.answers: Counter[int | None] = Counter()

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        open_: deque[tuple[float, socket.socket]] = deque()
        started_s = time.monotonic()
        while not self._ends.is_set():
            now_s = time.monotonic()
            while self.sent < (now_s - started_s) * self._per_s:
                user = self._user(self.sent)
                with suppress(OSError):
                    open_.append((now_s, attempt(self._port, user, f"wrong-{self.sent}", next(self._sources))))
                self.sent += 1
            while open_ and open_[0][0] < now_s - self._waits_s:
                self._end(open_.popleft()[1])
            self._ends.wait(0.005)
        for _, each in open_:
            each.close()

    def _end(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with suppress(BlockingIOError):
            self.answers[answer(connection)] += 1
        connection.close()
