"""Publishes with a bounded number of messages in flight, and knows when all are answered."""

from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from penstock.commands.mqtt.connection import PahoConnection
from penstock.errors import ConnectionFailed, RefusedByServer

MAXIMUM_IN_FLIGHT = 1_000
ANSWER_TIMEOUT_S = 60
PACKET_IDENTIFIER_NOT_FOUND = 0x92


class CommandPublisher:
    """The caller's thread publishes and waits; paho's thread counts what the server answers.

    A QoS 0 message is in flight until it is written to the socket.
    """

    def __init__(self, connection: PahoConnection, topic: str, qos: int, retain: bool) -> None:
        self._connection = connection
        self._topic = topic
        self._qos = qos
        self._retain = retain
        self._window = min(MAXIMUM_IN_FLIGHT, connection.receive_maximum)
        self._sent = 0
        self._answered = 0
        self._refusals: list[str] = []
        self._client = connection.client
        self._client.on_publish = self._on_publish
        self._client.loop_start()

    def publish(self, payload: bytes) -> None:
        self._wait_until(lambda: self._sent - self._answered < self._window)
        self._sent += 1
        self._client.publish(self._topic, payload, self._qos, self._retain)

    def finish(self) -> None:
        """Waits for every answer. Raises RefusedByServer if the server turned any message down."""
        self._wait_until(lambda: self._answered == self._sent)
        if self._refusals:
            raise RefusedByServer(
                f"{self._connection.address}: refused {len(self._refusals)} of {self._sent} "
                f"messages to {self._topic!r}: {self._refusals[0]}"
            )

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        with self._connection.changed:
            while not ready():
                if self._connection.lost is not None:
                    raise ConnectionFailed(f"{self._connection.lost} ({self._unanswered()})")
                if not self._connection.changed.wait(ANSWER_TIMEOUT_S):
                    raise ConnectionFailed(
                        f"{self._connection.address}: no answer for {ANSWER_TIMEOUT_S} s "
                        f"({self._unanswered()}); look at the server's log"
                    )

    def _unanswered(self) -> str:
        return f"{self._sent - self._answered} of {self._sent} messages not acknowledged"

    def _on_publish(
        self,
        client: paho.Client,
        userdata: Any,
        mid: int,
        reason_code: ReasonCode,
        properties: Properties,
    ) -> None:
        with self._connection.changed:
            self._answered += 1
            if reason_code.is_failure:
                self._refusals.append(_describe(reason_code, properties))
            self._connection.changed.notify_all()


def _describe(reason_code: ReasonCode, properties: Properties) -> str:
    if reason_code.value == PACKET_IDENTIFIER_NOT_FOUND:
        # paho answers a refusing PUBREC with PUBREL and drops its reason; this is what comes back.
        return "the reason does not show with QoS 2; try with -q 1"
    return str(getattr(properties, "ReasonString", None) or reason_code)
