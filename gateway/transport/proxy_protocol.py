"""The header of the PROXY protocol, version 2, by which a proxy tells the client's address, before any other data.

Sections are those of https://www.haproxy.org/download/3.1/doc/proxy-protocol.txt. Only stream connections are
supported:

     0  12  signature                                                    (2.2)
    12   1  version (2) in the upper four bits, command in the lower: 0 LOCAL, 1 PROXY
    13   1  address family in the upper four bits, transport in the lower (1: stream)
    14   2  length of the rest, big-endian: addresses (2.2), then extensions (2.2.1), which are skipped
    16
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import address_of

if TYPE_CHECKING:
    from gateway.transport.layers import Above

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
HEAD = struct.Struct("!12sBBH")
MOST_BYTES = 4_096
"""A longer header is refused; the standard's addresses take 232 bytes, extensions the rest."""

LOCAL, PROXY = 0x20, 0x21
UNSPEC, TCP_4, TCP_6, UNIX = 0x00, 0x11, 0x21, 0x31
ADDRESS_BYTES = {UNSPEC: 0, TCP_4: 12, TCP_6: 36, UNIX: 216}

Peer = tuple[str, int]


def parse(data: bytes | bytearray | memoryview) -> tuple[int, Peer | None] | None:
    """(bytes of the header, the client's address if it has one); None: more bytes are needed. Raises ProtocolError."""
    start = bytes(data[: len(SIGNATURE)])
    if start != SIGNATURE[: len(start)]:
        raise _bad("does not begin as one")
    if len(data) < HEAD.size:
        return None
    _, command, family, size = HEAD.unpack_from(data)
    if command not in (LOCAL, PROXY):
        raise _bad(f"version and command 0x{command:02x}")
    if family not in ADDRESS_BYTES:
        raise _bad(f"address family and transport 0x{family:02x}, which is no stream")
    if HEAD.size + size > MOST_BYTES:
        raise _bad(f"longer than {MOST_BYTES} bytes")
    if size < ADDRESS_BYTES[family]:
        raise _bad("shorter than its addresses")
    if len(data) < HEAD.size + size:
        return None
    return HEAD.size + size, _client(command, family, bytes(data[HEAD.size : HEAD.size + ADDRESS_BYTES[family]]))


def _client(command: int, family: int, addresses: bytes) -> Peer | None:
    """The client's address; None with LOCAL (the proxy's own connection), UNSPEC, and for a Unix socket."""
    if command == LOCAL or family not in (TCP_4, TCP_6):
        return None
    size, kind = (4, socket.AF_INET) if family == TCP_4 else (16, socket.AF_INET6)
    (port,) = struct.unpack_from("!H", addresses, 2 * size)
    return socket.inet_ntop(kind, addresses[:size]), port


def _bad(what: str) -> ProtocolError:
    return ProtocolError(ReasonCode.PROTOCOL_ERROR, f"PROXY protocol header: {what}")


class ProxyHeader:
    """The first protocol of a connection from a proxy; after the header, `above` replaces it."""

    __slots__ = ("_above", "_below", "_buffer", "_said", "_size")

    def __init__(self, above: Above, said: Any) -> None:
        """`said(self, error)` is called once: the header is read, is wrong, or (error None as well) the peer left."""
        self._above = above
        self._said = said
        self._buffer = bytearray(MOST_BYTES)
        self._size = 0
        self._below: Any = None

    @property
    def peer(self) -> str:
        """The proxy's address."""
        return address_of(self._below and self._below.get_extra_info("peername"))

    def abort(self) -> None:
        if self._below is not None:
            self._below.abort()

    def connection_made(self, transport: Any) -> None:
        self._below = transport

    def get_buffer(self, _: int) -> memoryview:
        return memoryview(self._buffer)[self._size :]

    def buffer_updated(self, size: int) -> None:
        self._size += size
        try:
            found = parse(memoryview(self._buffer)[: self._size])
        except ProtocolError as error:
            self._said(self, error)
            self.abort()
            return
        if found is not None:
            self._said(self, None)
            self._hand_over(*found)

    def _hand_over(self, used: int, peer: Peer | None) -> None:
        above, rest = self._above, self._buffer[used : self._size]
        self._below.set_protocol(above)
        above.connection_made(self._below if peer is None else _Proxied(self._below, peer))
        if rest:
            above.get_buffer(len(rest))[: len(rest)] = rest
            above.buffer_updated(len(rest))

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        """Nothing is written."""

    def resume_writing(self) -> None:
        """Nothing is written."""

    def connection_lost(self, error: Exception | None) -> None:
        self._said(self, None)


class _Proxied:
    """A transport with the client's address from the proxy."""

    __slots__ = ("_peer", "_transport")

    def __init__(self, transport: Any, peer: Peer) -> None:
        self._transport = transport
        self._peer = peer

    def get_extra_info(self, name: str) -> object:
        return self._peer if name == "peername" else self._transport.get_extra_info(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
