"""What happens to the socket of a connection that is closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from gateway.sessions.pausable_link import PausableLink

LINGER_S: Final = 5
"""How long a closed connection may take to write what it still holds."""


class Farewell(Enum):
    """What happens to the socket when a connection is closed."""

    CLOSE = "the socket is closed once all that it holds is written"
    LINGER = "the socket stays open until end() is called"
    SEE_OFF = "the sending half is closed, and the client closes the socket"
    CUT_OFF = "the socket is closed at once, and what it holds is dropped"


def close_socket(link: PausableLink) -> None:
    """Write what the socket still holds, then close it. A peer that takes nothing keeps it for LINGER_S at most."""
    link.fd = -1
    if link.transport.get_write_buffer_size():
        _linger(link)
    link.transport.close()


def _linger(link: PausableLink) -> None:
    link.owner.deadlines.set(link, link.owner.turn.now_s + LINGER_S, link.transport.abort)


def _wait_for_end(link: PausableLink) -> None:
    link.fd = -1
    link.held = False
    if not link.transport.can_write_eof():
        close_socket(link)
        return
    link.transport.write_eof()
    _linger(link)
    link.transport.resume_reading()


def _abort(link: PausableLink) -> None:
    link.fd = -1
    link.transport.abort()


FAREWELLS: Mapping[Farewell, Callable[[PausableLink], None]] = {
    Farewell.CLOSE: close_socket,
    Farewell.LINGER: _linger,
    Farewell.SEE_OFF: _wait_for_end,
    Farewell.CUT_OFF: _abort,
}
