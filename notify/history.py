"""Stored messages, for a gateway: any topic filter, in the order of the log, a page at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from store.records.records import lost_of, read_records

PAGE_BYTES = 256 << 10


class Past(NamedTuple):
    """A message: where it is, and what it takes to decide how it is delivered."""

    log_offset: int
    qos: int
    retain: bool
    client_id: bytes
    lost: int = 0  # messages that stood directly in front of it and are lost


class Page(NamedTuple):
    """Messages in the order of the log, and the log_offset to go on from; behind the last page that is `stop`."""

    messages: list[Past]
    next: int


class SoughtPosition(NamedTuple):
    """A log_offset; if that is not what was sought so far, the one to go on from."""

    log_offset: int
    found: bool


class History(Protocol):
    """See Store.history. Both give None where there is no answer: no such position, or the store has a fault."""

    def seek(self, topic_filter: str, where: str, start: int, then: Callable[[SoughtPosition | None], None]) -> None:
        """log_offset that `earliest`, `-1h` or an RFC 3339 time stands for; `start`: to go on from, 0 at first."""

    def page(self, topic_filter: str, start: int, stop: int, then: Callable[[Page | None], None]) -> None:
        """Messages that match, from log_offset `start` on and before `stop`; perhaps none, with more behind."""


def pasts_of(data: bytes) -> list[Past]:
    """The messages that records hold."""
    return [
        Past(record.log_offset, record.qos, record.retain, bytes(record.client_id), lost_of(record))
        for record in read_records(memoryview(data))
    ]
