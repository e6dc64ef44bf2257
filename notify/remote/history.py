"""Stored messages, from the log of a store in another process."""

from __future__ import annotations

from collections.abc import Callable

from notify.history import PAGE_BYTES, Page, SoughtPosition, pasts_of
from store.wire import messages as wire
from store.wire.client.requests import Answered, Outcome
from store.wire.frames import Frame
from store.wire.messages import WireMessage


class RemoteHistory:
    """A History (notify.history) over the wire."""

    def __init__(self, ask: Callable[[WireMessage, Answered], object]) -> None:
        self._ask = ask

    def seek(self, topic_filter: str, where: str, start: int, then: Callable[[SoughtPosition | None], None]) -> None:
        def answered(answer: Outcome, _: Frame) -> None:
            then(SoughtPosition(answer.log_offset, answer.found) if isinstance(answer, wire.Sought) else None)

        self._ask(wire.Seek(topic_filter, where, start), answered)

    def page(self, topic_filter: str, start: int, stop: int, then: Callable[[Page | None], None]) -> None:
        def answered(answer: Outcome, frame: Frame) -> None:
            then(Page(pasts_of(bytes(frame.records)), answer.next) if isinstance(answer, wire.Scanned) else None)

        self._ask(wire.Scan(topic_filter, start, stop, PAGE_BYTES), answered)
