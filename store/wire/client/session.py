"""A peer's end of a connection to a store: handshake, frames, heartbeats. No I/O: its user brings bytes and time.

session = PeerSession(hello, transport.write)
transport.write(session.greeting)
for event in session.feed(data, now_s): ...   # first the Welcome, then frames
session.beat(now_s)                           # several times a second, where the connection lasts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from store.wire.frames import Frame, FrameReader, Readable, encode
from store.wire.handshake import ClientHandshake
from store.wire.messages import Goodbye, Hello, Ping, Pong, Role, Welcome

_OF_CONNECTION = frozenset((Ping, Pong, Goodbye))


class PeerSession:
    """The state of one connection. Times are monotonic seconds."""

    def __init__(self, hello: Hello, write: Callable[[bytes], None], now_s: float = 0.0) -> None:
        self.welcome: Welcome | None = None
        self.farewell = ""  # why the store leaves, if it said so
        self.heard_s = now_s
        self.pinged_s = now_s  # when the last Ping went out; the greeting is as good
        self._handshake = ClientHandshake(hello)
        self._reader: FrameReader | None = None
        self._is_pinging = True  # the last one has no answer
        self._write = write

    @property
    def greeting(self) -> bytes:
        """The bytes to send first: magic and Hello."""
        return self._handshake.greeting

    def feed(self, data: Readable, now_s: float = 0.0) -> Iterator[Welcome | Frame]:
        """Decode input: the Welcome, then frames, without Pings, which are answered, and a Goodbye.

        Iterate over it to its end. Raises HandshakeRefused or WireError; then close the connection.
        """
        self.heard_s = now_s
        if self._reader is None:
            welcome = self._handshake.feed(data)
            if welcome is None:
                return
            data = self._handshake.rest
            self.welcome = welcome
            self._is_pinging = False
            self._reader = FrameReader(welcome.max_frame_bytes, Role.STORE)
            yield welcome
        for frame in self._reader.read(data):
            message = frame.message
            if type(message) in _OF_CONNECTION:
                if isinstance(message, Ping):
                    self._write(encode(Pong()))
                    continue
                if isinstance(message, Goodbye):
                    self.farewell = f"it said goodbye: {message.reason}"
                    continue
                self._is_pinging = False
            yield frame

    def beat(self, now_s: float) -> None:
        """Say that this peer is there, if it is time for that and the store has answered the last time."""
        if self.welcome is None or self._is_pinging:
            return
        if now_s - self.pinged_s >= self.welcome.heartbeat_ms / 1000:
            self.pinged_s = now_s
            self._is_pinging = True
            self._write(encode(Ping()))

    def is_silent(self, now_s: float, heartbeats: int, least_s: float = 0.0) -> bool:
        """Whether a store that let this peer in has said nothing for so many heartbeats, and for `least_s`."""
        if self.welcome is None:
            return False
        return now_s - self.heard_s > max(heartbeats * self.welcome.heartbeat_ms / 1000, least_s)
