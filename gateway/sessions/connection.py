"""One client connection: bytes in, packets to the rules; packets out, bytes to the transport. Works without a loop.

The byte work is in the compiled Link; the transport is anything with write(), close() and abort().
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

from gateway.auth.identity import Identity
from gateway.mqtt.codec import decode, encode
from gateway.mqtt.codec_primitives import Limits
from gateway.mqtt.errors import MalformedPacket, ProtocolError
from gateway.mqtt.packets import ConnAck, Packet, PacketType
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import TopicAliases
from gateway.sessions.answers import goodbye
from gateway.sessions.farewell import FAREWELLS, Farewell, close_socket
from gateway.sessions.pausable_link import PausableLink, PauseOwner
from store.namespaces import DEFAULT, Namespace

log = logging.getLogger("penstock.gateway")


class PacketTaker(Protocol):
    """Takes the packets that the compiled part leaves. May raise ProtocolError."""

    def take(self, connection: Connection, packet: Packet) -> None: ...

    def take_plain_answer(self, connection: Connection, packet_type: int, packet_id: int) -> None:
        """An acknowledgement of something the session keeps, or a PUBREL, that says no more than that all is well."""


class Owner(PauseOwner["Connection"], Protocol):
    """The owner of all connections: what they share, and what each of them reports."""

    read_buffer: bytearray
    get_buffer: Callable[[int], bytearray]  # gives the read_buffer
    packet_limits: Limits

    @property
    def rules(self) -> PacketTaker: ...

    def arrived(self, connection: Connection) -> None: ...

    def opened(self, connection: Connection) -> None:
        """The connection has its session, and its CONNACK is written."""

    def left(self, connection: Connection, why: str, reason_code: ReasonCode | None) -> None:
        """Called once for each that arrived; `reason_code`: with which this side ended it, None if it did not."""

    def lost_messages(self, connection: Connection, number: int) -> None:
        """Messages that its client was to get stood in a damaged part of the log."""

    def lost(self, connection: Connection) -> None:
        """The connection's socket is closed. Called once for each connection that arrived, after left()."""

    def count_bad_input(self, connection: Connection, error: ProtocolError) -> None: ...


class Entrance:
    """What the connections of one listener share: their number, its limit, and a namespace."""

    __slots__ = ("connections", "most", "namespace")

    def __init__(self, most: int, namespace: str = "") -> None:
        """`namespace`: of all clients of this listener; empty: the certificate, user name or token may name one."""
        self.most = most
        self.namespace = namespace
        self.connections = 0


class Phase(Enum):
    """The phases of a connection. TRANSITIONS has the phases that may follow each one."""

    NEW = "not connected yet"  # until the CONNACK is written
    OPEN = "connected"
    CLOSED = "closed"  # its session is gone; the socket may still be open, see Farewell


TRANSITIONS: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.NEW: {Phase.OPEN: "the CONNACK is written", Phase.CLOSED: "the client is refused, or left"},
    Phase.OPEN: {Phase.CLOSED: "the client left, or this side ends it"},
    Phase.CLOSED: {},
}
"""Which phase may follow which, and when. docs/architecture.md has it as a picture."""


def address_of(peer: object) -> str:
    """The peer's address from a transport's peername, for people. A Unix socket has none."""
    if isinstance(peer, tuple):
        return f"[{peer[0]}]:{peer[1]}" if ":" in peer[0] else f"{peer[0]}:{peer[1]}"
    return "unknown" if peer is None else "unix"


