"""A gateway's store with spans of the messages that its clients publish, and of those that it delivers.

All of a gateway's messages pass its Store: in batches on their way in, in ranges on their way out. So nothing else of a
gateway knows of tracing, and without it nothing of this is loaded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.trace import Span

from lightqueue.queues._queues import Queue
from notify.api import GroupConsumer, LeasedMessages, Placed
from notify.local.store import LocalAppends, LocalGroups, LocalQueues, LocalStore
from notify.remote.appends import RemoteAppends
from notify.remote.groups import RemoteGroups
from notify.remote.queues import RemoteQueues
from notify.remote.store import RemoteStore
from penstock.tracing.batches import FoundMessage, changed, find_traced
from penstock.tracing.spans import Tracing, context_of, fail
from store.errors import RequestRefused, StoreError
from store.records._records import RecordBatch, Records, any_with, count_with, records_bytes
from store.records.trace_context import NEEDLE
from store.state.group_settings import GroupSettings
from store.state.group_states import GroupKey
from store.wire.client.requests import Outcome, PendingRequest
from store.wire.messages import Append

if TYPE_CHECKING:
    from gateway.mqtt._mqtt import Reader

MOST_UNSAFE = 10_000
"""Spans of messages that are not safe yet; beyond that the oldest one ends early."""
MOST_CHANGED_BYTES = 4 << 20
"""A batch of more bytes begins no trace, as it would grow."""


class ReaderPlace(NamedTuple):
    """Where a reader of a queue was before a range was delivered."""

    reader: Reader
    position: int


class TracedRange(NamedTuple):
    """A traced message in a range that was read for these readers."""

    message: FoundMessage
    queue_offset: int
    readers: list[ReaderPlace]
    began_ns: int


class GatewaySpans:
    """The spans of one gateway: those of messages that are not safe yet, and of ranges of this turn."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._unsafe: deque[tuple[int, Span]] = deque()  # mark of the append, and the span
        self._ranges: list[TracedRange] = []

    # --- in

    def begin(self, batch: RecordBatch, placed: Placed | None) -> tuple[RecordBatch, Placed | None, list[Span]]:
        """Begin the spans of a batch's messages; the batch with their contexts in it."""
        tracing = self._tracing
        count, has_traceparent = count_with(batch, NEEDLE)
        chosen = set(tracing.sampler.chosen(count)) if batch.size <= MOST_CHANGED_BYTES else set()
        if not (chosen or has_traceparent) or tracing.bound.is_used_up:
            return batch, placed, []
        data = bytes(batch)
        messages = list(find_traced(data, tracing.bound.take, chosen))
        spans = [tracing.publish(message) for message in messages]
        if not spans:
            return batch, placed, []
        made = changed(data, [(message, context_of(span)) for message, span in zip(messages, spans, strict=True)])
        return made.batch, made.placed(placed) if placed is not None else None, spans

    @contextmanager
    def publishing(
        self, batch: RecordBatch, placed: Placed | None
    ) -> Iterator[tuple[RecordBatch, Placed | None, list[Span]]]:
        """As begin(), around the append; a StoreError there ends the spans as failed."""
        begun = self.begin(batch, placed)
        try:
            yield begun
        except StoreError as error:
            for span in begun[2]:
                fail(span, str(error))
            raise

    def appended(self, spans: list[Span], mark: int) -> None:
        self._unsafe += [(mark, span) for span in spans]
        while len(self._unsafe) > MOST_UNSAFE:
            self._unsafe.popleft()[1].end()

    def safe(self, mark: int) -> None:
        """Every append up to this mark is safe."""
        while self._unsafe and self._unsafe[0][0] <= mark:
            self._unsafe.popleft()[1].end()

    def refused(self, mark: int, reason: str) -> None:
        """The append with this mark was not taken."""
        self.safe(mark - 1)
        while self._unsafe and self._unsafe[0][0] <= mark:
            fail(self._unsafe.popleft()[1], reason)

    # --- out

    def read(self, queue: Queue, records: Records | None) -> None:
        """A range of a queue was read to be delivered to readers of that queue."""
        if records is None or not queue.readers or not any_with(records, NEEDLE) or self._tracing.bound.is_used_up:
            return
        data = records_bytes(records)
        began_ns = time.time_ns()
        readers = [ReaderPlace(reader, reader.position) for reader in queue.readers if reader.link is not None]
        self._ranges += [
            TracedRange(message, records.first + message.number, readers, began_ns)
            for message in find_traced(data, self._tracing.bound.take)
        ]

    def read_many(self, queues: Sequence[Queue], found: Sequence[Records | None]) -> None:
        """As read() for each of some queues."""
        for queue, records in zip(queues, found, strict=True):
            self.read(queue, records)

    def leased(self, found: LeasedMessages, group: str) -> None:
        """Messages of a shared subscription were handed to this gateway for one of its clients."""
        if not any_with(found.records, NEEDLE) or self._tracing.bound.is_used_up:
            return
        for message in find_traced(records_bytes(found.records), self._tracing.bound.take):
            more: dict[str, str | int] = {"messaging.consumer.group.name": group, "penstock.subscribers": 1}
            self._tracing.deliver(message, time.time_ns(), more)

    def delivered(self) -> None:
        """The turn's deliveries are over: one span for each traced message that readers passed."""
        ranges, self._ranges = self._ranges, []
        reached: dict[int, tuple[TracedRange, set[object]]] = {}
        for each in ranges:
            passed = {
                reader.session for reader, position in each.readers if position <= each.queue_offset < reader.position
            }
            if passed:
                reached.setdefault(each.message.log_offset, (each, set()))[1].update(passed)
        for each, sessions in reached.values():
            more: dict[str, str | int] = {"penstock.subscribers": len(sessions)}
            if len(sessions) == 1:
                more["messaging.client.id"] = str(getattr(next(iter(sessions)), "client_id", ""))
            self._tracing.deliver(each.message, each.began_ns, more)

    @property
    def has_ranges(self) -> bool:
        return bool(self._ranges)

    @property
    def has_unsafe(self) -> bool:
        return bool(self._unsafe)


