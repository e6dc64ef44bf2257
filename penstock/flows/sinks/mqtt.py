"""Events as messages of an MQTT broker, at least once, with the message id to know them by.

A message is done once the broker acknowledges it. With MQTT 5 it says which stores it came through: a store does not
send on what came through it, so messages do not go in a circle.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Final

from paho.mqtt.reasoncodes import ReasonCode

from gateway.mqtt.topics import topic_fault
from penstock.flows import VIA
from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError, SinkAway, SinkRefused
from penstock.flows.events import EventWriter, FlowEvent
from penstock.flows.mqtt_place import mark_of, mqtt_place
from penstock.flows.sinks.mqtt_publisher import MqttMessage, MqttPublisher
from penstock.sdk.errors import ClientError
from penstock.sdk.subscription import Subscription

MOST: Final = 500  # events that it takes at a time
MOST_VIA: Final = 16  # stores
QUOTA_EXCEEDED: Final = 0x97
NOT_AUTHORIZED: Final = 0x87


class MqttSink:
    """Publishes to one broker."""

    most = MOST

    def __init__(self, flow: Flow, writer: EventWriter) -> None:
        """Raises FlowError."""
        said = flow.said
        if said.format == "cloudevents-batch":
            reason = "a message of MQTT is one event"
            raise FlowError(flow.name, "format", reason, "say raw, cloudevents or cloudevents-binary")
        if said.format == "cloudevents-binary" and said.mqtt.version != "5":
            reason = "MQTT 3.1.1 has no user properties for it"
            raise FlowError(flow.name, "format", reason, 'say raw or cloudevents, or mqtt.version = "5"')
        self._place = mqtt_place(flow)
        self._options = said.mqtt
        self._writer = writer
        self._store = ""  # the identity of the log that the messages are in; empty: it is not told
        self._client_id = f"{said.mqtt.id or f'penstock-flow-{flow.name}'}-{secrets.token_hex(4)}"  # one a process
        self._timeout_s = said.timeout_s
        self._link: MqttPublisher | None = None
        self._opening = asyncio.Lock()
        self._openings, self._why_not = 0, ""  # how often it was tried, and what the last try found
        self._there: set[str] = set()  # ids of what is there, of sends that failed as a whole
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, group: Subscription) -> None:
        if self._options.version == "5":
            try:
                self._store = (await group.position()).log
            except ClientError as error:
                raise SinkAway(f"the store: {error}") from None
        await self._linked()

    async def close(self) -> None:
        if self._link is not None:
            self._drop(self._link, SinkAway("the flow ends"))
        if self._closing:
            await asyncio.wait(self._closing)

    async def send(self, events: Sequence[FlowEvent]) -> None:
        due = [event for event in events if event.id not in self._there and not self._came_through(event)]
        made = [self._message(event) for event in due]
        link = await self._linked()
        for message in made:
            self._check(link, message)
        began_s = asyncio.get_running_loop().time()
        answers: list[asyncio.Future[ReasonCode]] = []
        publishing = asyncio.create_task(self._publish(link, made, answers))
        try:
            await self._answered(link, publishing, answers, began_s)
        finally:
            publishing.cancel()
            for event, answer in zip(due, answers, strict=False):
                if answer.done() and answer.exception() is None and not answer.result().is_failure:
                    self._there.add(event.id)
        for message, answer in zip(made, answers, strict=True):
            self._judge(message, answer.result())
        self._there.difference_update(event.id for event in events)

    async def _publish(
        self, link: MqttPublisher, messages: Sequence[MqttMessage], answers: list[asyncio.Future[ReasonCode]]
    ) -> None:
        for message in messages:
            try:
                answers.append(await link.publish(message))
            except ValueError as error:
                raise SinkRefused(f"{message.topic[:200]!r}: {error}") from None

    def _came_through(self, event: FlowEvent) -> bool:
        """Or came from this broker."""
        own = {self._store, mark_of(self._store, self._place)}
        return bool(self._store) and not own.isdisjoint(stores_of(event))

    def _message(self, event: FlowEvent) -> MqttMessage:
        """Raises Unfit, SinkRefused."""
        topic = self._place.path + event.topic
        if fault := topic_fault(topic):
            raise SinkRefused(f"{topic[:200]!r}: {fault}")
        properties, content_type, body = self._writer.mqtt(event)
        had = event.message is not None and event.message.retain
        retain = had if self._options.retain == "keep" else self._options.retain == "yes"
        if self._store:
            via = stores_of(event)
            if len(via) >= MOST_VIA:
                raise SinkRefused(f"it came through {len(via)} stores: they send messages in a circle")
            others = [pair for pair in properties if pair[0] != VIA]
            properties = [*others, *((VIA, store) for store in (*via, self._store))]
        return MqttMessage(topic, body, self._options.qos, retain, content_type, properties)

    def _check(self, link: MqttPublisher, message: MqttMessage) -> None:
        """Raises SinkRefused, SinkAway."""
        if message.qos > link.most_qos:
            raise SinkAway(f"{self._place}: it takes QoS {link.most_qos} at most; mqtt.qos: say that")
        if message.retain and not link.takes_retained:
            raise SinkRefused(f'{self._place}: it keeps no retained messages; mqtt.retain: say "no"')
        if len(message) > link.most_bytes:
            raise SinkRefused(f"{self._place}: a packet has {link.most_bytes} bytes at most, this one {len(message)}")

    def _judge(self, message: MqttMessage, code: ReasonCode) -> None:
        """Raises SinkRefused, SinkAway."""
        if not code.is_failure:
            return
        if code.value == QUOTA_EXCEEDED:
            raise SinkAway(f"{self._place}: it takes no more for now: {code.getName()}")
        remedy = "; allow the flow's user to publish there" if code.value == NOT_AUTHORIZED else ""
        raise SinkRefused(f"{self._place}: {message.topic[:200]!r}: {code.getName()}{remedy}")

    async def _answered(
        self,
        link: MqttPublisher,
        publishing: asyncio.Task[None],
        answers: list[asyncio.Future[ReasonCode]],
        began_s: float,
    ) -> None:
        """Wait until each has an answer, as long as the broker answers at all. Raises SinkAway, SinkRefused."""
        loop = asyncio.get_running_loop()
        while True:
            left_s = max(began_s, link.answered_s) + self._timeout_s - loop.time()
            if left_s <= 0:
                away = SinkAway(f"{self._place}: it has not acknowledged a message for {self._timeout_s:g} s")
                self._drop(link, away)
                raise away
            waited: set[asyncio.Future[Any]] = {each for each in answers if not each.done()}
            if not publishing.done():
                waited.add(publishing)
            if not waited:
                break
            await asyncio.wait(waited, timeout=left_s)
        await publishing
        for answer in answers:
            answer.result()

    # --- its connection

    async def _linked(self) -> MqttPublisher:
        """Raises SinkAway; to all who wait for one try, if that fails."""
        openings = self._openings
        async with self._opening:
            if self._link is not None and not self._link.is_open:
                self._drop(self._link, SinkAway("it ended the connection"))
            if self._link is None:
                if self._why_not and self._openings != openings:
                    raise SinkAway(self._why_not)
                self._openings += 1
                try:
                    link = MqttPublisher(self._place, self._options, self._client_id)
                    await link.open(self._timeout_s)
                except SinkAway as error:
                    self._why_not = str(error)
                    raise
                self._link = link
                self._why_not = ""
            return self._link

    def _drop(self, link: MqttPublisher, why: SinkAway) -> None:
        """Close the link. What waits on it fails."""
        if self._link is link:
            self._link = None
        link.end(why)
        task = asyncio.create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def stores_of(event: FlowEvent) -> list[str]:
    """Those that a message came through, before its own."""
    if event.message is None:
        return []
    return [store for name, store in event.message.user_properties if name == VIA]
