"""A connection to an MQTT broker, and what its errors mean to a flow."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from contextlib import suppress
from typing import Any, Final, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from penstock.flows.definition import MqttOptions
from penstock.flows.errors import SinkAway
from penstock.flows.mqtt_place import MqttPlace

KEEP_ALIVE_S: Final = 30
WINDOW: Final = 1_000  # messages that are not acknowledged, if the broker allows as many
WINDOW_3: Final = 100  # of MQTT 3.1.1, where a broker cannot say
HEADER_BYTES: Final = 16  # of a PUBLISH at most, without topic, properties and payload
MOST_BYTES: Final = 268_435_455  # of a packet behind its fixed header (MQTT 5.0, 1.5.5)
_SILENT: Final = logging.Logger("penstock.flows.paho", logging.CRITICAL + 1)  # a flow says it in one line
_REMEDIES: Final = {
    0x84: 'mqtt.version: say "3.1.1"',
    0x85: "mqtt.id: name another one",
    0x86: "mqtt.password: correct it, or mqtt.user",
    0x87: "allow the flow's user to connect, or correct mqtt.user and mqtt.password",
    0x8E: "another client has the same id; mqtt.id: name another one",
}


class MqttMessage(NamedTuple):
    """What is published. `properties`: user properties, of MQTT 5 alone."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    content_type: str
    properties: list[tuple[str, str]]

    def __len__(self) -> int:
        """Bytes of its packet, at most."""
        texts = [self.topic, self.content_type, *(text for pair in self.properties for text in pair)]
        return HEADER_BYTES + len(self.payload) + sum(len(text.encode()) + 3 for text in texts)


class MqttLink:
    """Owner of a connection, which is not made again once it ends, and of what is not acknowledged on it."""

    def __init__(self, place: MqttPlace, options: MqttOptions, client_id: str) -> None:
        self.answered_s = 0.0
        """When the broker acknowledged something last, on the loop's clock."""
        self.most_bytes, self.most_qos, self.takes_retained = MOST_BYTES, 2, True
        self._place = place
        self._is_5 = options.version == "5"
        self._window = WINDOW if self._is_5 else WINDOW_3
        self._loop = asyncio.get_running_loop()
        self._why_ended: SinkAway | None = None
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[ReasonCode]] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._acked: deque[tuple[int, ReasonCode]] = deque()
        self._is_woken = False
        protocol = MQTTProtocolVersion.MQTTv5 if self._is_5 else MQTTProtocolVersion.MQTTv311
        clean = None if self._is_5 else True
        client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, clean, protocol=protocol, reconnect_on_failure=False
        )
        client.enable_logger(_SILENT)
        client.max_inflight_messages_set(0)  # the window is kept here: the library's costs time for each message in it
        client.on_connect, client.on_disconnect, client.on_publish = self._on_connect, self._on_disconnect, self._on_ack
        if place.user:
            client.username_pw_set(place.user, place.password or None)
        if place.tls is not None:
            client.tls_set_context(place.tls)
        self._client = client

    @classmethod
    async def opened(cls, place: MqttPlace, options: MqttOptions, client_id: str, timeout_s: float) -> MqttLink:
        """Raises SinkAway."""
        link = cls(place, options, client_id)
        link._client.connect_timeout = timeout_s
        try:
            await link._loop.run_in_executor(None, link._client.connect, place.host, place.port, KEEP_ALIVE_S)
            link._client.loop_start()
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(link._connected)
        except (OSError, ValueError) as error:  # TimeoutError and SSLError as well
            await link.close()
            raise _away(place, error) from None
        except BaseException:
            await link.close()
            raise
        return link

    @property
    def is_open(self) -> bool:
        return self._why_ended is None

    async def publish(self, message: MqttMessage) -> asyncio.Future[ReasonCode]:
        """Send it once the window has room. The future has what the broker says of it. Raises SinkAway, ValueError."""
        while len(self._waiting) >= self._window and self.is_open:
            self._room.clear()
            await self._room.wait()
        if self._why_ended is not None:
            raise self._why_ended
        answer: asyncio.Future[ReasonCode] = self._loop.create_future()
        info = self._client.publish(
            message.topic, message.payload, message.qos, message.retain, self._properties(message)
        )
        self._waiting[info.mid] = answer
        return answer

    def _properties(self, message: MqttMessage) -> Properties | None:
        if not self._is_5:
            return None
        properties = Properties(PacketTypes.PUBLISH)
        if message.content_type:
            properties.ContentType = message.content_type
        if message.properties:
            properties.UserProperty = message.properties
        return properties

    async def close(self) -> None:
        self._end(SinkAway("the flow ends"))
        self._client.disconnect()
        await self._loop.run_in_executor(None, self._client.loop_stop)

    def end(self, why: SinkAway) -> None:
        """What waits fails with this; close() is to follow."""
        self._end(why)

    def _end(self, why: SinkAway) -> None:
        if self._why_ended is None:
            self._why_ended = why
        self._room.set()
        if not self._connected.done():
            self._connected.set_exception(self._why_ended)
            self._connected.exception()  # it may be that nobody waits
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._why_ended)
                answer.exception()
        self._waiting.clear()

    # --- on the library's thread

    def _tell(self, call: Any, *args: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call, *args)

    def _on_connect(self, _: object, __: object, ___: object, code: ReasonCode, properties: Properties | None) -> None:
        self._tell(self._let_in, code, properties)

    def _on_disconnect(self, _: object, __: object, ___: object, code: ReasonCode, ____: object) -> None:
        self._tell(self._end, _refused(self._place, "it ended the connection", code))

    def _on_ack(self, _: object, __: object, mid: int, code: ReasonCode, ___: object) -> None:
        self._acked.append((mid, code))
        if not self._is_woken:
            self._is_woken = True
            self._tell(self._take_acks)

    # --- on the loop

    def _let_in(self, code: ReasonCode, properties: Properties | None) -> None:
        if code.is_failure:
            self._end(_refused(self._place, "it does not let the flow in", code))
            return
        self._window = min(self._window, getattr(properties, "ReceiveMaximum", self._window))
        self.most_bytes = getattr(properties, "MaximumPacketSize", MOST_BYTES)
        self.most_qos = getattr(properties, "MaximumQoS", 2)
        self.takes_retained = bool(getattr(properties, "RetainAvailable", 1))
        if not self._connected.done():
            self._connected.set_result(None)

    def _take_acks(self) -> None:
        self._is_woken = False
        while self._acked:
            mid, code = self._acked.popleft()
            answer = self._waiting.pop(mid, None)
            if answer is not None and not answer.done():
                answer.set_result(code)
        self.answered_s = self._loop.time()
        self._room.set()


def _refused(place: MqttPlace, what: str, code: ReasonCode) -> SinkAway:
    remedy = _REMEDIES.get(code.value, "")
    return SinkAway(f"{place}: {what}: {code.getName()}{f'; {remedy}' if remedy else ''}")


def _away(place: MqttPlace, error: Exception) -> SinkAway:
    """What kept a connection from being made."""
    said = str(error) or "it did not answer in time"
    if isinstance(error, ssl.SSLError):
        said += "; ca_file: give the authority that signed the broker's certificate, and the name that this is for"
    return SinkAway(f"{place}: {said}")
