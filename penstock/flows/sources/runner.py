"""A flow that comes from another system: what those have in common."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from penstock.flows.counts import FlowCounts
from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError, SinkAway
from penstock.flows.gate import SinkGate
from penstock.flows.sinks.penstock import OWN_STORE
from penstock.flows.sources.group import FlowGroup
from penstock.sdk.client import Client
from penstock.sdk.errors import AddressError, CannotConnect
from store.state.consumer_work import ConsumerWork


class SourceRunner:
    """Owner of the connection to the store that a flow leads to. As FlowRunner, one of its process's flows."""

    def __init__(self, flow: Flow, client: Client, again: str, chance: Callable[[], float] = random.random) -> None:
        """`client`: of the flows' own store; `again`: what is said once an outage of the source is over. Raises
        FlowError."""
        self.flow = flow
        self.counts = FlowCounts()
        self.gate = SinkGate(flow.name, chance, self.counts.note, again)
        self._is_own = flow.said.to in OWN_STORE
        self._client = client if self._is_own else _another_store(flow)
        self.group = FlowGroup(flow, client, self._work)
        self._task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """End at once: what the store has not answered comes again."""
        self.gate.stop()
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Until stop(). Raises ClientError if another store does not let it in."""
        self._task = asyncio.create_task(self._run())
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        grouped = asyncio.create_task(self.group.run())
        try:
            if not self._is_own:
                await self._connect()
            await self._bring()
        finally:
            grouped.cancel()
            await asyncio.gather(grouped, return_exceptions=True)
            await self._close()
            if not self._is_own:
                await self._client.close()

    async def _bring(self) -> None:
        """Bring messages, unless the flow is paused. Until cancelled."""
        raise NotImplementedError

    async def _close(self) -> None:
        """Leave the source."""

    def _work(self) -> ConsumerWork:
        return self.counts.work(self.gate.outages, bool(self.gate.away))

    async def _connect(self) -> None:
        """To another store, once it is there."""
        while True:
            outages = await self.gate.passed()
            try:
                await self._client.connect()
            except CannotConnect as error:
                if error.is_refusal:
                    raise
                await self.gate.shut(SinkAway(str(error)))
            else:
                self.gate.answered(outages)
                return


async def until_one_ends(*works: Coroutine[Any, Any, object]) -> None:
    """Run these at the same time until one ends, then cancel the others. Raises the error of one that failed."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _another_store(flow: Flow) -> Client:
    try:
        return Client(flow.said.to, token=flow.token, timeout_s=flow.said.timeout_s)
    except AddressError as error:
        raise FlowError(flow.name, "to", str(error), "say penstock://HOST:PORT") from None
