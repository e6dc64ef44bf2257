"""MQTT in WebSocket frames (MQTT 5.0, 6): the websockets library has the rules, this layer has the bytes.

Frames may be divided anywhere, so their payloads are one stream of bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus

from websockets.exceptions import InvalidHandshake, InvalidMessage, NegotiationError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection
from gateway.sessions.farewell import LINGER_S
from gateway.settings import GatewaySettings
from gateway.transport.layers import Above, SteppedLayer

SUBPROTOCOL = Subprotocol("mqtt")
FORMER_SUBPROTOCOL = Subprotocol("mqttv3.1")
FRAME_SPARE_BYTES = 64 << 10
"""A message of frames may be larger than a packet by this: some clients put several packets in one."""
MOST_REQUEST_BYTES = 16 << 10
"""Of the HTTP request; browsers send some 500 bytes, and cookies."""
END_OF_REQUEST = b"\r\n\r\n"
MOST_FRAMES_BEFORE_CONNECT = 256
"""Pings and empty frames included. Clients send a CONNECT in one frame, or in a few."""
BYTES_AT_ONCE = 512
"""Bytes processed between two looks at bounds and clock: some 80 frames at most."""

NO_HTTP = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

quiet = logging.getLogger("penstock.websocket")
quiet.setLevel(logging.WARNING)


class WebSocketLayer(SteppedLayer):
    """The server's end of one WebSocket connection."""

    __slots__ = ("_connection", "_frames", "_is_paused", "_kept_bytes", "_protocol", "_request_bytes", "_rest", "_seen")

    def __init__(self, above: Above, connection: Connection, settings: GatewaySettings) -> None:
        super().__init__(above, connection.owner)
        self._connection = connection
        self._rest = b""  # unprocessed input
        self._seen = b""  # the last bytes of the request, which may begin its end
        self._is_paused = False
        self._request_bytes = 0  # received before the request is complete
        self._frames = 0  # received before a CONNECT
        self._kept_bytes = 0  # as reported to the connection
        self._protocol = ServerProtocol(
            origins=[None, *map(Origin, settings.websocket_origins)] if settings.websocket_origins else None,
            select_subprotocol=_select_any if settings.websocket_any_subprotocol else _select,
            max_size=settings.maximum_packet_size_bytes + FRAME_SPARE_BYTES,
            logger=quiet,
        )

    # --- in

    def buffer_updated(self, size: int) -> None:
        self._rest += bytes(memoryview(self.above.get_buffer(size))[:size])
        if not self._goes_on:
            self.step()

    @property
    def has_rest(self) -> bool:
        return bool(self._rest)

    @property
    def is_heard(self) -> bool:
        return not self._connection.is_deaf

    def take_some(self, is_over: Callable[[], bool]) -> None:
        data, at = self._rest, 0
        self._rest = b""
        while at < len(data) and not self.is_closing:
            self._take(data[at : at + BYTES_AT_ONCE])
            at += BYTES_AT_ONCE
            if self._connection.version and is_over():
                break
        self._rest = data[at:]
        if self.is_closing:
            self._rest = b""
            self._take_last(data[at:], is_over)
        elif self._rest:
            self._keep_within_bounds()

    def _take_last(self, data: bytes, is_late: Callable[[], bool]) -> None:
        """Wait only for the other end's Close frame, and not after much other data."""
        protocol, at, is_over = self._protocol, 0, False
        while at < len(data) and not is_over:
            protocol.receive_data(data[at : at + BYTES_AT_ONCE])
            protocol.events_received()
            at += BYTES_AT_ONCE
            is_over = protocol.close_rcvd is not None or protocol.parser_exc is not None or is_late()
        if is_over or len(protocol.reader.buffer) > FRAME_SPARE_BYTES:
            self.below.close()

    def _take(self, data: bytes) -> None:
        if self._protocol.state is State.CONNECTING:
            self._request_bytes += len(data)
            end = (self._seen + data).find(END_OF_REQUEST)
            end = len(data) if end < 0 else end + len(END_OF_REQUEST) - len(self._seen)
            self._seen = (self._seen + data)[1 - len(END_OF_REQUEST) :]
            self._take_received(data[:end])
            data = data[end:]  # frames: the library handles them once the request is answered
        if data and not self.is_closing:
            self._take_received(data)

    def _take_received(self, data: bytes) -> None:
        protocol = self._protocol
        protocol.receive_data(data)
        payloads = []
        for event in protocol.events_received():
            if isinstance(event, Request):
                if not self._answer(event):
                    break
                continue
            self._frames += not self._connection.version
            assert isinstance(event, Frame)  # no client sends a Response
            if event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                payloads.append(event.data)
            elif event.opcode is Opcode.TEXT:
                protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT is binary")
                self._count("a WebSocket text frame [MQTT-6.0.0-1]")
                break
        wrote = self._send_rest()
        is_over = protocol.close_expected()
        if payloads:
            self._hand_up(b"".join(payloads))
        if is_over:
            self._end(wrote)
        elif not self.is_closing:
            self._keep_within_bounds()

    def _keep_within_bounds(self) -> None:
        """Count buffered bytes like parts of packets, and enforce the bounds before a CONNECT."""
        protocol, connection = self._protocol, self._connection
        is_request = protocol.state is State.CONNECTING
        kept = self._request_bytes if is_request else len(protocol.reader.buffer)
        if kept + len(self._rest) != self._kept_bytes:
            self._kept_bytes = kept + len(self._rest)
            connection.keep_below(self._kept_bytes)  # which may close it
        if self.is_closing or connection.session is not None:
            return
        if is_request:
            if kept > MOST_REQUEST_BYTES:
                self.send(TOO_LARGE)
                self._refuse("WebSocket handshake refused: its HTTP request is too large")
        elif kept > connection.owner.settings.max_connect_bytes + FRAME_SPARE_BYTES:
            if connection.version:
                self.pause_reading()  # until the CONNACK is sent
                return
            protocol.fail(CloseCode.MESSAGE_TOO_BIG, "no CONNECT is so large")
            self._refuse("a WebSocket frame before CONNECT is larger than gateway.max_connect_bytes")
        elif self._frames > MOST_FRAMES_BEFORE_CONNECT and not connection.version:
            protocol.fail(CloseCode.POLICY_VIOLATION, "no CONNECT")
            self._refuse(f"more than {MOST_FRAMES_BEFORE_CONNECT} WebSocket frames before a CONNECT")

    def _refuse(self, why: str) -> None:
        self._send_rest()
        self._connection.refuse(ProtocolError(ReasonCode.PROTOCOL_ERROR, why))
        self.close()

    def _answer(self, request: Request) -> bool:
        """Answer the opening handshake. A refused request gets an HTTP answer."""
        protocol = self._protocol
        paths = self._connection.owner.settings.websocket_paths
        if request.path.partition("?")[0] not in paths:
            response = protocol.reject(HTTPStatus.NOT_FOUND, f"MQTT is at {' and '.join(paths)}\n")
        else:
            response = protocol.accept(request)
        protocol.send_response(response)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            return True
        self._count(f"WebSocket handshake refused: {response.status_code} {response.reason_phrase}")
        return False

    def _hand_up(self, data: bytes) -> None:
        """Pass data up in pieces that fit the buffer of the layer above."""
        at = 0
        while at < len(data) and not self.is_closing:
            buffer = self.above.get_buffer(0)
            piece = data[at : at + len(buffer)] if at or len(data) > len(buffer) else data
            buffer[: len(piece)] = piece
            at += len(piece)
            self.above.buffer_updated(len(piece))

    def _end(self, is_answered: bool) -> None:
        """End the connection: the other end closed it, or broke a rule and was told."""
        protocol = self._protocol
        broken = protocol.parser_exc or protocol.handshake_exc
        if isinstance(broken, InvalidMessage) and not is_answered:  # newer versions of the library send it
            self.send(NO_HTTP)
        if isinstance(broken, InvalidMessage) or not isinstance(broken, InvalidHandshake | None):
            self._count(f"WebSocket: {broken}")
        self.close()

    def _count(self, why: str) -> None:
        self._connection.owner.count_bad_input(self._connection, ProtocolError(ReasonCode.PROTOCOL_ERROR, why))

    # --- out

    def write(self, data: bytes) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            for each in self._protocol.data_to_send():
                self.send(each)

    def _send_rest(self) -> bool:
        """Send handshakes, pongs and the like; returns whether there were any. A client that reads none of them is not
        read.
        """
        data = b"".join(self._protocol.data_to_send())  # an empty piece: as close_expected() says
        if data:
            self.send(data)
            if self._is_paused:
                self.pause_reading()
        return bool(data)

    def close(self) -> None:
        """Send a Close frame, and wait a moment for the other end's; only once."""
        is_open = self._protocol.state is State.OPEN and not self.is_closing
        if not is_open:
            super().close()
            return
        self.say_goodbye()
        self.is_closing = True
        owner = self._connection.owner
        owner.deadlines.set(self, owner.turn.now_s + LINGER_S, self.abort)
        self.below.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.owner.deadlines.cancel(self)
        super().connection_lost(error)

    def say_goodbye(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        for each in self._protocol.data_to_send():
            if each:
                self.send(each)

    def pause_writing(self) -> None:
        self._is_paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._is_paused = False
        super().resume_writing()


def _select(protocol: ServerProtocol, offered: object) -> Subprotocol:
    """[MQTT-6.0.0-3], [MQTT-6.0.0-4]"""
    if isinstance(offered, list | tuple) and SUBPROTOCOL in offered:
        return SUBPROTOCOL
    raise NegotiationError('the sub-protocol has to be "mqtt"')


def _select_any(protocol: ServerProtocol, offered: object) -> Subprotocol | None:
    """The best subprotocol that a client offers; None if it offers no known one: the answer then says so."""
    found = offered if isinstance(offered, list | tuple) else ()
    return next((each for each in (SUBPROTOCOL, FORMER_SUBPROTOCOL) if each in found), None)
