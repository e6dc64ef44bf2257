"""The MQTT rules of a connection: which packet may come in which phase, and who handles it. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.clients.admission import Admission
from gateway.clients.publishing import Publishing
from gateway.clients.registry import SessionRegistry
from gateway.clients.subscribing import Subscribing
from gateway.delivery.exchange import Exchange
from gateway.mqtt.codec import encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import is_state_of_bridge
from gateway.sessions.connection import Connection, Phase
from gateway.sessions.core import Core
from gateway.sessions.farewell import Farewell
from gateway.sessions.session import Session


class PacketRules:
    """Passes each packet to the class that handles it. Those classes own the results."""

    def __init__(
        self,
        core: Core,
        registry: SessionRegistry,
        exchange: Exchange,
        admission: Admission,
        publishing: Publishing,
        subscribing: Subscribing,
    ) -> None:
        self._journal = core.journal
        self._events = core.events
        self._store_batch = core.store_batch
        self._registry = registry
        self._exchange = exchange
        self._admission = admission
        self._publishing = publishing
        self._subscribing = subscribing
        self.refused = publishing.refused

    def take(self, connection: Connection, packet: Packet) -> None:
        """Do what the packet asks for. Raises ProtocolError, also when it may not come now."""
        handler = HANDLERS[connection.phase].get(type(packet))
        if handler is None:
            message = f"{packet.packet_type.name} while {connection.phase.value}"
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, message)
        handler(self, connection, packet)

    def take_plain_answer(self, connection: Connection, packet_type: int, packet_id: int) -> None:
        PLAIN_ANSWERS[packet_type](self._exchange, connection.session, packet_id)

    # --- coming and going

    def connect(self, connection: Connection, connect: Connect) -> None:
        if connect.will is not None and is_state_of_bridge(connect.will.topic_name):
            ignored = "client %s: its will for %s is ignored: what starts with $SYS is the server's"
            self._events.info("bridge", ignored, connect.client_id, connect.will.topic_name)
            connect.will = None
        self._admission.connect(connection, connect)

    def disconnect(self, connection: Connection, disconnect: Disconnect) -> None:
        """The client leaves; only an MQTT 5 client can ask for its will to be sent all the same [MQTT-3.14.4-3]."""
        if self._journal.has_messages:  # it gets what came in before
            self._store_batch()
        expiry_s = disconnect.properties.session_expiry_interval
        if expiry_s is not None:
            self._registry.change_expiry(connection.session, expiry_s)
        connection.keep_will = disconnect.reason_code == ReasonCode.DISCONNECT_WITH_WILL_MESSAGE
        if connection.unsafe_acks:  # it may wait for them
            connection.wait()
            self._journal.when_safe(connection, lambda: self._let_go(connection))
        else:
            self._let_go(connection)

    def _let_go(self, connection: Connection) -> None:
        """End a connection once the log says so: after that, not even a crash has the store send the client's will."""
        connection.close(None, "it sent DISCONNECT", Farewell.LINGER)
        self._journal.when_safe(connection, connection.end)

    def auth(self, connection: Connection, auth: Auth) -> None:
        self._admission.auth(connection, auth)

    def pingreq(self, connection: Connection, _: PingReq) -> None:
        connection.write(encode(PingResp(), connection.version))

    # --- publishing and subscribing

    def publish(self, connection: Connection, publish: Publish) -> None:
        self._publishing.publish(connection, publish)

    def subscribe(self, connection: Connection, subscribe: Subscribe) -> None:
        self._subscribing.subscribe(connection, subscribe)

    def unsubscribe(self, connection: Connection, unsubscribe: Unsubscribe) -> None:
        self._subscribing.unsubscribe(connection, unsubscribe)

    # --- acknowledging

    def puback(self, connection: Connection, ack: PubAck) -> None:
        self._exchange.on_puback(connection.session, ack.packet_id)

    def pubrec(self, connection: Connection, ack: PubRec) -> None:
        self._exchange.on_pubrec(connection.session, ack.packet_id, ack.reason_code)

    def pubrel(self, connection: Connection, ack: PubRel) -> None:
        self._exchange.on_pubrel(connection.session, ack.packet_id)

    def pubcomp(self, connection: Connection, ack: PubComp) -> None:
        self._exchange.on_pubcomp(connection.session, ack.packet_id)


PLAIN_ANSWERS: dict[int, Callable[[Exchange, Session, int], None]] = {
    PacketType.PUBACK: Exchange.on_puback,
    PacketType.PUBREC: Exchange.on_pubrec,
    PacketType.PUBREL: Exchange.on_pubrel,
    PacketType.PUBCOMP: Exchange.on_pubcomp,
}
Handler = Callable[[PacketRules, Connection, Any], None]
HANDLERS: dict[Phase, dict[type[Packet], Handler]] = {
    Phase.NEW: {Connect: PacketRules.connect, Auth: PacketRules.auth},
    Phase.OPEN: {
        Publish: PacketRules.publish,
        PubAck: PacketRules.puback,
        PubRec: PacketRules.pubrec,
        PubRel: PacketRules.pubrel,
        PubComp: PacketRules.pubcomp,
        Subscribe: PacketRules.subscribe,
        Unsubscribe: PacketRules.unsubscribe,
        PingReq: PacketRules.pingreq,
        Disconnect: PacketRules.disconnect,
        Auth: PacketRules.auth,
    },
    Phase.CLOSED: {},
}
