"""TLS and WebSocket for a device, without I/O: bytes of the socket on one side, MQTT on the other."""

from __future__ import annotations

import ssl
from typing import Protocol

from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from loadtest.errors import BrokerRefuses

READ_BYTES = 1 << 16
FRAME_BYTES = 1 << 24
"""Largest WebSocket frame of a broker."""


class DeviceLayer(Protocol):
    """A layer between a device and its socket. Its methods raise BrokerRefuses."""

    @property
    def is_open(self) -> bool:
        """Whether MQTT can be sent."""

    def opening(self) -> bytes:
        """The bytes to send first."""

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Take bytes from the socket. Returns MQTT bytes, and bytes to send."""

    def send(self, data: bytes) -> bytes:
        """MQTT bytes as they go to the socket."""


class DeviceTls:
    """OpenSSL between two buffers in memory."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.is_open = False
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    def opening(self) -> bytes:
        self._shake_hands()
        return self._out.read()

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        self._in.write(data)
        if not self.is_open:
            self._shake_hands()
        parts: list[bytes] = []
        try:
            while self.is_open and (part := self._tls.read(READ_BYTES)):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise BrokerRefuses(f"TLS: {error.reason or error}") from None
        return b"".join(parts), self._out.read()

    def send(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._out.read()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
            self.is_open = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            raise BrokerRefuses(f"TLS: {error.verify_message}; name whom to trust with --ca") from None
        except ssl.SSLError as error:
            raise BrokerRefuses(f"TLS: {error.reason or error}; does the broker speak TLS at this port?") from None


class DeviceWebSocket:
    """Binary frames of the `mqtt` subprotocol; bytes sent together are one frame."""

    def __init__(self, uri: str) -> None:
        self.is_open = False
        self._protocol = ClientProtocol(parse_uri(uri), subprotocols=[Subprotocol("mqtt")], max_size=FRAME_BYTES)

    def opening(self) -> bytes:
        self._protocol.send_request(self._protocol.connect())
        return self._to_send()

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        protocol = self._protocol
        protocol.receive_data(data)
        parts: list[bytes] = []
        for event in protocol.events_received():
            if isinstance(event, Frame):
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    parts.append(bytes(event.data))
            elif protocol.handshake_exc is None:
                self.is_open = True
        fault = protocol.handshake_exc or protocol.parser_exc
        if fault is not None:
            what = f"WebSocket: {fault}" if isinstance(fault, WebSocketException) else "WebSocket: no answer"
            raise BrokerRefuses(f"{what}; is it the right port, and the right path?")
        return b"".join(parts), self._to_send()

    def send(self, data: bytes) -> bytes:
        self._protocol.send_binary(data)
        return self._to_send()

    def _to_send(self) -> bytes:
        return b"".join(self._protocol.data_to_send())


class DeviceTlsWebSocket:
    """A WebSocket within TLS."""

    def __init__(self, tls: DeviceTls, web_socket: DeviceWebSocket) -> None:
        self._tls, self._web_socket = tls, web_socket
        self._has_asked = False

    @property
    def is_open(self) -> bool:
        return self._web_socket.is_open

    def opening(self) -> bytes:
        return self._tls.opening()

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        plain, out = self._tls.receive(data)
        if self._tls.is_open and not self._has_asked:
            self._has_asked = True
            out += self._tls.send(self._web_socket.opening())
        if not plain:
            return b"", out
        mqtt, answer = self._web_socket.receive(plain)
        return mqtt, out + self._tls.send(answer) if answer else out

    def send(self, data: bytes) -> bytes:
        return self._tls.send(self._web_socket.send(data))
