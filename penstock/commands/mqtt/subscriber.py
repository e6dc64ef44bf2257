"""Subscribes and writes what arrives to standard output, all on the calling thread."""

import signal
import sys
from typing import Any, Final, NoReturn

import paho.mqtt.client as paho
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.commands.mqtt.connection import PahoConnection
from penstock.errors import ConnectionFailed, RefusedByServer

START_PROPERTY = "penstock-from"
LOOP_S: Final = 0.5


class Subscriber:
    def __init__(self, connection: PahoConnection, verbose: bool, count: int | None) -> None:
        self._connection = connection
        self._verbose = verbose
        self._remaining = count
        self._finished = self._is_interrupted = False
        self._refusal: str | None = None
        self._topic_filters: list[str] = []
        self._client = connection.client
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message

    def subscribe(self, topic_filters: list[str], qos: int, start: str | None) -> None:
        self._topic_filters = topic_filters
        properties = Properties(PacketTypes.SUBSCRIBE)
        if start is not None:
            properties.UserProperty = (START_PROPERTY, start)
        self._client.subscribe(
            [(topic_filter, SubscribeOptions(qos)) for topic_filter in topic_filters],
            properties=properties,
        )

    def run(self) -> None:
        """Returns after the wanted count, or at Ctrl-C, which is how to stop an endless one."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            while not self._is_interrupted and self._client.loop(LOOP_S) == MQTTErrorCode.MQTT_ERR_SUCCESS:
                pass
        except KeyboardInterrupt:
            return
        if self._is_interrupted:
            return
        if self._refusal is not None:
            raise RefusedByServer(f"{self._connection.address}: {self._refusal}")
        if not self._finished:
            raise ConnectionFailed(str(self._connection.lost))

    def _on_interrupt(self, *_: object) -> NoReturn:
        """The exception ends whatever blocks; where it is lost, as in a finalizer, the loop sees that it came."""
        self._is_interrupted = True
        raise KeyboardInterrupt

    def _on_subscribe(
        self,
        client: paho.Client,
        userdata: Any,
        mid: int,
        reason_codes: list[ReasonCode],
        properties: Properties | None,
    ) -> None:
        for topic_filter, reason_code in zip(self._topic_filters, reason_codes, strict=False):
            if reason_code.is_failure and self._refusal is None:
                reason = getattr(properties, "ReasonString", None) or reason_code
                self._refusal = f"refused the subscription to {topic_filter!r}: {reason}"
                client.disconnect()

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        if self._finished:
            return
        topic = message.topic.encode() + b" " if self._verbose else b""
        sys.stdout.buffer.write(topic + message.payload + b"\n")
        sys.stdout.buffer.flush()
        if self._remaining is not None:
            self._remaining -= 1
            if self._remaining == 0:
                self._finished = True
                client.disconnect()
