"""Events as messages of an exchange of AMQP 0-9-1, at least once, with the message id to know them by.

A message is done once the broker confirms it. What was published and is not confirmed yet is waited for when it is sent
again, as long as its connection lives: a broker that is full takes each message once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import aio_pika
from aio_pika.exceptions import (
    ChannelInvalidStateError,
    ChannelPreconditionFailed,
    DeliveryError,
    PublishError,
)

from penstock.flows.amqp_link import AWAY, AmqpLink, away
from penstock.flows.amqp_place import MOST_NAME_BYTES, amqp_place
from penstock.flows.definition import AmqpOptions, Flow
from penstock.flows.errors import FlowError, SinkAway, SinkRefused
from penstock.flows.events import EventWriter, FlowEvent
from penstock.sdk.subscription import Subscription

MOST: Final = 500  # events that it takes at a time
CLOSE_S: Final = 5.0  # for connections to end


class AmqpSink:
    """Publishes to one exchange."""

    most = MOST

    def __init__(self, flow: Flow, writer: EventWriter) -> None:
        """Raises FlowError."""
        if flow.said.format == "cloudevents-batch":
            reason = "a message of AMQP is one event"
            raise FlowError(flow.name, "format", reason, "say cloudevents, cloudevents-binary or raw")
        if flow.said.amqp.prefetch != AmqpOptions().prefetch:
            raise FlowError(flow.name, "amqp.prefetch", "it means nothing to a flow to AMQP", "leave it out")
        self._place = amqp_place(flow)
        self._writer = writer
        self._name = f"penstock-flow-{flow.name}"
        self._timeout_s = flow.said.timeout_s
        self._is_key_mapped = flow.key is not None
        self._link: AmqpLink | None = None
        self._opening = asyncio.Lock()
        self._openings, self._why_not = 0, ""  # how often it was tried, and what the last try found
        self._alone = asyncio.Lock()
        self._published: dict[str, asyncio.Task[None]] = {}
        """By message id: what is under way, or was answered and not fetched by send()."""
        self._answered_s = 0.0  # when the broker answered last, on the loop's clock
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, _: Subscription) -> None:
        await self._linked()

    async def close(self) -> None:
        for task in self._published.values():
            task.cancel()
        if self._link is not None:
            self._drop(self._link)
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_S)

    async def send(self, events: Sequence[FlowEvent]) -> None:
        made = [(event.id, *self._message(event)) for event in events]
        link = await self._linked()
        tasks = []
        for id_, message, routing_key in made:
            task = self._published.get(id_)
            if task is None:
                task = asyncio.create_task(self._publish(link, message, routing_key))
                self._published[id_] = task
                task.add_done_callback(lambda task, id_=id_: self._answered(id_, task))  # type: ignore[misc]
            tasks.append(task)
        await self._answers(link, tasks)
        faults = [fault for task in tasks if (fault := _fault(task)) is not None]
        for fault in faults:
            if isinstance(fault, SinkAway):
                raise fault
        if len(events) == 1 or not faults:  # of several each comes by itself, and fetches its answer
            for event in events:
                self._published.pop(event.id, None)
        if faults:
            raise faults[0]

    def _message(self, event: FlowEvent) -> tuple[aio_pika.Message, str]:
        """It, and its routing key. Raises Unfit, SinkRefused."""
        headers, content_type, body = self._writer.amqp(event)
        routing_key = event.key if self._is_key_mapped else event.topic.replace("/", ".")
        short = {"routing key": routing_key, "content type": content_type, **dict.fromkeys(headers, "")}
        for name, text in short.items():
            if len(text.encode()) > MOST_NAME_BYTES or len(name.encode()) > MOST_NAME_BYTES:
                raise SinkRefused(f"AMQP takes {MOST_NAME_BYTES} bytes: {name[:50]} {text[:50]!r} is longer")
        message = aio_pika.Message(
            body,
            headers=dict(headers),
            content_type=content_type or None,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=event.id,
            timestamp=event.time,
        )
        return message, routing_key

    async def _linked(self) -> AmqpLink:
        """Raises SinkAway; to all who wait for one try, if that fails."""
        openings = self._openings
        async with self._opening:
            if self._link is not None and not self._link.is_open:
                self._drop(self._link)
            if self._link is None:
                if self._why_not and self._openings != openings:
                    raise SinkAway(self._why_not)
                self._openings += 1
                try:
                    self._link = await AmqpLink.opened(self._place, self._name, self._timeout_s)
                except SinkAway as error:
                    self._why_not = str(error)
                    raise
                self._why_not = ""
            return self._link

    def _drop(self, link: AmqpLink) -> None:
        """Close the link. Messages that are under way on it fail."""
        if self._link is link:
            self._link = None
        task = asyncio.create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # --- publishing

    async def _publish(self, link: AmqpLink, message: aio_pika.Message, routing_key: str) -> None:
        """Until the broker has it. Raises SinkRefused, SinkAway."""
        try:
            try:
                await link.exchange.publish(message, routing_key, mandatory=True)
            except (ChannelPreconditionFailed, ChannelInvalidStateError):
                if not await link.ended_for_a_message():
                    raise
                async with self._alone:  # which of those under way is it?
                    await (await self._linked()).publish_alone(message, routing_key)
        except PublishError as error:
            text = getattr(error.frame, "reply_text", "")
            raise SinkRefused(f"{self._place}: {self._place.what} has no queue for {routing_key!r}: {text}") from None
        except ChannelPreconditionFailed as error:
            raise SinkRefused(f"{self._place}: {error}") from None
        except DeliveryError:
            reason = "it does not take the message, as a queue that the message goes to is full"
            raise SinkAway(f"{self._place}: {reason}") from None
        except AWAY as error:
            raise away(self._place, error) from None

    def _answered(self, id_: str, task: asyncio.Task[None]) -> None:
        """A message is there, or is not. What has to be published again is forgotten."""
        if isinstance(_fault(task), SinkAway):
            if self._published.get(id_) is task:
                del self._published[id_]
        else:
            self._answered_s = asyncio.get_running_loop().time()

    async def _answers(self, link: AmqpLink, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait until each has one, as long as the broker answers at all. Raises SinkAway."""
        loop = asyncio.get_running_loop()
        began_s, pending = loop.time(), set(tasks)
        while pending:
            left_s = max(began_s, self._answered_s) + self._timeout_s - loop.time()
            if left_s > 0:
                _, pending = await asyncio.wait(pending, timeout=left_s)
                continue
            if await link.is_blocked():
                raise SinkAway(f"{self._place}: it takes no messages, as its memory or disk is full; free some of it")
            self._drop(link)
            with suppress(TimeoutError):
                await asyncio.wait(pending, timeout=CLOSE_S)
            raise SinkAway(f"{self._place}: it has not confirmed a message for {self._timeout_s:g} s")


def _fault(task: asyncio.Task[None]) -> BaseException | None:
    """The error of a task that is done; None: it has none."""
    return SinkAway("the flow ends") if task.cancelled() else task.exception()
