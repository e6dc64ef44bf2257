"""What was stored before, for a gateway: any topic filter, in the order of the log, a page at a time.

Two of a kind, as with the Store: in this process, and at the other end of a wire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lightqueue.errors import NoSuchPosition
from store.errors import StoreError
from store.records.records import lost_of, read_records
from store.wire import messages as wire
from store.wire.client.requests import Answered, Outcome
from store.wire.frames import Frame
from store.wire.messages import Message

if TYPE_CHECKING:  # a gateway apart needs none of it
    from lightqueue.message_store import MessageStore

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


class Sought(NamedTuple):
    """A log_offset; if that is not what was sought so far, the one to go on from."""

    log_offset: int
    found: bool


class History(Protocol):
    """See Store.history. Both give None where there is no answer: no such position, or the store has a fault."""

    def seek(self, topic_filter: str, where: str, start: int, then: Callable[[Sought | None], None]) -> None:
        """log_offset that `earliest`, `-1h` or an RFC 3339 time stands for; `start`: to go on from, 0 at first."""

    def page(self, topic_filter: str, start: int, stop: int, then: Callable[[Page | None], None]) -> None:
        """Messages that match, from log_offset `start` on and before `stop`; perhaps none, with more behind."""


def _pasts(data: bytes) -> list[Past]:
    return [
        Past(record.log_offset, record.qos, record.retain, bytes(record.client_id), lost_of(record))
        for record in read_records(memoryview(data))
    ]


class LocalHistory:
    """That of a store in this process."""

    def __init__(self, messages: MessageStore) -> None:
        self._messages = messages

    def seek(self, topic_filter: str, where: str, start: int, then: Callable[[Sought | None], None]) -> None:
        from lightqueue.reading.replay import seek

        sought: Sought | None
        try:
            sought = Sought(*seek(self._messages, topic_filter, where, start))
        except (NoSuchPosition, StoreError):
            sought = None
        then(sought)

    def page(self, topic_filter: str, start: int, stop: int, then: Callable[[Page | None], None]) -> None:
        from lightqueue.reading.replay import Wanted, scan

        page: Page | None
        try:
            found = scan(self._messages, Wanted(topic_filter, start, stop), PAGE_BYTES, PAGE_BYTES << 10)
            page = Page(_pasts(found.records), found.next)
        except (NoSuchPosition, StoreError):
            page = None
        then(page)


class RemoteHistory:
    """That of a store at the other end of a wire."""

    def __init__(self, ask: Callable[[Message, Answered], object]) -> None:
        self._ask = ask

    def seek(self, topic_filter: str, where: str, start: int, then: Callable[[Sought | None], None]) -> None:
        def answered(answer: Outcome, _: Frame) -> None:
            then(Sought(answer.log_offset, answer.found) if isinstance(answer, wire.Sought) else None)

        self._ask(wire.Seek(topic_filter, where, start), answered)

    def page(self, topic_filter: str, start: int, stop: int, then: Callable[[Page | None], None]) -> None:
        def answered(answer: Outcome, frame: Frame) -> None:
            then(Page(_pasts(bytes(frame.records)), answer.next) if isinstance(answer, wire.Scanned) else None)

        self._ask(wire.Scan(topic_filter, start, stop, PAGE_BYTES), answered)
