"""One client connection: bytes in, packets to the rules; packets out, bytes to the transport. Works without a loop.

The byte work is in the compiled Link; the transport is anything with write(), close() and abort().
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

from gateway.auth.identity import Identity
from gateway.mqtt._mqtt import Link, Turn
from gateway.mqtt.codec import decode, encode
from gateway.mqtt.codec_primitives import Limits
from gateway.mqtt.codec_rules import ALLOWED_REASON_CODES
from gateway.mqtt.errors import MalformedPacket, ProtocolError
from gateway.mqtt.packets import ConnAck, Disconnect, Packet, PacketType, PubAck, PubRec, SubAck
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import TopicAliases
from gateway.settings import GatewaySettings
from store.namespaces import DEFAULT, Namespace
from store.state.deadlines import Deadlines

log = logging.getLogger("penstock.gateway")

MOST_REASON_CHARACTERS = 200
LINGER_S = 5
"""How long a closed connection may take to write what it still holds."""


class Allowance(Protocol):
    """The remaining allowance of a connection to publish."""

    def renew(self, connection: Connection, now_s: float) -> float:
        """Give the connection an allowance; or say for how long it is not to be listened to (s)."""


class PacketTaker(Protocol):
    """Takes the packets that the compiled part leaves. May raise ProtocolError."""

    def take(self, connection: Connection, packet: Packet) -> None: ...

    def take_plain_answer(self, connection: Connection, packet_type: int, packet_id: int) -> None:
        """An acknowledgement of something the session keeps, or a PUBREL, that says no more than that all is well."""


class Owner(Protocol):
    """The owner of all connections: what they share, and what each of them reports."""

    settings: GatewaySettings
    turn: Turn
    read_buffer: bytearray
    get_buffer: Callable[[int], bytearray]  # gives the read_buffer
    deadlines: Deadlines
    packet_limits: Limits

    @property
    def rules(self) -> PacketTaker: ...

    def arrived(self, connection: Connection) -> None: ...

    def opened(self, connection: Connection) -> None:
        """The connection has its session, and its CONNACK is written."""

    @property
    def congested(self) -> bool:
        """The store has more to do than it can, so publishers wait."""

    def hold_back(self, connection: Connection) -> None:
        """Read from a connection again, by listen_again(), once the store is not congested."""

    def clogged(self, connection: Connection) -> None:
        """The connection's send buffer is full. Called in the middle of a write."""

    def unclogged(self, connection: Connection) -> None:
        """The connection's send buffer has drained."""

    def rest(self, go_on: Callable[[], object]) -> None:
        """Call `go_on` in a later turn: so much has come at once that others are to have theirs first."""

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


Answer = PubAck | PubRec | SubAck
"""Those that may say more than a reason code."""


class Phase(Enum):
    """The phases of a connection. TRANSITIONS has the phases that may follow each one."""

    NEW = "not connected yet"  # until the CONNACK is written
    OPEN = "connected"
    CLOSED = "closed"  # its session is gone; the socket may still be open, see Farewell


class Farewell(Enum):
    """What happens to the socket when a connection is closed."""

    CLOSE = "the socket is closed once all that it holds is written"
    LINGER = "the socket stays open until end() is called"
    SEE_OFF = "the sending half is closed, and the client closes the socket"
    CUT_OFF = "the socket is closed at once, and what it holds is dropped"


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