class TracedLocalAppends(LocalAppends):
    spans: GatewaySpans

    def append(self, batch: RecordBatch, placed: Placed | None = None) -> None:
        with self.spans.publishing(batch, placed) as (changed_batch, changed_placed, spans):
            super().append(changed_batch, changed_placed)
        if spans:
            self.spans.appended(spans, self.mark)


class TracedLocalQueues(LocalQueues):
    spans: GatewaySpans

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records:
        records = super().read(queue, start, max_records, max_bytes)
        self.spans.read(queue, records)
        return records

    def read_many(self, queues: list[Queue], starts: list[int], most: int, max_bytes: int) -> Sequence[Records | None]:
        found = super().read_many(queues, starts, most, max_bytes)
        self.spans.read_many(queues, found)
        return found


class TracedLocalGroups(LocalGroups):
    spans: GatewaySpans

    def join(
        self,
        group: GroupKey,
        consumer: str,
        if_new: GroupSettings,
        start: str,
        handed: Callable[[LeasedMessages], None],
        then: Callable[[GroupConsumer | str], None],
        user: str | None = None,
    ) -> None:
        super().join(group, consumer, if_new, start, traced_handing(self.spans, group, handed), then, user)


class TracedLocalStore(LocalStore):
    """The store in this process, for a gateway with tracing."""

    _appends_of, _queues_of, _groups_of = TracedLocalAppends, TracedLocalQueues, TracedLocalGroups
    appends: TracedLocalAppends
    queues: TracedLocalQueues
    groups: TracedLocalGroups

    def trace(self, spans: GatewaySpans) -> None:
        """To be called once, before anything else."""
        self.spans = self.appends.spans = self.queues.spans = self.groups.spans = spans

    def turn_ends(self) -> None:
        super().turn_ends()
        _settle(self.spans, self.appends.safe_mark)

    def tick(self) -> bool:
        self.spans.safe(self.appends.safe_mark)
        return super().tick()


class TracedRemoteAppends(RemoteAppends):
    spans: GatewaySpans

    def append(self, batch: RecordBatch, placed: Placed | None = None) -> None:
        with self.spans.publishing(batch, placed) as (changed_batch, changed_placed, spans):
            super().append(changed_batch, changed_placed)
        if spans:
            self.spans.appended(spans, self.mark)

    def answered(self, request: PendingRequest, answer: Outcome) -> None:
        if isinstance(answer, RequestRefused) and isinstance(request.message, Append):
            self.spans.refused(request.message.sequence, str(answer))
        super().answered(request, answer)
        self.spans.safe(self.safe_mark)

    def begin_anew(self, appended: int) -> int:
        self.spans.refused(self.mark, "the store gave up on this gateway")
        return super().begin_anew(appended)


class TracedRemoteQueues(RemoteQueues):
    spans: GatewaySpans

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records | None:
        records = super().read(queue, start, max_records, max_bytes)
        self.spans.read(queue, records)
        return records

    def read_many(self, queues: list[Queue], starts: list[int], most: int, max_bytes: int) -> list[Records | None]:
        found = super().read_many(queues, starts, most, max_bytes)
        self.spans.read_many(queues, found)
        return found


class TracedRemoteGroups(RemoteGroups):
    spans: GatewaySpans

    def join(
        self,
        group: GroupKey,
        consumer: str,
        if_new: GroupSettings,
        start: str,
        handed: Callable[[LeasedMessages], None],
        then: Callable[[GroupConsumer | str], None],
        user: str | None = None,
    ) -> None:
        super().join(group, consumer, if_new, start, traced_handing(self.spans, group, handed), then, user)


class TracedRemoteStore(RemoteStore):
    """The store in another process, for a gateway with tracing."""

    _appends_of, _queues_of, _groups_of = TracedRemoteAppends, TracedRemoteQueues, TracedRemoteGroups
    appends: TracedRemoteAppends
    queues: TracedRemoteQueues
    groups: TracedRemoteGroups

    def trace(self, spans: GatewaySpans) -> None:
        """To be called once, before anything else."""
        self.spans = self.appends.spans = self.queues.spans = self.groups.spans = spans

    def turn_ends(self) -> None:
        super().turn_ends()
        _settle(self.spans, self.appends.safe_mark)


def _settle(spans: GatewaySpans, safe_mark: int) -> None:
    if spans.has_unsafe:
        spans.safe(safe_mark)
    if spans.has_ranges:
        spans.delivered()


def traced_handing(
    spans: GatewaySpans, group: GroupKey, handed: Callable[[LeasedMessages], None]
) -> Callable[[LeasedMessages], None]:
    """`handed`, with a span for each traced message that it is handed."""

    def hand(found: LeasedMessages) -> None:
        spans.leased(found, group[0])
        handed(found)

    return hand
