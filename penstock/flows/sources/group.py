"""The consumer group of a flow from Kafka or AMQP: people see and pause the flow by it. It has no messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.flows.counts import may_pass, tell_store
from penstock.flows.definition import Flow
from penstock.sdk.client import Client
from penstock.sdk.errors import ClientError, StoreRefused
from store.state.consumer_work import ConsumerWork

log = logging.getLogger("penstock.flows")

PAUSE_S: Final = 1.0  # before the store is asked again


class FlowGroup:
    """Owner of what is known of whether the flow is paused. Neither `going` nor `paused` is set before that is known.

    A flow whose user may not be in the group cannot be paused, and goes.
    """

    def __init__(self, flow: Flow, client: Client, work: Callable[[], ConsumerWork]) -> None:
        """`client`: of the flows' store."""
        self.going, self.paused = asyncio.Event(), asyncio.Event()
        self._flow, self._client, self._work = flow, client, work

    async def run(self) -> None:
        """Until cancelled."""
        name, why = self._flow.name, ""
        while True:
            group = self._client.subscribe(
                f"$flows/{name}/source", group=self._flow.group, start="now", prefetch=1, max_deliveries=0
            )
            try:
                async with group:
                    await tell_store(name, group, self._work, self._heard)
                break
            except ClientError as error:
                if isinstance(error, StoreRefused) and not may_pass(error):
                    log.warning("flow %s: it cannot be paused, and its figures are not shown: %s", name, error)
                    break
                if isinstance(error, StoreRefused) and str(error) != why:
                    why = str(error)
                    log.warning("flow %s: %s; it is tried again", name, error)
                await asyncio.sleep(PAUSE_S)
        self._heard(False)

    def _heard(self, is_paused: bool) -> None:
        now, before = (self.paused, self.going) if is_paused else (self.going, self.paused)
        if before.is_set():
            log.info("flow %s: %s", self._flow.name, "it is paused" if is_paused else "it goes on")
        before.clear()
        now.set()
