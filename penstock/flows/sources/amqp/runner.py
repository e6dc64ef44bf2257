"""AMQP in: the messages of a queue become messages of a store, those with an id each once.

The broker has a message until the store has it. The store knows which messages it has (known_ids.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Final

from penstock.flows.amqp_place import amqp_place
from penstock.flows.definition import Flow
from penstock.flows.errors import SinkAway
from penstock.flows.sources.amqp.link import QueueLink
from penstock.flows.sources.amqp.messages import QueuedMessage
from penstock.flows.sources.known_ids import KnownIds
from penstock.flows.sources.messages import message_of_queue
from penstock.flows.sources.numbered import NumberedAppends
from penstock.flows.sources.queue_feed import QueueFeed, StoredForm
from penstock.flows.sources.queue_runner import QueueRunner
from penstock.sdk.client import Client

log = logging.getLogger("penstock.flows")

MOST_IN_HAND_BYTES: Final = 32 << 20
STEADY_S: Final = 10.0  # a connection that lasts so long was no failure


class AmqpRunner(QueueRunner[QueuedMessage]):
    """Owner of a flow's connection to its queue."""

    kind = "amqp"

    def __init__(self, flow: Flow, client: Client, chance: Callable[[], float] = random.random) -> None:
        """`client`: of the flow's own store. Raises FlowError."""
        super().__init__(flow, client, "the queue gives messages again", chance)
        self._place = amqp_place(flow, "from")
        which = f"{self._place.vhost}\0{self._place.name}"
        self.source = blake2b(which.encode(), digest_size=8).hexdigest()

    def _feed(self, appends: NumberedAppends, known: KnownIds) -> QueueFeed[QueuedMessage]:
        form = StoredForm(partial(message_of_queue, self.flow))
        return QueueFeed(self.flow, self._client.message, appends, known, self.counts, form)

    async def _take(self, feed: QueueFeed[QueuedMessage]) -> None:
        """Have a consumer of the queue. Until cancelled."""
        said, loop = self.flow.said, asyncio.get_running_loop()
        prefetch = said.amqp.prefetch
        while True:
            outages = await self.gate.passed()
            over = asyncio.Event()

            def took(message: QueuedMessage, over: asyncio.Event = over) -> None:
                if over.is_set():
                    return
                feed.add(message)
                if feed.in_hand_bytes > MOST_IN_HAND_BYTES and feed.in_hand > 1:
                    over.set()

            link: QueueLink | None = None
            began_s = loop.time()
            try:
                name = f"penstock-flow-{self.flow.name}"
                link = await QueueLink.opened(self._place, name, said.timeout_s, prefetch, took)
                feed.begin(link.settle)
                if not self.gate.away:
                    self.gate.answered(outages)
                while not over.is_set():
                    self.counts.lag = await link.waiting() + feed.in_hand
                    self.gate.answered(outages)
                text = (
                    "flow %s: its messages are large: more than %d bytes of them are in hand; it takes fewer at a time"
                )
                log.warning(text, self.flow.name, MOST_IN_HAND_BYTES)
                prefetch = max(1, min(prefetch, feed.in_hand) // 2)
            except SinkAway as error:
                if loop.time() - began_s > STEADY_S:
                    prefetch = said.amqp.prefetch
                await self.gate.shut(error)
            finally:
                over.set()
                feed.clear()
                if link is not None:
                    await link.close()
