"""A PUBLISH that the compiled part leaves: one with uncommon properties, `$delayed/` or a new topic. No I/O."""

from __future__ import annotations

from collections import Counter
from functools import partial

from gateway.access.guard import Guard
from gateway.access.left_messages import LeftMessageGuard
from gateway.clients.counting import Counting
from gateway.delivery.receipts import AwaitedReceipt, wants_receipt
from gateway.mqtt._mqtt import BATCH_BYTES
from gateway.mqtt.codec import encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import PubAck, Publish, PubRec
from gateway.mqtt.properties import Properties, encode_properties, has_its_format
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import DELAYED_PREFIX, TopicAliases, split_delayed, topic_fault
from gateway.sessions.answers import fitting
from gateway.sessions.connection import Connection
from gateway.sessions.core import Core
from gateway.sessions.session import Session
from store.namespaces import MARK, is_reserved, is_servers_own


class Publishing:
    """The rules of a PUBLISH: permissions, then quotas, then the turn's batch."""

    def __init__(self, core: Core, guard: Guard, counting: Counting, left_messages: LeftMessageGuard) -> None:
        self._settings = core.settings
        self._turn = core.turn
        self._journal = core.journal
        self._events = core.events
        self._store_batch = core.store_batch
        self._guard = guard
        self._counting = counting
        self._left_messages = left_messages
        self.refused: Counter[ReasonCode] = Counter()  # refused messages by reason code

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
        """The reason why no client may use these topic names; empty: clients may."""
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
        """Go on with a message once permissions are known. Returns True if the client must wait for the quotas.

        `is_new`: this is the connection's first message to the topic.
        """
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
        """Put the topic name in place of a topic alias that the client defined (MQTT 5, 3.3.2.3.4)."""
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
        return self._left_messages.left_by(connection, connection.client_id, publish.topic_name, publish.retain)

    def _begin_receipt(self, connection: Connection, publish: Publish) -> AwaitedReceipt:
        if self._journal.has_changes:
            self._store_batch()
        receipt = AwaitedReceipt(connection, self._journal, publish)
        self._journal.when_placed(receipt.placed)
        connection.unsafe_acks += 1
        return receipt

    def _refuse_publish(self, connection: Connection, publish: Publish, reason_code: ReasonCode, reason: str) -> None:
        """Answer with a reason code. MQTT 3.1.1 has none: acknowledge and ignore the message [3.1.1 MQTT-3.3.5-2]."""
        self.refused[reason_code] += 1
        ignored = "client %s: publish to %s ignored: %s"
        self._events.warning("topic", ignored, connection.session.client_id, publish.topic_name, reason)
        if connection.version != 5:
            reason_code = ReasonCode.SUCCESS
        if publish.qos:
            ack = PubRec if publish.qos == 2 else PubAck
            packet = ack(publish.packet_id or 0, reason_code, Properties(reason_string=reason))
            connection.answer_when_safe(fitting(connection, packet), True)
