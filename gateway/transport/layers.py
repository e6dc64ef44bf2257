"""The layers between a socket and its Connection: each is a protocol for the one below, a transport for the one above.

    SocketTransport ─ TlsLayer ─ WebSocketLayer ─ Connection

A layer passes on what it does not change. Incoming data go into the buffer of the layer above, as from a transport.
Without epoll the transport is the loop's.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol


class Above(Protocol):
    """An asyncio.BufferedProtocol."""

    def connection_made(self, transport: Any) -> None: ...
    def get_buffer(self, _: int) -> bytearray: ...
    def buffer_updated(self, size: int) -> None: ...
    def eof_received(self) -> bool: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...


STEP_NS = 500_000
"""How long a layer works on input at a time: that may be thousands of frames or records of one byte each."""


class Turns(Protocol):
    """The part of a Turn that layers need."""

    def add_work(self, took_ns: int) -> None: ...


class RestTaker(Protocol):
    """Runs the rest of some work in a later turn."""

    @property
    def turn(self) -> Turns: ...
    def rest(self, go_on: Callable[[], object]) -> None: ...


class Layer:
    """Base of both layers: changes nothing."""

    __slots__ = ("_fd", "above", "below", "is_closing")

    def __init__(self, above: Above) -> None:
        self.above = above
        self.below: Any = None
        self.is_closing = False
        self._fd = -1

    # --- for the transport below: a protocol

    def connection_made(self, transport: Any) -> None:
        self.below = transport
        plain_socket = transport.get_extra_info("socket")
        if plain_socket is not None:
            self._fd = plain_socket.fileno()
        self.above.connection_made(self)

    def get_buffer(self, size: int) -> bytearray:
        return self.above.get_buffer(size)

    def buffer_updated(self, size: int) -> None:
        self.above.buffer_updated(size)

    def eof_received(self) -> bool:
        return self.above.eof_received()

    def pause_writing(self) -> None:
        self.above.pause_writing()

    def resume_writing(self) -> None:
        self.above.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closing = True
        self._fd = -1
        self.above.connection_lost(error)

    # --- for the layer above: a transport

    def write(self, data: bytes) -> None:
        self.send(data)

    def send(self, data: bytes) -> None:
        """Send directly to the socket as far as it accepts data (docs/adr/0007-send-straight-to-the-socket.md)."""
        if self._fd >= 0 and not self.below.get_write_buffer_size():
            try:
                sent = os.write(self._fd, data)
            except OSError:  # a full buffer, or an error that the transport will meet as well
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        self.below.write(data)

    def say_goodbye(self) -> None:
        """Tell the other end's layer that no more data come."""

    def close(self) -> None:
        """Send what was written, then close. Idempotent."""
        if not self.is_closing:
            self.say_goodbye()
            self.is_closing = True
        self._fd = -1
        self.below.close()

    def abort(self) -> None:
        self.is_closing = True
        self._fd = -1
        self.below.abort()

    def can_write_eof(self) -> bool:
        return bool(self.below.can_write_eof())

    def write_eof(self) -> None:
        """Close for writing. Data that still come are read and ignored."""
        if not self.is_closing:
            self.say_goodbye()
            self.is_closing = True
        self._fd = -1
        self.below.write_eof()

    def pause_reading(self) -> None:
        self.below.pause_reading()

    def resume_reading(self) -> None:
        self.below.resume_reading()

    def get_write_buffer_size(self) -> int:
        return int(self.below.get_write_buffer_size())

    def set_write_buffer_limits(self, high: int) -> None:
        self.below.set_write_buffer_limits(high=high)

    def get_extra_info(self, name: str) -> object:
        """No `socket`: all data for it must go through this layer."""
        return None if name == "socket" else self.below.get_extra_info(name)


class SteppedLayer(Layer):
    """A layer that works on its input for STEP_NS at a time; meanwhile nothing more is read."""

    __slots__ = ("_goes_on", "_owner")

    def __init__(self, above: Above, owner: RestTaker) -> None:
        super().__init__(above)
        self._owner = owner
        self._goes_on = False  # a later turn goes on

    @property
    @abstractmethod
    def has_rest(self) -> bool:
        """True if there is unprocessed input."""

    @abstractmethod
    def take_some(self, is_over: Callable[[], bool]) -> None:
        """Process input until `is_over()`."""

    @property
    @abstractmethod
    def is_heard(self) -> bool:
        """Whether the layer above accepts more."""

    def step(self) -> None:
        began_ns = time.perf_counter_ns()
        self.take_some(lambda: time.perf_counter_ns() - began_ns >= STEP_NS)
        self._owner.turn.add_work(time.perf_counter_ns() - began_ns)
        if self.has_rest and not self.is_closing:
            self.below.pause_reading()
            self._go_on_later()

    def _go_on_later(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            self._owner.rest(self._go_on)

    def _go_on(self) -> None:
        """Pass input on. If the layer above does not accept more, it calls resume_reading() once it does."""
        self._goes_on = False
        if self.has_rest and not self.is_closing and self.is_heard:
            self.step()
            self._listen_again()

    def _listen_again(self) -> None:
        if not self.has_rest and not self.is_closing and self.is_heard:
            self.below.resume_reading()

    def resume_reading(self) -> None:
        if self.has_rest and not self.is_closing:
            self._go_on_later()
        else:
            super().resume_reading()
