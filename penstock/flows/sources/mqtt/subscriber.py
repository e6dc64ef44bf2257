"""A connection to an MQTT broker that subscribes to one filter, by a session that outlives it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import paho.mqtt.client as paho
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.flows.definition import MqttOptions
from penstock.flows.errors import SinkAway
from penstock.flows.mqtt_link import MqttLink, refused
from penstock.flows.mqtt_place import MqttPlace
from penstock.flows.sources.mqtt.messages import BrokerMessage


class MqttSubscriber(MqttLink):
    """Owner of what came and is not acknowledged. That is the broker's once the connection ends."""

    def __init__(
        self,
        place: MqttPlace,
        options: MqttOptions,
        client_id: str,
        window: int,
        took: Callable[[BrokerMessage], object],
    ) -> None:
        """`window`: of messages at QoS 1 that are not acknowledged (MQTT 5)."""
        super().__init__(place, options, client_id, is_clean=False)
        self._window, self._took = window, took
        self._came = 0
        self._unsettled: deque[tuple[int, int, int]] = deque()  # tags, packet ids, QoS
        self._subscribed: asyncio.Future[None] = self._loop.create_future()
        self._client.on_message, self._client.on_subscribe = self._on_message, self._on_subscribe

    async def subscribe(self, timeout_s: float) -> None:
        """Raises SinkAway."""
        if self._is_5:  # what is retained comes once, with the session's first subscription
            options = SubscribeOptions(self._options.qos, True, True, SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
            self._client.subscribe(self._place.path, options=options)
        else:
            self._client.subscribe(self._place.path, self._options.qos)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._subscribed)
        except TimeoutError:
            raise SinkAway(f"{self._place}: it did not answer a subscription in time") from None

    async def settle(self, done: int, rejected: Sequence[int]) -> None:
        """Acknowledge all messages up to a tag, in their order (MQTT 5.0, 4.6). What is given up is settled as well."""
        up_to = max([done, *rejected])
        while self._unsettled and self._unsettled[0][0] <= up_to:
            _, packet_id, qos = self._unsettled.popleft()
            if self.is_open:
                self._client.ack(packet_id, qos)

    def _ask(self, properties: Properties) -> None:
        properties.SessionExpiryInterval = self._options.session_s
        properties.ReceiveMaximum = self._window

    def _ended(self, why: SinkAway) -> None:
        if not self._subscribed.done():
            self._subscribed.set_exception(why)
            self._subscribed.exception()  # it may be that nobody waits

    # --- on the library's thread

    def _on_message(self, _: object, __: object, message: paho.MQTTMessage) -> None:
        self._note(message)

    def _on_subscribe(self, _: object, __: object, ___: int, codes: list[ReasonCode], ____: object) -> None:
        self._tell(self._answered, codes)

    # --- on the loop

    def _take(self, message: paho.MQTTMessage) -> None:
        if not self.is_open:
            return
        self._came += 1
        if message.qos:
            self._unsettled.append((self._came, message.mid, message.qos))
        properties = message.properties if self._is_5 else None
        payload, retain = bytes(message.payload), bool(message.retain)
        self._took(BrokerMessage(self._came, message.mid, message.topic, payload, message.qos, retain, properties))

    def _answered(self, codes: list[ReasonCode]) -> None:
        if self._subscribed.done():
            return
        if codes[0].is_failure:
            away = refused(self._place, f"it refuses the subscription to {self._place.path!r}", codes[0])
            self._subscribed.set_exception(SinkAway(f"{away}; allow it to the flow's user"))
        else:
            self._subscribed.set_result(None)
