"""Receipts: where a message is stored, told to the MQTT 5 publisher that asks for it with `penstock-receipt: 1`.

PUBACK or PUBREC then carries user properties: the message's log_offset, its topic's queue, and its queue_offset there,
the same that the SDK and Spark see. A message that goes to no queue (live-only, delayed) has a log_offset alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.mqtt.packets import PubAck, Publish, PubRec
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.answers import fitting
from gateway.sessions.connection import Connection
from gateway.sessions.journal import Journal

RECEIPT_PROPERTY = "penstock-receipt"
LOG_OFFSET, QUEUE, QUEUE_OFFSET = "penstock-log-offset", "penstock-queue", "penstock-queue-offset"


def wants_receipt(publish: Publish) -> bool:
    return bool(publish.qos) and (RECEIPT_PROPERTY, "1") in publish.properties.user_properties


@dataclass(slots=True, eq=False)
class AwaitedReceipt:
    """An acknowledgement with the message's place; sent once the place is known and the message is safe."""

    connection: Connection
    journal: Journal
    publish: Publish
    is_safe: bool = False
    log_offset: int = -1
    queue_offset: int = -1
    asking: bool = True

    def placed(self, log_offset: int) -> None:
        """Take the message's log_offset; -1: it is stored, but its place was lost with a connection to the store."""
        self.log_offset = log_offset
        if log_offset < 0:
            self._located(None)
        else:
            self.journal.find_place(self.publish.topic_name, log_offset, self._located)

    def _located(self, queue_offset: int | None) -> None:
        self.queue_offset = -1 if queue_offset is None else queue_offset
        self.asking = False
        self._send_if_complete()

    def safe(self) -> None:
        self.is_safe = True
        self._send_if_complete()

    def refused(self, reason_code: ReasonCode) -> None:
        """Send a refusal: the store did not take the message, so its packet identifier is free again."""
        if self.publish.qos == 2:
            self.journal.forget_received(self.connection.session, [self.publish.packet_id or 0])
        self.journal.refused_messages += 1
        self._send(reason_code, Properties())

    def _send_if_complete(self) -> None:
        if self.is_safe and not self.asking:
            self._send(ReasonCode.SUCCESS, Properties(user_properties=self._user_properties()))

    def _user_properties(self) -> tuple[tuple[str, str], ...]:
        if self.log_offset < 0:
            return ()
        where = ((LOG_OFFSET, str(self.log_offset)),)
        if self.queue_offset < 0:
            return where
        queue = self.connection.names.plain_topic(self.publish.topic_name)
        return (*where, (QUEUE, queue), (QUEUE_OFFSET, str(self.queue_offset)))

    def _send(self, reason_code: ReasonCode, properties: Properties) -> None:
        connection = self.connection
        connection.unsafe_acks -= 1
        if connection.session is not None and not connection.closing:
            ack = PubRec if self.publish.qos == 2 else PubAck
            connection.write(fitting(connection, ack(self.publish.packet_id or 0, reason_code, properties)))
