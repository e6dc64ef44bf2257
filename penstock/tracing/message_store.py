"""A MessageStore with spans of what it stores: from the append until the message is as safe as the policy promises."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Lock

from opentelemetry.trace import Span

from lightqueue.message_store import MessageStore
from lightqueue.opening import OpenStore
from penstock.tracing.batches import find_traced
from penstock.tracing.spans import Tracing, fail
from store.errors import StoreError
from store.records._records import RecordBatch, count_with
from store.records.trace_context import NEEDLE
from store.settings import StoreSettings

MOST_UNSAFE = 10_000
"""Spans that wait for the disk; beyond that the oldest one ends early."""


class TracedMessageStore(MessageStore):
    """Appends of gateways and clients are traced; what the store itself appends is not."""

    def __init__(
        self,
        tracing: Tracing,
        settings: StoreSettings,
        on_safe: Callable[[], None],
        on_replayed: Callable[[int, int], None],
        opened: OpenStore | None = None,
    ) -> None:
        self._tracing = tracing
        self._unsafe: deque[tuple[int, Span]] = deque()  # log_offset after a message, and its span
        self._ending = Lock()
        self._is_open = False

        def flushed() -> None:
            self._end_safe()
            on_safe()

        super().__init__(settings, flushed, on_replayed, opened=opened)
        self._is_open = True

    def append(self, batch: RecordBatch, is_awaited: bool = True) -> int:
        if not self._is_traced(batch):
            return super().append(batch, is_awaited)
        return self._traced(batch, lambda: MessageStore.append(self, batch, is_awaited))

    def append_in_steps(self, batch: RecordBatch) -> int:
        if not self._is_traced(batch):
            return super().append_in_steps(batch)
        return self._traced(batch, lambda: MessageStore.append_in_steps(self, batch))

    def _is_traced(self, batch: RecordBatch) -> bool:
        _, has_traceparent = count_with(batch, NEEDLE)
        return has_traceparent and not self._tracing.bound.is_used_up

    def _traced(self, batch: RecordBatch, store: Callable[[], int]) -> int:
        began_ns = time.time_ns()
        found = list(find_traced(bytes(batch), self._tracing.bound.take))
        try:
            start = store()
        except StoreError as error:
            for message in found:
                fail(self._tracing.store(message, began_ns, -1), str(error))
            raise
        for message in found:
            span = self._tracing.store(message, began_ns, start + message.start)
            self._unsafe.append((start + message.start + message.length, span))
            if len(self._unsafe) > MOST_UNSAFE:
                self._unsafe.popleft()[1].end()
        self._end_safe()
        return start

    def _end_safe(self) -> None:
        """End the spans of what is safe by now. The flusher's thread calls it, too."""
        if not self._is_open or not self._unsafe:
            return
        with self._ending:
            safe = self.log.safe
            while self._unsafe and self._unsafe[0][0] <= safe:
                self._unsafe.popleft()[1].end()
