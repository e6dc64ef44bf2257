"""The MQTT rules of a connection: which packet may come in which phase, and what is done about it. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gateway.access.guard import Guard, Refusals
from gateway.clients.admission import Admission
from gateway.clients.counting import Counting
from gateway.clients.registry import SessionRegistry
from gateway.delivery.exchange import Exchange
from gateway.delivery.receipts import Receipt, wants_receipt
from gateway.delivery.subscriptions import Subscriptions
from gateway.mqtt._mqtt import BATCH_BYTES, Turn
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
from gateway.mqtt.properties import Properties, encode_properties, has_its_format
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import (
    DELAYED_PREFIX,
    TopicAliases,
    is_servers_own,
    is_state_of_bridge,
    split_delayed,
    topic_fault,
)
from gateway.sessions.connection import Connection, Phase
from gateway.sessions.journal import Journal
from gateway.sessions.session import Session
from gateway.settings import GatewaySettings
from store.namespaces import MARK, is_reserved
from store.ratelimit import RateLimitedLog
from store.state.sessions import is_shared


class PacketRules:
    """What each packet sets going; the parts own the results. `store_batch` settles what came in before a packet."""

    def __init__(
        self,
        settings: GatewaySettings,
        turn: Turn,
        journal: Journal,
        registry: SessionRegistry,
        subscriptions: Subscriptions,
        exchange: Exchange,
        events: RateLimitedLog,
        admission: Admission,
        guard: Guard,
        counting: Counting,
        store_batch: Callable[[], object],
    ) -> None:
        self._settings = settings
        self._turn = turn
        self._journal = journal
        self._registry = registry
        self._subscriptions = subscriptions
        self._exchange = exchange
        self._events = events
        self._admission = admission
        self._guard = guard
        self._counting = counting
        self._store_batch = store_batch
        self.refused: Counter[ReasonCode] = Counter()  # messages, by why

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
        """A client that sees the connection's end may count on it: not even a crash sends its will then."""
        connection.leave("it sent DISCONNECT")
        self._journal.when_safe(connection, connection.end)

    def auth(self, connection: Connection, auth: Auth) -> None:
        self._admission.auth(connection, auth)

    def pingreq(self, connection: Connection, _: PingReq) -> None:
        connection.write(encode(PingResp(), connection.version))

    # --- publishing

    def publish(self, connection: Connection, publish: Publish) -> None:
        """A PUBLISH that the compiled part did not take: aliases, uncommon properties, `$delayed/`, duplicates."""
        if publish.properties.subscription_identifiers:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "subscription_identifiers: not a client's [MQTT-3.3.4-6]")
        self._turn.settle_asked()  # subscriptions that were read before
        self._resolve_alias(connection, publish)
        received = connection.session.received
        if publish.qos == 2 and publish.packet_id in received:
            connection.answer_when_safe(encode(PubRec(publish.packet_id or 0), connection.version))
            return
        outstanding = max(connection.unsafe_acks, len(received) if publish.qos == 2 else 0)
        if publish.qos and outstanding >= connection.ack_limit:
            raise ProtocolError(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "more PUBLISH packets than receive_maximum")
        delay_s: int | None = None
        if publish.topic_name.startswith(DELAYED_PREFIX):
            delay_s, publish.topic_name = split_delayed(publish.topic_name, self._journal.max_delay_s)
        if why := self._name_fault(publish):
            self._refuse_publish(connection, publish, ReasonCode.NOT_AUTHORIZED, why)
            return
        publish.topic_name = connection.names.topic(publish.topic_name)
        if connection.tenant is not None and (fault := topic_fault(publish.topic_name)):
            fault = f"with its namespace the topic {fault}"
            self._refuse_publish(connection, publish, ReasonCode.TOPIC_NAME_INVALID, fault)
            return
        permits = connection.permits
        is_new = permits is not None and not permits.allow(publish.topic_name.encode(), publish.qos, publish.retain)
        judged = partial(self._judged, connection, publish, delay_s, is_new)
        if is_new:
            self._guard.publish(connection, publish.topic_name, publish.qos, publish.retain, judged)
        else:
            judged(True)

    def _name_fault(self, publish: Publish) -> str:
        """Why a client may not name these topics, whoever it is; empty if it may."""
        level, response_topic = publish.topic_name.partition("/")[0], publish.properties.response_topic or ""
        if is_servers_own(publish.topic_name):
            return f"what starts with {level} is the server's"
        if is_reserved(response_topic):
            return f"response topic: what starts with {MARK} is the server's"
        if level.startswith("$") and not self._settings.dollar_topics:
            return "gateway.dollar_topics is off"
        return ""

    def _judged(
        self, connection: Connection, publish: Publish, delay_s: int | None, is_new: bool, allowed: bool
    ) -> bool:
        """`is_new`: its topic is, to this connection. Whether there is more to wait for."""
        if not allowed:
            self._refuse_publish(connection, publish, ReasonCode.NOT_AUTHORIZED, "not allowed")
        elif self._settings.check_payload_format and not has_its_format(publish.payload, publish.properties):
            self._refuse_publish(connection, publish, ReasonCode.PAYLOAD_FORMAT_INVALID, "the payload is not UTF-8")
        else:
            counted = partial(self._counted, connection, publish, delay_s)
            return self._counting.take(connection, publish, delay_s is not None, is_new, counted)
        return False

    def _counted(
        self, connection: Connection, publish: Publish, delay_s: int | None, counted: bytes, fault: str
    ) -> None:
        if fault:
            self._refuse_publish(connection, publish, ReasonCode.QUOTA_EXCEEDED, fault)
        else:
            self._store_publish(connection, publish, delay_s, counted)

    def _resolve_alias(self, connection: Connection, publish: Publish) -> None:
        """Topic aliases of the client's making (MQTT 5, 3.3.2.3.4)."""
        alias = publish.properties.topic_alias
        if alias is None:
            return
        if alias > self._settings.topic_alias_maximum:
            raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic_alias {alias} is above topic_alias_maximum")
        if connection.aliases is None:
            connection.aliases = TopicAliases()
        if publish.topic_name:
            connection.aliases.give(alias, publish.topic_name)
            if connection.aliases.size_bytes > self._settings.topic_alias_bytes:
                raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, "topic aliases for more than gateway.topic_alias_bytes")
        elif alias in connection.aliases.names:
            publish.topic_name = connection.aliases.names[alias]
        else:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"topic_alias {alias} was never given a topic_name")
        publish.properties.topic_alias = None

    def _store_publish(self, connection: Connection, publish: Publish, delay_s: int | None, counted: bytes) -> None:
        wanted = wants_receipt(publish) and self._settings.receipts == "full"
        receipt = self._begin_receipt(connection, publish) if wanted else None
        self._record(connection, publish, delay_s, counted)
        self._turn.count_received(publish.qos, len(publish.payload))
        if connection.tenant is not None:
            connection.tenant.count_received(len(publish.payload))
        if publish.qos == 2:
            connection.session.receive(publish.packet_id or 0)
        if receipt is not None:
            self._journal.when_safe(connection, receipt.safe, receipt.refused)
        elif publish.qos:
            ack = PubRec if publish.qos == 2 else PubAck
            connection.answer_when_safe(encode(ack(publish.packet_id or 0), 4), True)
        if self._turn.batch.size >= BATCH_BYTES:
            self._store_batch()

    def _record(self, connection: Connection, publish: Publish, delay_s: int | None, counted: bytes) -> None:
        session: Session = connection.session
        properties = publish.properties
        self._journal.message(
            publish.topic_name,
            publish.payload,
            int(publish.qos),
            publish.retain,
            client_id=connection.client_id.encode(),
            properties=encode_properties(properties) if connection.version == 5 else b"",
            expires=properties.message_expiry_interval is not None,
            packet_id=publish.packet_id or 0 if publish.qos == 2 and session.expiry_s else 0,
            delay_s=delay_s,
            left_by=self._left_by(connection, publish) if delay_s is not None else b"",
            counted=counted,
        )

    def _left_by(self, connection: Connection, publish: Publish) -> bytes:
        return self._guard.left_by(connection, connection.client_id, publish.topic_name, publish.retain)

    def _begin_receipt(self, connection: Connection, publish: Publish) -> Receipt:
        if self._journal.has_changes:
            self._store_batch()
        receipt = Receipt(connection, self._journal, publish)
        self._journal.when_placed(receipt.placed)
        connection.unsafe_acks += 1
        return receipt

    def _refuse_publish(self, connection: Connection, publish: Publish, reason_code: ReasonCode, reason: str) -> None:
        """MQTT 3.1.1 has no words for it: acknowledged and ignored [3.1.1 MQTT-3.3.5-2]."""
        self.refused[reason_code] += 1
        ignored = "client %s: publish to %s ignored: %s"
        self._events.warning("topic", ignored, connection.session.client_id, publish.topic_name, reason)
        if connection.version != 5:
            reason_code = ReasonCode.SUCCESS
        if publish.qos:
            ack = PubRec if publish.qos == 2 else PubAck
            packet = ack(publish.packet_id or 0, reason_code, Properties(reason_string=reason))
            connection.answer_when_safe(connection.fitting(packet), True)

    # --- acknowledging

    def puback(self, connection: Connection, ack: PubAck) -> None:
        self._exchange.on_puback(connection.session, ack.packet_id)

    def pubrec(self, connection: Connection, ack: PubRec) -> None:
        self._exchange.on_pubrec(connection.session, ack.packet_id, ack.reason_code)

    def pubrel(self, connection: Connection, ack: PubRel) -> None:
        self._exchange.on_pubrel(connection.session, ack.packet_id)

    def pubcomp(self, connection: Connection, ack: PubComp) -> None:
        self._exchange.on_pubcomp(connection.session, ack.packet_id)

    # --- subscribing

    def subscribe(self, connection: Connection, subscribe: Subscribe) -> None:
        reserved: dict[int, ReasonCode] = {}
        for number, wanted in enumerate(subscribe.subscriptions):
            if is_reserved(wanted.topic_filter):
                reserved[number] = ReasonCode.NOT_AUTHORIZED
            if connection.tenant is not None:
                wanted.topic_filter = connection.names.topic_filter(wanted.topic_filter)
            if connection.is_bridge:  # as Mosquitto does it: nothing goes back to where it came from
                wanted.no_local, wanted.retain_as_published = not is_shared(wanted.topic_filter), True
        judged = partial(self._subscribe, connection, subscribe, reserved, self._turn.permit_epoch)
        self._guard.subscribe(connection, subscribe, judged)

    def _subscribe(
        self,
        connection: Connection,
        subscribe: Subscribe,
        reserved: dict[int, ReasonCode],
        epoch: int,
        refusals: Refusals,
    ) -> None:
        session: Session = connection.session
        refusals = {**refusals, **reserved} if reserved else refusals
        then = partial(self._subscriptions.subscribe, session, subscribe, epoch)
        self._counting.subscribe(session, subscribe, refusals, then)

    def unsubscribe(self, connection: Connection, unsubscribe: Unsubscribe) -> None:
        self._store_batch()
        if connection.tenant is not None:
            topic_filters = tuple(map(connection.names.topic_filter, unsubscribe.topic_filters))
            unsubscribe = replace(unsubscribe, topic_filters=topic_filters)
        self._subscriptions.unsubscribe(connection.session, unsubscribe)
        self._counting.unsubscribed(connection.session)


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