class Connection(Link):
    """One client connection. Each way to end it is in FAREWELLS."""

    __slots__ = (
        "aliases",
        "auth_method",
        "entrance",
        "held",
        "identity",
        "keep_will",
        "left_from",
        "meter",
        "owner",
        "peer_identity",
        "peer_namespace",
        "phase",
        "source",
        "tells_problems",
    )

    def __init__(self, owner: Owner, entrance: Entrance | None = None) -> None:
        Link.__init__(self, owner.turn)
        self.owner = owner
        self.entrance = entrance
        self.phase = Phase.NEW
        self.peer_identity = ""  # the name in its certificate, where the listener verified one
        self.peer_namespace = ""  # the namespace that its certificate names
        self.identity: Identity | None = None  # its user, as the authenticator says; None: there is no authenticator
        self.source = ""  # what its address is counted by; empty: it is not counted
        self.auth_method = ""  # the method of enhanced authentication, if the client used one
        self.keep_will = True
        self.left_from: object = None  # the client's address, for when its socket does not say it any more
        self.meter: Allowance | None = None  # what it publishes counts, if `metered`
        self.held = False  # not listened to, since the store has enough to do
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
            self.see_off(error.reason_code, error.message)
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

    def fitting(self, packet: Answer) -> bytes:
        """The packet, without reason string and user properties if they are not wanted or would make it too large."""
        properties = packet.properties
        if properties.reason_string is None and not properties.user_properties:
            return encode(packet, self.version)
        if self.version == 5 and self.tells_problems:
            data = encode(packet, self.version)
            if len(data) <= self.max_packet_out:
                return data
        properties.reason_string, properties.user_properties = None, ()
        return encode(packet, self.version)

    def wait(self, is_read: bool = False) -> None:
        """Keep the client's input until proceed(), and read no more than has come.

        `is_read`: some of it is read on, so that the connection's end is seen.
        """
        self.waiting = True
        if self.transport is not None and not is_read:
            self.transport.pause_reading()

    def on_full(self) -> None:
        """Stop reading: the connection waits, and its client has sent as much as is kept."""
        if self.transport is not None:
            self.transport.pause_reading()

    def proceed(self) -> None:
        """The CONNACK is written: deal with what came in meanwhile."""
        self.waiting = False
        self.resume_reading()
        self.go_on()

    def on_much(self) -> None:
        """Leave the rest of a large input for a later turn."""
        self.resting = True
        if self.transport is not None:
            self.transport.pause_reading()
        self.owner.rest(self.rest_is_over)

    def rest_is_over(self) -> None:
        self.resting = False
        self.resume_reading()
        if not (self.waiting or self.throttled):
            self.go_on()

    def on_spent(self) -> None:
        """Take a new allowance, or wait until there is one. Meanwhile the client's silence does not count."""
        assert self.meter is not None
        now_s = self.turn.now_s
        pause_s = self.meter.renew(self, now_s)
        if pause_s and not self.closing:
            self.throttled = True
            self.last_seen_s = now_s + pause_s
            self.owner.deadlines.set((self, "quota"), now_s + pause_s, self._ask_again)
            if self.transport is not None:
                self.transport.pause_reading()

    def _ask_again(self) -> None:
        self.throttled = False
        self.on_spent()
        if not self.throttled:
            self.resume_reading()
            if not self.waiting:  # nor does anything come of it while it rests
                self.go_on()

    # --- the end

    def close(self, reason_code: ReasonCode | None, message: str = "") -> None:
        """End the connection, telling an MQTT 5 client why; `message` is for the log as well. Idempotent."""
        self._part(Farewell.CLOSE, reason_code, message)

    def leave(self, message: str) -> None:
        """Like close(), but the client sees no end before end(), or before LINGER_S are over."""
        self._part(Farewell.LINGER, None, message)

    def end(self) -> None:
        """Close the socket after leave()."""
        if self.transport is not None:
            self._close_transport()

    def cut_off(self, message: str) -> None:
        """End the connection at once: what it still holds is dropped, and the client is told nothing."""
        self._part(Farewell.CUT_OFF, None, message)

    def see_off(self, reason_code: ReasonCode, message: str = "") -> None:
        """Like close(), but the client ends the connection.

        Closing a socket over unread bytes takes the goodbye back, so what the client still sends is read and dropped.
        """
        self._part(Farewell.SEE_OFF, reason_code, message)

    def _part(self, farewell: Farewell, reason_code: ReasonCode | None, message: str) -> None:
        if self.phase is not Phase.CLOSED:
            self._leave(reason_code, message)
            if self.transport is not None:
                FAREWELLS[farewell](self)

    def _linger(self) -> None:
        self.owner.deadlines.set(self, self.owner.turn.now_s + LINGER_S, self.transport.abort)

    def _abort(self) -> None:
        self.fd = -1
        self.transport.abort()

    def _leave(self, reason_code: ReasonCode | None, message: str) -> None:
        """Say goodbye, and be of no use any more."""
        if reason_code is not None:
            self.write(self._goodbye(reason_code, message))
        self.enter(Phase.CLOSED)
        self.flush()
        self.closing = True
        self.forget_kept()
        why = message or (reason_code.name.lower().replace("_", " ") if reason_code else "closed")
        self.owner.left(self, why, reason_code)

    def _goodbye(self, reason_code: ReasonCode, message: str) -> bytes:
        """CONNACK or DISCONNECT for the client's version, without a too long reason string [MQTT-3.2.2-19]."""
        goes_on_at = self.owner.settings.server_reference if reason_code is ReasonCode.USE_ANOTHER_SERVER else ""
        if self.phase is Phase.NEW:
            if reason_code is ReasonCode.SESSION_TAKEN_OVER:  # before it had one
                reason_code = ReasonCode.SERVER_BUSY
            if reason_code not in ALLOWED_REASON_CODES[PacketType.CONNACK] or not self.version:
                return b""
            if self.version != 5:
                return encode(ConnAck(False, reason_code), self.version)
        elif self.version != 5:
            return b""
        elif reason_code not in ALLOWED_REASON_CODES[PacketType.DISCONNECT]:
            reason_code = ReasonCode.PROTOCOL_ERROR
        for text, reference in ((message[:MOST_REASON_CHARACTERS], goes_on_at), ("", goes_on_at), ("", "")):
            properties = Properties(reason_string=text or None, server_reference=reference or None)
            is_new = self.phase is Phase.NEW
            packet = ConnAck(False, reason_code, properties) if is_new else Disconnect(reason_code, properties)
            data = encode(packet, self.version)
            if len(data) <= self.max_packet_out:
                return data
        return b""

    def _close_transport(self) -> None:
        """Write what the socket still holds, then close it. A peer that takes nothing keeps it for LINGER_S at most."""
        self.fd = -1
        if self.transport.get_write_buffer_size():
            self._linger()
        self.transport.close()

    def _wait_for_end(self) -> None:
        self.fd = -1
        self.held = False
        if not self.transport.can_write_eof():
            self._close_transport()
            return
        self.transport.write_eof()
        self._linger()
        self.transport.resume_reading()

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

    def on_congested(self) -> None:
        """Read no more from the client while the store has more to do than it can."""
        if self.owner.congested and self.transport is not None and not (self.held or self.closing):
            self.held = True
            self.transport.pause_reading()
            self.owner.hold_back(self)

    def listen_again(self) -> None:
        """The store can take more."""
        self.held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if self.transport is not None and not self.is_deaf:
            self.transport.resume_reading()

    @property
    def is_deaf(self) -> bool:
        """True if the connection must not be read from."""
        waits = self.waiting or self.held or self.throttled or self.resting or self.held_for_crowd
        return waits or self.paused or self.closing

    def eof_received(self) -> bool:
        """Whether the connection is kept although the client sends nothing more: what it sent waits for its CONNACK."""
        return self.waiting and self.keeps_bytes

    def let_wait(self, size_bytes: int) -> None:
        """No more is delivered while so much waits to be taken by the client."""
        if self.transport is not None:
            most = min(size_bytes, self.owner.settings.write_buffer_bytes)
            self.transport.set_write_buffer_limits(high=most)

    @property
    def waiting_bytes(self) -> int:
        """Sent, and not taken by the client so far, not counting what the system holds."""
        return int(self.transport.get_write_buffer_size()) if self.transport is not None else 0

    @property
    def all_waiting_bytes(self) -> int:
        """The same of all connections of this process; 0 where that is not known."""
        return int(self.transport.get_extra_info("held_bytes") or 0) if self.transport is not None else 0

    def pause_writing(self) -> None:
        self.paused = True
        self.owner.clogged(self)

    def written_while_paused(self, size_bytes: int) -> None:
        """Deliveries stop when the transport is full, so these are answers. A client that takes none is not read."""
        self.unread_bytes += size_bytes
        if self.unread_bytes > self.owner.settings.write_buffer_bytes:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        self.owner.unclogged(self)
        self.unread_bytes = 0
        self.resume_reading()
        if self.session is not None:
            self.accept_more()

    def connection_lost(self, error: Exception | None) -> None:
        self.fd = -1
        self.left_from, self.transport = self.address, None
        self.owner.deadlines.cancel(self)
        self.close(None, f"connection lost ({error})" if error else "connection lost")
        self.owner.lost(self)


FAREWELLS: Mapping[Farewell, Callable[[Connection], None]] = {
    Farewell.CLOSE: Connection._close_transport,
    Farewell.LINGER: Connection._linger,
    Farewell.SEE_OFF: Connection._wait_for_end,
    Farewell.CUT_OFF: Connection._abort,
}
