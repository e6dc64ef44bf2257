"""A peer of a store in blocking sockets: it says and reads frames, and knows nothing more.

peer = WirePeer(store.url, "gw-1")
request_id = peer.ask(Append(1), records)
assert isinstance(peer.answer(request_id), Appended)
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

from store.errors import WireError
from store.wire.frames import Frame, FrameReader, Readable, encode
from store.wire.handshake import ClientHandshake
from store.wire.messages import Grew, Hello, Ping, Pong, Pushed, Role, Welcome, WireMessage

M = TypeVar("M", bound=WireMessage)

TIMEOUT_S = 20.0


class PeerClosed(WireError):
    """The store ended the connection."""


class WirePeer:
    """One connection. It answers Pings while it waits for something."""

    def __init__(
        self,
        url: str,
        name: str,
        role: Role = Role.GATEWAY,
        token: str = "",
        password: str = "",
        versions: Sequence[int] = (1,),
    ) -> None:
        self.url, self.name = url, name
        self.events: list[WireMessage] = []  # what came that was not asked for
        self.pongs = 0
        self._answers: dict[int, Frame] = {}
        self._request_ids = 0
        self.socket = connect(url)
        handshake = ClientHandshake(Hello(list(versions), role, name, token, password=password))
        try:
            self.socket.sendall(handshake.greeting)
            while handshake.welcome is None:
                handshake.feed(self._received())
        except BaseException:
            self.socket.close()
            raise
        self.welcome: Welcome = handshake.welcome
        self._reader = FrameReader(self.welcome.max_frame_bytes, Role.STORE)
        self._feed(handshake.rest)

    def __enter__(self) -> WirePeer:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # --- out

    def ask(self, message: WireMessage, records: Readable = b"") -> int:
        """Send a request; its request_id."""
        self._request_ids += 1
        self._send(encode(message, self._request_ids, records))
        return self._request_ids

    def tell(self, message: WireMessage) -> None:
        self._send(encode(message))

    def _send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except ConnectionError as error:
            raise PeerClosed(f"the store closed the connection ({error})") from None

    def ping(self) -> None:
        """Send a Ping and wait for its answer."""
        awaited = self.pongs + 1
        self.tell(Ping())
        self.wait(lambda: self.pongs >= awaited)

    # --- in

    def answer(self, request_id: int) -> WireMessage:
        return self.answer_frame(request_id).message

    def answer_frame(self, request_id: int) -> Frame:
        self.wait(lambda: request_id in self._answers)
        return self._answers.pop(request_id)

    def call(self, message: WireMessage, records: Readable = b"") -> WireMessage:
        return self.answer(self.ask(message, records))

    def event(self, kind: type[M], accept: Callable[[M], bool] = lambda _: True) -> M:
        """The first event of a kind that is acceptable; those before it are forgotten."""

        def found() -> M | None:
            return next((each for each in self.events if isinstance(each, kind) and accept(each)), None)

        self.wait(lambda: found() is not None)
        event = found()
        assert event is not None
        del self.events[: self.events.index(event) + 1]
        return event

    def grew(self, ref: int, next_offset: int) -> None:
        """Wait until a queue is said to have grown so far, or what makes it so long was pushed."""

        def ends(event: WireMessage) -> list[tuple[int, int]]:
            if isinstance(event, Pushed):
                return [(one, first + count) for one, first, count in event.ranges]
            return event.queues if isinstance(event, Grew) else []

        self.event(WireMessage, lambda each: any(one == ref and end >= next_offset for one, end in ends(each)))

    def wait(self, condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, "it did not come in time"
            self.pump()

    def pump(self) -> None:
        """Take what comes next."""
        self._feed(self._received())

    def listen(self, seconds: float) -> None:
        """Take what comes for a while."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.socket.settimeout(left_s)
            try:
                self.pump()
            except TimeoutError:
                break
        self.socket.settimeout(TIMEOUT_S)

    def _received(self) -> bytes:
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            raise PeerClosed("the store closed the connection")
        return data

    def _feed(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            if frame.request_id:
                self._answers[frame.request_id] = frame
            elif isinstance(frame.message, Ping):
                self.tell(Pong())
            elif isinstance(frame.message, Pong):
                self.pongs += 1
            else:
                self.events.append(frame.message)


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        found = socket.socket(socket.AF_UNIX)
        found.settimeout(TIMEOUT_S)
        found.connect(parts.path)
        return found
    assert parts.port is not None
    found = socket.create_connection((parts.hostname, parts.port), TIMEOUT_S)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else what follows a request waits for its answer
    return found
