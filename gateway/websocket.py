"""MQTT in WebSocket frames (MQTT 5.0, 6): the websockets library knows the rules, this layer has the bytes.

Frames are cut where their sender likes, so their payloads are one stream of bytes.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from websockets.exceptions import InvalidHandshake, InvalidMessage, NegotiationError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from gateway.connection import LINGER_S, Connection
from gateway.errors import ProtocolError
from gateway.layers import Above, Layer
from gateway.listen_address import WEBSOCKET_PATH
from gateway.reason_codes import ReasonCode

SUBPROTOCOL = Subprotocol("mqtt")
FRAME_SPARE_BYTES = 64 << 10
"""A message of frames may be so much larger than a packet: some clients gather several in one."""

NO_HTTP = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

quiet = logging.getLogger("penstock.websocket")
quiet.setLevel(logging.WARNING)


class WebSocketLayer(Layer):
    """The server's end of one WebSocket connection. `origins`: pages of which sites may connect; empty: all."""

    __slots__ = ("_connection", "_is_paused", "_protocol")

    def __init__(
        self, above: Above, connection: Connection, max_packet_bytes: int, origins: tuple[str, ...] = ()
    ) -> None:
        super().__init__(above)
        self._connection = connection
        self._is_paused = False
        self._protocol = ServerProtocol(
            origins=[None, *map(Origin, origins)] if origins else None,
            select_subprotocol=_select,
            max_size=max_packet_bytes + FRAME_SPARE_BYTES,
            logger=quiet,
        )

    # --- in

    def buffer_updated(self, size: int) -> None:
        protocol = self._protocol
        protocol.receive_data(bytes(memoryview(self.above.get_buffer(size))[:size]))
        if self.is_closing:
            protocol.events_received()
            if protocol.close_rcvd is not None or protocol.parser_exc is not None:
                self.below.close()
            return
        payloads = []
        for event in protocol.events_received():
            if isinstance(event, Request):
                if not self._answer(event):
                    break
                continue
            assert isinstance(event, Frame)  # nobody sends a server a Response
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

    def _answer(self, request: Request) -> bool:
        """To the opening handshake. What does not lead to a connection is answered as HTTP has it."""
        protocol = self._protocol
        if request.path.partition("?")[0] != WEBSOCKET_PATH:
            response = protocol.reject(HTTPStatus.NOT_FOUND, f"MQTT is at {WEBSOCKET_PATH}\n")
        else:
            response = protocol.accept(request)
        protocol.send_response(response)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            return True
        self._count(f"WebSocket handshake refused: {response.status_code} {response.reason_phrase}")
        return False

    def _hand_up(self, data: bytes) -> None:
        """In pieces that fit the buffer of what is above."""
        at = 0
        while at < len(data) and not self.is_closing:
            buffer = self.above.get_buffer(0)
            piece = data[at : at + len(buffer)] if at or len(data) > len(buffer) else data
            buffer[: len(piece)] = piece
            at += len(piece)
            self.above.buffer_updated(len(piece))

    def _end(self, is_answered: bool) -> None:
        """The other end closed, or broke a rule and was told so."""
        protocol = self._protocol
        broken = protocol.parser_exc or protocol.handshake_exc
        if isinstance(broken, InvalidMessage) and not is_answered:  # newer versions of the library do
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
        """Handshakes, pongs and the like; whether there were any. Who reads none of them is not read either."""
        wrote = False
        for each in self._protocol.data_to_send():
            if each:  # else: what is below is to be closed, as close_expected() says
                self.send(each)
                wrote = True
        if wrote and self._is_paused:
            self.pause_reading()
        return wrote

    def close(self) -> None:
        """Waits a moment for the other end's Close, which need not meet a closed socket then; but only once."""
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
