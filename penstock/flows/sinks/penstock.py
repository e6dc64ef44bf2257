"""Events as messages of a Penstock store, the flow's own or another one, each once.

A message bears the flow and the id of the message that it comes from. In front of messages that come from further on in
the log than any before goes one that says how far they come, on a topic of the flow's own. So a flow that is started
again knows which messages may be there, and looks for those; what comes from after that place was never published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError, SinkAway, SinkRefused
from penstock.flows.events import FlowEvent
from penstock.sdk.client import Client
from penstock.sdk.errors import AddressError, BadMessage, ClientError, NotAllStored, StoreRefused
from penstock.sdk.many import TOPICS_REMEMBERED, ToPublish
from penstock.sdk.outgoing import PublishOptions
from penstock.sdk.subscription import Subscription
from store.namespaces import publish_fault
from store.topics import matches
from store.wire.messages import FailureCode

MOST: Final = 500  # messages that are published at a time
PLACES: Final = "$flows"
PLACE_KEY: Final = "position"
MOST_LOOKED_AT: Final = 1_000  # of those with one key
ORIGIN: Final = "penstock-flow"
"""The header of a published message: FLOW/ID."""
OF_THE_MESSAGE: Final = (FailureCode.BAD_REQUEST, FailureCode.RECORD_TOO_LARGE)
OWN_STORE: Final = ("penstock:", "penstock://")


class PenstockSink:
    """Publishes to a store."""

    most = MOST

    def __init__(self, flow: Flow, client: Client, source: str, *, of_function: bool = False) -> None:
        """`client`: of the flow's own store, which `source` names. `of_function`: it has what a
        function returns, for the flow's own store. Raises FlowError."""
        self._flow = flow
        self._place = f"{PLACES}/{flow.name}/{source.partition('://')[2].replace('/', '_')}"
        self._furthest = -1  # log_offset of what was published that comes from furthest on
        self._fit: set[str] = set()  # topics that it may publish to
        self._is_own = of_function or flow.said.to in OWN_STORE
        self._client = client
        if self._is_own and not of_function and flow.said.map_.topic is None:
            reason = "its messages would come back to it"
            raise FlowError(
                flow.name, "map.topic", reason, 'map them to another topic, as map = { topic = "out/{topic}" }'
            )
        if not self._is_own:
            try:
                self._client = Client(flow.said.to, token=flow.token, timeout_s=flow.said.timeout_s)
            except AddressError as error:
                raise FlowError(flow.name, "to", str(error), "say penstock://HOST:PORT") from None

    async def open(self, _: Subscription) -> None:
        """Learn how far an earlier process came."""
        try:
            found = await self._client.find(PLACE_KEY, topic=self._place, limit=1)
            self._furthest = max([self._furthest, *(int(message.payload) for message in found)])
        except ClientError as error:
            raise SinkAway(str(error)) from None
        except ValueError:
            raise SinkAway(f"{self._place}: another program has published there; it is the flow's") from None

    async def close(self) -> None:
        if not self._is_own:
            await self._client.close()

    async def send(self, events: Sequence[FlowEvent]) -> None:
        for event in events:
            self.check(event)
        furthest = max(event.log_offset for event in events)
        try:
            missing = await self._missing(events)
            messages: list[ToPublish] = [self._message(event) for event in missing]
            if furthest > self._furthest:
                self._furthest = furthest
                messages.insert(0, (self._place, b"%d" % furthest, {"key": PLACE_KEY, "retain": True}))
            if messages:
                await self._client.publish_many(messages)
        except NotAllStored as error:
            raise _failure(next(each for each in error.outcomes if isinstance(each, ClientError))) from None
        except ClientError as error:
            raise _failure(error) from None

    async def _missing(self, events: Sequence[FlowEvent]) -> list[FlowEvent]:
        """Those that are not there yet."""
        doubtful = [event for event in events if event.log_offset <= self._furthest]
        there = await asyncio.gather(*map(self._is_there, doubtful))
        found = {event.id for event, is_there in zip(doubtful, there, strict=True) if is_there}
        return [event for event in events if event.id not in found]

    def check(self, event: FlowEvent) -> None:
        """Whether it may be published there. Raises SinkRefused."""
        if event.topic in self._fit:
            return
        fault = publish_fault(event.topic)
        if fault:
            raise SinkRefused(f"{event.topic[:200]!r}: {fault}")
        if self._is_own and matches(self._flow.said.from_, event.topic):
            raise SinkRefused(f"{event.topic[:200]!r} would come back to this flow")
        if len(self._fit) >= TOPICS_REMEMBERED:
            self._fit.clear()
        self._fit.add(event.topic)

    def _message(self, event: FlowEvent) -> ToPublish:
        origin = self._origin(event)
        options: PublishOptions = {"headers": [*event.headers.items(), (ORIGIN, origin)], "key": event.key or origin}
        if event.content_type:
            options["content_type"] = event.content_type
        return event.topic, event.payload, options

    def _origin(self, event: FlowEvent) -> str:
        return f"{self._flow.name}/{event.id}"

    async def _is_there(self, event: FlowEvent) -> bool:
        origin = self._origin(event)
        found = await self._client.find(event.key or origin, topic=event.topic, since=event.time, limit=MOST_LOOKED_AT)
        return any(message.headers.get(ORIGIN) == origin for message in found)


def _failure(error: ClientError) -> Exception:
    is_message = isinstance(error, StoreRefused) and error.code in OF_THE_MESSAGE
    return SinkRefused(str(error)) if is_message or isinstance(error, BadMessage) else SinkAway(str(error))
