"""One connection of a peer: its interface to the layers above, its output, and the counters of all connections."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from notify.api import Told
from store.log.durations import Durations
from store.wire import messages as wire
from store.wire.credit import Credit
from store.wire.frames import frame_head
from store.wire.messages import WireMessage
from store.wire.operator_messages import Describe, TellFigures

UNSENT_BYTES = 1 << 20  # with so much waiting to be sent no further request is looked at


class Line(Protocol):
    """A connection of a peer."""

    def wake(self) -> None:
        """Send output soon."""

    def tell_taken_over(self, client_id: str) -> None: ...

    def told(self, message: Told | wire.Judge | Describe | TellFigures) -> None: ...

    def close(self, reason: str) -> None:
        """Say goodbye, and nothing more."""


class WireCounters:
    """The counters of all conversations of a server."""

    def __init__(self) -> None:
        self.appends = 0
        self.reads = 0
        self.pushes = 0
        self.events = 0
        self.named_events = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.not_permitted = 0
        self.request_times: defaultdict[str, Durations] = defaultdict(Durations)  # by the name of the request


class WireOutput:
    """Owner of the bytes to send, and of the credit that answers give back. A turn makes one write of them."""

    def __init__(self, figures: WireCounters, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        """`wake`: have take() called soon. `clock`: monotonic seconds."""
        self.chunks: list[bytes] = []
        self.credit = Credit(1)
        self.size_bytes = 0
        self.is_closing = False  # once everything is sent
        self.is_gathering = False  # what is said now goes out at once
        self.said_s = clock()
        self._figures = figures
        self._wake = wake
        self._clock = clock

    @property
    def has_room(self) -> bool:
        return self.size_bytes < UNSENT_BYTES

    def send(self, frame: bytes) -> None:
        self.chunks.append(frame)
        self.size_bytes += len(frame)
        if not self.is_gathering:
            self._wake()

    def tell(self, message: WireMessage, records: bytes = b"", request_id: int = 0) -> None:
        self.send(frame_head(message, request_id, len(records)))
        if records:
            self.send(records)

    def answer(self, request_id: int, message: WireMessage, records: bytes = b"") -> None:
        request, came_s = self.credit.give(request_id)
        self._figures.request_times[request].add(time.perf_counter() - came_s)
        self.tell(message, records, request_id)

    def collect(self) -> list[bytes]:
        """The bytes to send now."""
        chunks, self.chunks = self.chunks, []
        if chunks:
            self._figures.sent_bytes += self.size_bytes
            self.size_bytes = 0
            self.said_s = self._clock()
        return chunks
