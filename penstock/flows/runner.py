"""One flow at work: a consumer of its group, which sends on what `where` lets through and settles what became of it.

The store owns the position, the counts of deliveries and the dead letters, so a flow that is killed goes on where it
was. A message is acknowledged once the sink has it. While the sink is away nothing counts: the messages in hand stay
this consumer's, and it takes no more of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final

from penstock.flows.counts import FlowCounts, may_pass, tell_store
from penstock.flows.definition import Flow
from penstock.flows.errors import SinkAway, SinkFailed, SinkLost, SinkRefused, Unfit
from penstock.flows.events import FlowEvent, event_of
from penstock.flows.gate import SinkGate
from penstock.flows.sink import Sink
from penstock.sdk.client import Client
from penstock.sdk.delivery import Deliveries, Delivery
from penstock.sdk.errors import ClientError
from penstock.sdk.group_options import MOST_WHY_CHARACTERS
from penstock.sdk.subscription import Subscription
from store.state.consumer_work import ConsumerWork

log = logging.getLogger("penstock.flows")

INVISIBLE_S: Final = 30.0
KEEP_EVERY_S: Final = INVISIBLE_S / 3
GRACE_S: Final = 10.0
PAUSE_S: Final = 1.0  # before the store is asked again that has no room for the group
SAY_LOST_S: Final = 10.0  # between two lines about what is gone
PREFETCH: Final = 2_000
LOOKED_AT: Final = 64  # messages between two looks at the clock
TURN_S: Final = 0.005  # of work before others have their turn


class FlowRunner:
    """Owner of the messages that a flow has in hand."""

    def __init__(self, flow: Flow, client: Client, sink: Sink, chance: Callable[[], float] = random.random) -> None:
        self.flow = flow
        self.counts = FlowCounts()
        self.gate = SinkGate(flow.name, chance, self.counts.note)
        self._client, self._sink, self._chance = client, sink, chance
        self._subscription: Subscription | None = None
        self._room = asyncio.Semaphore(flow.said.concurrency)
        self._sending: set[asyncio.Task[None]] = set()
        self._lost: SinkLost | None = None
        self._held: dict[Deliveries, int] = {}  # batches, and how many of their messages are being sent
        self._said_lost_s = 0.0
        self._at_work: dict[int, asyncio.Task[None]] = {}  # by log_offset: what is being sent

    def stop(self) -> None:
        """Take no more; run() ends once what is being sent is settled."""
        self.gate.stop()
        if self._subscription is not None:
            self._subscription.stop()

    async def run(self) -> None:
        """Until stop(). Raises ClientError if the store refuses the group, SinkLost."""
        beside = [asyncio.create_task(self._keep_held())]
        try:
            async with AsyncExitStack() as stack:
                messages = await self._entered(stack)
                if messages is None:
                    return
                beside.append(asyncio.create_task(tell_store(self.flow.name, messages, self._work)))
                await self._open_sink(messages)
                async for batch in messages.batches():
                    await self._take(batch)
                with suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await asyncio.gather(*self._sending)
            if self._lost is not None:
                raise self._lost
        finally:
            for task in (*beside, *self._sending):
                task.cancel()
            await self._sink.close()

    def _work(self) -> ConsumerWork:
        return self.counts.work(self.gate.outages, bool(self.gate.away))

    async def _entered(self, stack: AsyncExitStack) -> Subscription | None:
        """Become a consumer of the group, once the store has room to note a new one. None: stop() came before.

        Raises ClientError if the store refuses the group.
        """
        said, why = self.flow.said, ""
        while not self.gate.is_stopping:
            self._subscription = self._client.subscribe(
                said.from_,
                group=self.flow.group,
                start=said.start or None,
                prefetch=PREFETCH,
                invisible=INVISIBLE_S,
                max_deliveries=0,
                ordered=said.ordered,
                retry_after=said.retry_after_s,
                retry_most=max(said.retry_most_s, said.retry_after_s),
            )
            try:
                return await stack.enter_async_context(self._subscription)
            except ClientError as error:
                if not may_pass(error):
                    raise
                if str(error) != why:
                    why = str(error)
                    log.warning("flow %s: %s; it is tried again", self.flow.name, error)
            await self.gate.pause(PAUSE_S)
        return None

    async def _open_sink(self, subscription: Subscription) -> None:
        while not self.gate.is_stopping:
            outages = await self.gate.passed()
            try:
                await self._sink.open(subscription)
            except SinkAway as error:
                await self.gate.shut(error)
            else:
                self.gate.answered(outages)
                return

    # --- taking

    async def _take(self, batch: Deliveries) -> None:
        """Send on what passes; what does not is done with."""
        where, most = self.flow.where, self._sink.most
        self.counts.taken += len(batch)
        waiting: list[tuple[Delivery, FlowEvent]] = []
        passed = 0
        left_out: list[Delivery] = []
        ends_s = time.monotonic() + TURN_S
        self._held[batch] = 1
        for number, delivery in enumerate(batch):
            if not number % LOOKED_AT and time.monotonic() > ends_s:
                await asyncio.sleep(0)
                ends_s = time.monotonic() + TURN_S
            if delivery.lost:
                self._tell_lost(delivery)
            try:
                if where is not None and not where.holds(delivery):
                    left_out.append(delivery)
                    continue
                waiting.append((delivery, event_of(self.flow, delivery, delivery.group_offset)))
            except Unfit as error:
                self._bury(delivery, str(error))
                passed += 1
                continue
            passed += 1
            self.counts.passed += 1
            if len(waiting) == most < len(batch):
                await self._start(batch, waiting)
                waiting = []
        if not passed:
            batch.ack()
        else:
            for delivery in left_out:
                delivery.ack()
        if waiting:
            await self._start(batch, waiting, is_whole=len(waiting) == len(batch))
        self._let_go(batch)

    def _tell_lost(self, delivery: Delivery) -> None:
        self.counts.lost += delivery.lost
        text = (
            f"messages were gone before it took them: {self.counts.lost} so far, the newest before "
            f"log_offset {delivery.log_offset}; have a tier, or raise store.retention_bytes"
        )
        self.counts.note(text)
        now_s = time.monotonic()
        if not self._said_lost_s or now_s - self._said_lost_s > SAY_LOST_S:
            self._said_lost_s = now_s
            log.warning("flow %s: %s", self.flow.name, text)

    async def _start(self, batch: Deliveries, items: list[tuple[Delivery, FlowEvent]], is_whole: bool = False) -> None:
        """Have them sent beside others, as soon as there is room. `is_whole`: they are all of the batch.

        A store that was started again hands out anew what is still being sent here: that is waited for.
        """
        await self._room.acquire()
        self._held[batch] += 1
        log_offsets = [event.log_offset for _, event in items]
        earlier = {self._at_work[each] for each in log_offsets if each in self._at_work}
        whole = batch if is_whole else None
        task = asyncio.create_task(self._send_behind(earlier, items, whole) if earlier else self._send(items, whole))
        self._sending.add(task)
        self._at_work.update(dict.fromkeys(log_offsets, task))

        def done(task: asyncio.Task[None]) -> None:
            for each in log_offsets:
                if self._at_work.get(each) is task:
                    del self._at_work[each]
            self._sending.discard(task)
            self.gate.left(task)
            self._room.release()
            self._let_go(batch)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("flow %s: a message stays in its group", self.flow.name, exc_info=error)

        task.add_done_callback(done)

    def _let_go(self, batch: Deliveries) -> None:
        self._held[batch] -= 1
        if not self._held[batch]:
            del self._held[batch]

    async def _keep_held(self) -> None:
        """Keep what is in hand from being handed to others, however long the sink takes."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            for batch in list(self._held):
                batch.extend(INVISIBLE_S)

    # --- sending

    async def _send_behind(
        self, earlier: set[asyncio.Task[None]], items: Sequence[tuple[Delivery, FlowEvent]], whole: Deliveries | None
    ) -> None:
        await asyncio.wait(earlier)
        await self._send(items, whole)

    async def _send(self, items: Sequence[tuple[Delivery, FlowEvent]], whole: Deliveries | None = None) -> None:
        """Until what became of each is settled. `whole`: the batch, if they are all of it."""
        while not self.gate.is_stopping:
            outages = await self.gate.passed()
            try:
                await self._sink.send([event for _, event in items])
            except SinkAway as error:
                await self.gate.shut(error)
                continue
            except SinkLost as error:
                self._lost = error
                self.stop()
                return
            except (SinkFailed, SinkRefused, Unfit) as error:
                self.gate.answered(outages)
                if len(items) == 1:
                    self._failed(items[0][0], error)
                else:  # which of them is it?
                    for item in items:
                        await self._send([item])
                return
            self.gate.answered(outages)
            self.counts.sent += len(items)
            if whole is not None:
                whole.ack()
            else:
                for delivery, _ in items:
                    delivery.ack()
            return

    def _failed(self, delivery: Delivery, error: SinkFailed | SinkRefused | Unfit) -> None:
        if not isinstance(error, SinkFailed):
            self._bury(delivery, str(error))
            return
        self.counts.failed += 1
        self.counts.note(str(error))
        if delivery.deliveries >= self.flow.said.attempts:
            self._bury(delivery, f"{error}, {delivery.deliveries} times")
            return
        delivery.retry(max(error.after_s or 0.0, self._pause_s(delivery.deliveries)))

    def _bury(self, delivery: Delivery, reason: str) -> None:
        self.counts.dead += 1
        self.counts.note(reason)
        delivery.reject(reason[:MOST_WHY_CHARACTERS] or "unknown")

    def _pause_s(self, attempt: int) -> float:
        """Before a message is tried again: twice as long each time, and a part of it by chance."""
        said = self.flow.said
        pause_s = min(said.retry_after_s * 2.0 ** min(attempt - 1, 30), max(said.retry_most_s, said.retry_after_s))
        return pause_s * (0.5 + self._chance() / 2)
