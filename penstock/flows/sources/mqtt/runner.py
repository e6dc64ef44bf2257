"""MQTT in: the messages of a broker become messages of a store; those with an id each once.

The broker keeps a message in the flow's session until the store has it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Final

from penstock.flows.definition import Flow
from penstock.flows.errors import SinkAway
from penstock.flows.mqtt_place import mark_of, mqtt_place
from penstock.flows.sources.known_ids import KnownIds
from penstock.flows.sources.messages import ToStore
from penstock.flows.sources.mqtt.messages import BrokerMessage
from penstock.flows.sources.mqtt.stored import letter_of_broker, message_of_broker
from penstock.flows.sources.mqtt.subscriber import MqttSubscriber
from penstock.flows.sources.numbered import NumberedAppends
from penstock.flows.sources.queue_feed import QueueFeed, StoredForm
from penstock.flows.sources.queue_runner import QueueRunner
from penstock.sdk.client import Client

log = logging.getLogger("penstock.flows")

WINDOW: Final = 1_000  # messages at QoS 1 in hand
MOST_IN_HAND: Final = 20_000  # with those at QoS 0, which nobody bounds
MOST_IN_HAND_BYTES: Final = 32 << 20
LOOK_S: Final = 1.0
STEADY_S: Final = 10.0  # a connection that lasts so long was no failure


class MqttRunner(QueueRunner[BrokerMessage]):
    """Owner of a flow's session at its broker."""

    kind = "mqtt"

    def __init__(self, flow: Flow, client: Client, chance: Callable[[], float] = random.random) -> None:
        """`client`: of the flow's own store. Raises FlowError."""
        super().__init__(flow, client, "the broker gives messages again", chance)
        self._place = mqtt_place(flow, "from")
        self.source = blake2b(f"{self._place}\0{self._place.path}".encode(), digest_size=8).hexdigest()
        self._client_id = f"{flow.said.mqtt.id or f'penstock-flow-{flow.name}'}-{self.source[:8]}"
        """A session for each filter: in the session of another filter that would be subscribed to for ever."""

    def _feed(self, appends: NumberedAppends, known: KnownIds) -> QueueFeed[BrokerMessage]:
        def becomes(message: BrokerMessage) -> ToStore | None:
            store = appends.welcome.log_identity.hex()
            return message_of_broker(self.flow, store, mark_of(store, self._place), message)

        form = StoredForm(becomes, partial(letter_of_broker, self.flow))
        return QueueFeed(self.flow, self._client.message, appends, known, self.counts, form)

    async def _take(self, feed: QueueFeed[BrokerMessage]) -> None:
        """Have the session's connection. Until cancelled."""
        said, loop = self.flow.said, asyncio.get_running_loop()
        window = WINDOW
        while True:
            outages = await self.gate.passed()
            over = asyncio.Event()

            def took(message: BrokerMessage, over: asyncio.Event = over) -> None:
                if over.is_set() or (not message.qos and feed.in_hand >= MOST_IN_HAND):
                    self.counts.lost += not message.qos
                    return
                feed.add(message)
                if feed.in_hand_bytes > MOST_IN_HAND_BYTES and feed.in_hand > 1:
                    over.set()

            link = MqttSubscriber(self._place, said.mqtt, self._client_id, window, took)
            began_s = loop.time()
            try:
                feed.begin(link.settle)
                await link.open(said.timeout_s)
                await link.subscribe(said.timeout_s)
                self.gate.answered(outages)
                while not over.is_set():
                    self.counts.lag = feed.in_hand
                    await asyncio.sleep(LOOK_S)
                    if not link.is_open:
                        raise link.why_ended
                log.warning(
                    "flow %s: its messages are large: more than %d bytes of them are in hand; it takes fewer at a time",
                    self.flow.name, MOST_IN_HAND_BYTES,
                )  # fmt: skip
                window = max(1, min(window, feed.in_hand) // 2)
            except SinkAway as error:
                if loop.time() - began_s > STEADY_S:
                    window = WINDOW
                await self.gate.shut(error)
            finally:
                over.set()
                feed.clear()
                await link.close()
