"""A connection to an MQTT broker that publishes."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from penstock.flows.definition import MqttOptions
from penstock.flows.errors import SinkAway
from penstock.flows.mqtt_link import MqttLink
from penstock.flows.mqtt_place import MqttPlace

WINDOW: Final = 1_000  # messages that are not acknowledged, if the broker allows as many
WINDOW_3: Final = 100  # of MQTT 3.1.1, where a broker cannot say
HEADER_BYTES: Final = 16  # of a PUBLISH at most, without topic, properties and payload
MOST_BYTES: Final = 268_435_455  # of a packet after its fixed header (MQTT 5.0, 1.5.5)


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


class MqttPublisher(MqttLink):
    """Owner of what is not acknowledged."""

    def __init__(self, place: MqttPlace, options: MqttOptions, client_id: str) -> None:
        super().__init__(place, options, client_id)
        self.answered_s = 0.0
        """When the broker acknowledged something last, on the loop's clock."""
        self.most_bytes, self.most_qos, self.takes_retained = MOST_BYTES, 2, True
        self._window = WINDOW if self._is_5 else WINDOW_3
        self._waiting: dict[int, asyncio.Future[ReasonCode]] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._client.max_inflight_messages_set(0)  # the library looks through its own window at each acknowledgement
        self._client.on_publish = self._on_ack

    async def publish(self, message: MqttMessage) -> asyncio.Future[ReasonCode]:
        """Send it once the window has room. The future has what the broker says of it. Raises SinkAway, ValueError."""
        while len(self._waiting) >= self._window and self.is_open:
            self._room.clear()
            await self._room.wait()
        if not self.is_open:
            raise self.why_ended
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

    def _begun(self, is_resumed: bool, properties: Properties | None) -> None:
        self._window = min(self._window, getattr(properties, "ReceiveMaximum", self._window))
        self.most_bytes = getattr(properties, "MaximumPacketSize", MOST_BYTES)
        self.most_qos = getattr(properties, "MaximumQoS", 2)
        self.takes_retained = bool(getattr(properties, "RetainAvailable", 1))

    def _ended(self, why: SinkAway) -> None:
        self._room.set()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(why)
                answer.exception()  # it may be that nobody waits
        self._waiting.clear()

    def _on_ack(self, _: object, __: object, mid: int, code: ReasonCode, ___: object) -> None:
        """On the library's thread."""
        self._note((mid, code))

    def _take(self, noted: tuple[int, ReasonCode]) -> None:
        mid, code = noted
        answer = self._waiting.pop(mid, None)
        if answer is not None and not answer.done():
            answer.set_result(code)

    def _took_all(self) -> None:
        self.answered_s = self._loop.time()
        self._room.set()
