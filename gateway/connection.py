"""One client connection: a table of what may come in each phase, and what is done about it. Works without a loop.

The byte work is in the compiled Link; the transport is anything with write(), close() and abort().
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from gateway import packets
from gateway._wire import Link
from gateway.codec import decode, encode
from gateway.codec_rules import ALLOWED_REASON_CODES
from gateway.errors import MalformedPacket, ProtocolError
from gateway.exchange import Exchange
from gateway.packets import ConnAck, Connect, Disconnect, Packet, PacketType, PubAck, PubComp, Publish, PubRec, PubRel
from gateway.properties import Properties
from gateway.reason_codes import ReasonCode
from gateway.session import Session

if TYPE_CHECKING:
    from gateway.broker import Broker

log = logging.getLogger("penstock.gateway")

MOST_REASON_CHARACTERS = 200
LINGER_S = 5
"""How long a closed connection may take to write what it still holds."""


class Phase(Enum):
    """Where a connection is in its life."""

    NEW = "no CONNECT yet"
    OPEN = "connected"
    CLOSED = "closed"


class Connection(Link):
    """Owned by the Broker."""

    __slots__ = ("aliases", "broker", "keep_will", "phase")

    def __init__(self, broker: Broker) -> None:
        Link.__init__(self, broker.turn)
        self.broker = broker
        self.phase = Phase.NEW
        self.keep_will = True
        self.aliases: dict[int, str] | None = None
        self.max_packet_in = broker.settings.maximum_packet_size_bytes
        self.ack_limit = broker.settings.receive_maximum
        self.last_seen_s = broker.turn.now_s

    @property
    def peer(self) -> str:
        """The client's address. Asked for when it is needed: to keep it costs more than the rest of this object."""
        peer = self.transport.get_extra_info("peername") if self.transport is not None else None
        return f"{peer[0]}:{peer[1]}" if peer else "unknown"

    # --- what arrives

    def on_packet(self, first_byte: int, body: bytes) -> None:
        """Deal with one packet that the compiled part did not take."""
        try:
            packet = decode(first_byte, body, self.version)
            handler = HANDLERS[self.phase].get(type(packet))
            if handler is None:
                raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{packet.packet_type.name} while {self.phase.value}")
            handler(self, packet)
        except ProtocolError as error:
            self.refuse(error)
        except Exception:  # the edge of a connection: whatever it is, it must not reach the others
            log.exception("connection %s: unexpected error", self.peer)
            self.close(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)

    def on_plain_answer(self, packet_type: int, packet_id: int) -> None:
        """A PUBREC, PUBREL or PUBCOMP that says no more than that all is well."""
        PLAIN_ANSWERS[packet_type](self.broker.exchange, self.session, packet_id)

    def close_for(self, fault: str) -> None:
        """The compiled part found the byte stream itself to be wrong."""
        if fault == "too large":
            self.refuse(ProtocolError(ReasonCode.PACKET_TOO_LARGE, "packet larger than maximum_packet_size_bytes"))
        elif fault == "no CONNECT":
            self.refuse(ProtocolError(ReasonCode.PROTOCOL_ERROR, "the first packet is not CONNECT [MQTT-3.1.0-1]"))
        else:
            self.refuse(MalformedPacket("fixed header: remaining length is malformed"))

    def refuse(self, error: ProtocolError) -> None:
        """Bad input: one line in the log, a counter, the reason code that the client's version allows, and the end."""
        self.broker.count_bad_input(self, error)
        if self.phase is Phase.NEW:
            if error.connack_version is not None:
                self.write(encode(ConnAck(reason_code=error.reason_code), error.connack_version))
            self.close(None)
        else:
            self.close(error.reason_code, error.message)

    def on_connect(self, connect: Connect) -> None:
        self.broker.store_batch()
        self.broker.registry.open(self, connect)

    def wait(self) -> None:
        """Until proceed(), what the client sends ahead of its CONNACK is kept, and no more is read than has come."""
        self.waiting = True
        if self.transport is not None:
            self.transport.pause_reading()

    def proceed(self) -> None:
        """The CONNACK is written: deal with what came in meanwhile."""
        if self.transport is not None and not self.closing:
            self.transport.resume_reading()
        self.go_on()

    def on_publish(self, publish: Publish) -> None:
        """A PUBLISH that is not plain: QoS 2, topic aliases, uncommon properties."""
        if publish.properties.subscription_identifiers:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "subscription_identifiers: not a client's [MQTT-3.3.4-6]")
        self.resolve_alias(publish)
        received = self.session.received
        if publish.qos == 2 and publish.packet_id in received:
            self.answer_when_safe(encode(PubRec(publish.packet_id or 0), self.version))
            return
        outstanding = max(self.unsafe_acks, len(received) if publish.qos == 2 else 0)
        if publish.qos and outstanding >= self.ack_limit:
            raise ProtocolError(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "more PUBLISH packets than receive_maximum")
        if publish.topic_name.startswith("$"):
            self.broker.refuse_publish(self, publish)
        else:
            self.broker.take_publish(self, publish)

    def resolve_alias(self, publish: Publish) -> None:
        """Topic aliases of the client's making (MQTT 5, 3.3.2.3.4)."""
        alias = publish.properties.topic_alias
        if alias is None:
            return
        if alias > self.broker.settings.topic_alias_maximum:
            raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic_alias {alias} is above topic_alias_maximum")
        if self.aliases is None:
            self.aliases = {}
        if publish.topic_name:
            self.aliases[alias] = publish.topic_name
        elif alias in self.aliases:
            publish.topic_name = self.aliases[alias]
        else:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"topic_alias {alias} was never given a topic_name")
        publish.properties.topic_alias = None

    def on_puback(self, ack: PubAck) -> None:
        self.broker.exchange.on_puback(self.session, ack.packet_id)

    def on_pubrec(self, ack: PubRec) -> None:
        self.broker.exchange.on_pubrec(self.session, ack.packet_id, ack.reason_code)

    def on_pubrel(self, ack: PubRel) -> None:
        self.broker.exchange.on_pubrel(self.session, ack.packet_id)

    def on_pubcomp(self, ack: PubComp) -> None:
        self.broker.exchange.on_pubcomp(self.session, ack.packet_id)

    def on_subscribe(self, subscribe: packets.Subscribe) -> None:
        self.broker.store_batch()
        self.broker.subscriptions.subscribe(self.session, subscribe)

    def on_unsubscribe(self, unsubscribe: packets.Unsubscribe) -> None:
        self.broker.store_batch()
        self.broker.subscriptions.unsubscribe(self.session, unsubscribe)

    def on_pingreq(self, _: packets.PingReq) -> None:
        self.write(encode(packets.PingResp(), self.version))

    def on_disconnect(self, disconnect: Disconnect) -> None:
        """The client leaves; only an MQTT 5 client can ask for its will to be sent all the same [MQTT-3.14.4-3]."""
        self.broker.store_batch()
        expiry_s = disconnect.properties.session_expiry_interval
        if expiry_s is not None:
            self.broker.registry.change_expiry(self.session, expiry_s)
        self.keep_will = disconnect.reason_code == ReasonCode.DISCONNECT_WITH_WILL_MESSAGE
        self.close(None, "it sent DISCONNECT")

    def on_auth(self, _: packets.Auth) -> None:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT")

    # --- the end

    def close(self, reason_code: ReasonCode | None, message: str = "") -> None:
        """End the connection, telling an MQTT 5 client why; `message` is for the log as well. Idempotent."""
        if self.phase is Phase.CLOSED:
            return
        if reason_code is not None and self.phase is Phase.OPEN:
            self.write(self._goodbye(reason_code, message))
        self.phase = Phase.CLOSED
        self.flush()
        self.closing = True
        self.broker.left(self, message or (reason_code.name.lower().replace("_", " ") if reason_code else "closed"))
        if self.transport is not None:
            self._close_transport()

    def _goodbye(self, reason_code: ReasonCode, message: str) -> bytes:
        """What the client's version and phase have for it; a long reason string is left out [MQTT-3.14.2-3]."""
        if self.waiting:
            is_answer = reason_code in ALLOWED_REASON_CODES[PacketType.CONNACK]
            return encode(ConnAck(reason_code=reason_code), self.version) if is_answer else b""
        if self.version != 5:
            return b""
        if reason_code not in ALLOWED_REASON_CODES[PacketType.DISCONNECT]:
            reason_code = ReasonCode.PROTOCOL_ERROR
        for text in (message[:MOST_REASON_CHARACTERS], ""):
            packet = encode(Disconnect(reason_code, Properties(reason_string=text or None)), self.version)
            if len(packet) <= self.max_packet_out:
                return packet
        return b""

    def _close_transport(self) -> None:
        """What it still holds is written first, but a peer that takes nothing must not keep the socket for ever."""
        self.fd = -1
        if self.transport.get_write_buffer_size():
            self.broker.deadlines.set(self, time.time() + LINGER_S, self.transport.abort)
        self.transport.close()

    # --- asyncio.BufferedProtocol

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=self.broker.settings.write_buffer_bytes)
        plain_socket = transport.get_extra_info("socket")
        if plain_socket is not None and transport.get_extra_info("sslcontext") is None:
            self.fd = plain_socket.fileno()
        self.broker.arrived(self)

    def get_buffer(self, _: int) -> bytearray:
        return self.broker.read_buffer

    def buffer_updated(self, size: int) -> None:
        self.feed(self.broker.read_buffer, size)

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        self.paused = True

    def written_while_paused(self, size_bytes: int) -> None:
        """Deliveries stop when the transport is full, so these are answers: who reads none is not read either."""
        self.unread_bytes += size_bytes
        if self.unread_bytes > self.broker.settings.write_buffer_bytes:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        self.unread_bytes = 0
        if self.transport is not None and not self.waiting and not self.closing:
            self.transport.resume_reading()
        if self.session is not None:
            self.accept_more()

    def connection_lost(self, error: Exception | None) -> None:
        self.fd = -1
        self.transport = None
        self.broker.deadlines.cancel(self)
        self.close(None, f"connection lost ({error})" if error else "connection lost")


PLAIN_ANSWERS: dict[int, Callable[[Exchange, Session, int], None]] = {
    PacketType.PUBREC: Exchange.on_pubrec,
    PacketType.PUBREL: Exchange.on_pubrel,
    PacketType.PUBCOMP: Exchange.on_pubcomp,
}
Handler = Callable[[Connection, Any], None]
HANDLERS: dict[Phase, dict[type[Packet], Handler]] = {
    Phase.NEW: {Connect: Connection.on_connect},
    Phase.OPEN: {
        Publish: Connection.on_publish,
        PubAck: Connection.on_puback,
        PubRec: Connection.on_pubrec,
        PubRel: Connection.on_pubrel,
        PubComp: Connection.on_pubcomp,
        packets.Subscribe: Connection.on_subscribe,
        packets.Unsubscribe: Connection.on_unsubscribe,
        packets.PingReq: Connection.on_pingreq,
        Disconnect: Connection.on_disconnect,
        packets.Auth: Connection.on_auth,
    },
    Phase.CLOSED: {},
}