class Connection(PausableLink):
    """One client connection. Each way to end it is in FAREWELLS."""

    __slots__ = (
        "aliases",
        "auth_method",
        "entrance",
        "identity",
        "keep_will",
        "left_from",
        "peer_identity",
        "peer_namespace",
        "phase",
        "source",
        "tells_problems",
    )
    owner: Owner

    def __init__(self, owner: Owner, entrance: Entrance | None = None) -> None:
        PausableLink.__init__(self, owner)
        self.entrance = entrance
        self.phase = Phase.NEW
        self.peer_identity = ""  # the name in its certificate, where the listener verified one
        self.peer_namespace = ""  # the namespace that its certificate names
        self.identity: Identity | None = None  # its user, as the authenticator says; None: there is no authenticator
        self.source = ""  # what its address is counted by; empty: it is not counted
        self.auth_method = ""  # the method of enhanced authentication, if the client used one
        self.keep_will = True
        self.left_from: object = None  # the client's address, for when its socket does not say it any more
        self.aliases: TopicAliases | None = None
        self.tells_problems = True  # its answers may have reason strings and user properties
        self.max_packet_in = min(owner.settings.max_connect_bytes, owner.settings.maximum_packet_size_bytes)
        self.ack_limit = owner.settings.receive_maximum
        self.last_seen_s = owner.turn.now_s

    @property
    def address(self) -> object:
        """The client's, as its transport says it. To keep it would cost more than the rest of this object."""
        return (self.transport.get_extra_info("peername") if self.transport is not None else None) or self.left_from

    @property
    def peer(self) -> str:
        """The client's address, for people."""
        return address_of(self.address)

    @property
    def host(self) -> str:
        """The client's IP address, without a port; empty if it has none."""
        address = self.address
        return address[0] if isinstance(address, tuple) else ""

    @property
    def names(self) -> Namespace:
        """The translation between the client's names and the log's."""
        names: Namespace = DEFAULT if self.tenant is None else self.tenant.names
        return names

    @property
    def username(self) -> str:
        """The name of the client's user, unique over all namespaces; empty for an anonymous client."""
        return self.identity.account if self.identity is not None else ""

    def enter(self, phase: Phase) -> None:
        """Go on to another phase, which must be one of those in TRANSITIONS."""
        assert phase in TRANSITIONS[self.phase], f"{self.phase.name} → {phase.name}"
        self.phase = phase

    # --- what arrives

    def on_packet(self, first_byte: int, body: bytes) -> None:
        """Deal with one packet that the compiled part did not take."""
        try:
            self.owner.rules.take(self, decode(first_byte, body, self.version, self.owner.packet_limits))
        except ProtocolError as error:
            self.refuse(error)
        except Exception:  # the edge of a connection: whatever it is, it must not reach the others
            log.exception("connection %s: unexpected error", self.peer)
            self.close(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)

    def misses(self, number: int) -> None:
        """Note that `number` messages for this client are lost; the next message to it says so."""
        self.lost += number
        self.turn.lost += number
        self.owner.lost_messages(self, number)

    def on_plain_answer(self, packet_type: int, packet_id: int) -> None:
        self.owner.rules.take_plain_answer(self, packet_type, packet_id)

    def close_for(self, fault: str, packet_type: int = 0, size_bytes: int = 0) -> None:
        """The compiled part found the byte stream itself to be wrong; these are of the packet that is too large."""
        if fault == "too large":
            self._refuse_large(packet_type, size_bytes)
        elif fault == "no CONNECT":
            self.refuse(ProtocolError(ReasonCode.PROTOCOL_ERROR, "the first packet is not CONNECT [MQTT-3.1.0-1]"))
        else:
            self.refuse(MalformedPacket("fixed header: remaining length is malformed"))

    def _refuse_large(self, packet_type: int, size_bytes: int) -> None:
        """The rest of a too large CONNECT still arrives: closing the socket over it would take back the CONNACK."""
        settings = self.owner.settings
        is_connect = self.phase is not Phase.OPEN and settings.max_connect_bytes <= settings.maximum_packet_size_bytes
        limit = "max_connect_bytes" if is_connect else "maximum_packet_size_bytes"
        name = PacketType(packet_type).name if packet_type else "a packet"
        fault = f"{name} of {size_bytes} bytes is larger than gateway.{limit} = {self.max_packet_in}"
        error = ProtocolError(ReasonCode.PACKET_TOO_LARGE, fault)
        if self.phase is Phase.NEW and self.version:
            self.owner.count_bad_input(self, error)
            self.close(error.reason_code, error.message, Farewell.SEE_OFF)
        else:
            self.refuse(error)

    def refuse(self, error: ProtocolError) -> None:
        """Bad input: one line in the log, a counter, the reason code that the client's version allows, and the end."""
        self.owner.count_bad_input(self, error)
        if self.phase is Phase.NEW:
            if self.version and error.connack_version is not None:  # the CONNECT was understood
                self.close(error.reason_code, error.message)
                return
            if error.connack_version is not None:
                self.write(encode(ConnAck(reason_code=error.reason_code), error.connack_version))
            self.close(None)
        else:
            self.close(error.reason_code, error.message)

    # --- the end

    def close(self, reason_code: ReasonCode | None, message: str = "", farewell: Farewell = Farewell.CLOSE) -> None:
        """End the connection, telling an MQTT 5 client why; `message` is for the log as well. Idempotent.

        LINGER: the client sees no end before end(), or before LINGER_S are over. SEE_OFF: the client ends the
        connection. Closing a socket over unread bytes takes the goodbye back, so what still comes is read and dropped.
        """
        if self.phase is not Phase.CLOSED:
            self._leave(reason_code, message)
            if self.transport is not None:
                FAREWELLS[farewell](self)

    def end(self) -> None:
        """Close the socket after a close() that lingers."""
        if self.transport is not None:
            close_socket(self)

    def _leave(self, reason_code: ReasonCode | None, message: str) -> None:
        """Say goodbye, and be of no use any more."""
        if reason_code is not None:
            is_new = self.phase is Phase.NEW
            self.write(goodbye(self, is_new, reason_code, message, self.owner.settings.server_reference))
        self.enter(Phase.CLOSED)
        self.flush()
        self.closing = True
        self.forget_kept()
        why = message or (reason_code.name.lower().replace("_", " ") if reason_code else "closed")
        self.owner.left(self, why, reason_code)

    # --- asyncio.BufferedProtocol

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=self.owner.settings.write_buffer_bytes)
        if self.fd < 0:
            plain_socket = transport.get_extra_info("socket")
            if plain_socket is not None and transport.get_extra_info("sslcontext") is None:
                self.fd = plain_socket.fileno()
        self.owner.arrived(self)

    @property
    def get_buffer(self) -> Callable[[int], bytearray]:
        """The buffer that the transport reads into. A transport keeps this function, and all have the same one."""
        return self.owner.get_buffer

    def buffer_updated(self, size: int) -> None:
        self.feed(self.owner.read_buffer, size)

    def eof_received(self) -> bool:
        """Whether the connection is kept although the client sends nothing more: what it sent waits for its CONNACK."""
        return self.waiting and self.keeps_bytes

    def connection_lost(self, error: Exception | None) -> None:
        self.fd = -1
        self.left_from, self.transport = self.address, None
        self.owner.deadlines.cancel(self)
        self.close(None, f"connection lost ({error})" if error else "connection lost")
        self.owner.lost(self)
