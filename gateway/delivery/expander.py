"""Decompression of stored messages for MQTT clients, once for all readers of a message.

Decompressed records are kept for a while, within a bound, so that readers at different places share one copy. A large
payload is decompressed in steps, one payload after another; sessions that come to it meanwhile wait.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

from gateway.sessions.session import Session
from notify.steps import in_steps
from store.ratelimit import RateLimitedLog
from store.records._records import Records, blank_record, expanded, fill_record, head_of, payload_at
from store.records.compression import BadFrame, NoLibrary, pieces, plain, stated_bytes

EXPANDED_BYTES = 1 << 20  # of payloads that are decompressed at a time: one message, if it alone has more
KEPT_BYTES = 16 << 20  # of decompressed records that are kept; the one used last stays in any case
AT_ONCE_BYTES = 256 << 10  # a payload up to this size is decompressed at once: 0.25 ms
MOST_PENDING = 8  # large payloads that wait, of some MiB each; one more is decompressed at once

T = TypeVar("T")

_log = RateLimitedLog(logging.getLogger(__name__))


@dataclass(slots=True, eq=False)
class _Pending:
    """A record whose payload is decompressed in steps, and the sessions that wait for it."""

    record: bytes  # with room for the payload
    frame: bytes
    sessions: dict[Session, None] = field(default_factory=dict)


class Expander:
    """Owner of the records that were decompressed last, and of the records that are being decompressed.

    A session that has waited does not wait again until it finds a record that is kept. Otherwise a session that needs
    several payloads at a time could wait for ever, as other payloads push them out.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], most_bytes: int = KEPT_BYTES) -> None:
        """`call_soon` is the loop's."""
        self._call_soon = call_soon
        self._most_bytes = most_bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()  # by header; empty: the frame cannot be decompressed
        self._pending: dict[bytes, _Pending] = {}  # by header, in the order in which they were wanted
        self._impatient: set[Session] = set()
        self.kept_bytes = 0

    def as_published(
        self, records: Records, most_bytes: int = EXPANDED_BYTES, start: int = 0, count: int = -1
    ) -> Records:
        """The same messages with their payloads as they were published; `records` itself where that is so anyway.

        The range ends early once its payloads have `most_bytes`. A payload that cannot be decompressed stays as it is:
        the message is dropped where it would be sent.
        """
        found = expanded(records, self._at_once, most_bytes, start, count)
        assert found is not None
        return found

    def for_session(
        self, session: Session, records: Records, most_bytes: int = EXPANDED_BYTES, start: int = 0, count: int = -1
    ) -> Records | None:
        """Like as_published(), but the range may end before a large payload.

        None: the range begins with a payload that is being decompressed; accept_more() tells the session when that is
        done.
        """
        return expanded(records, partial(self._for_session, session), most_bytes, start, count)

    def left(self, session: Session) -> None:
        """Forget a session whose connection has ended."""
        self._impatient.discard(session)

    def _at_once(self, records: Records, i: int) -> bytes | None:
        head = head_of(records, i)
        whole = self._kept.get(head)
        if whole is not None:
            self._kept.move_to_end(head)
            return whole or None
        whole = _readable(partial(_expand, records, i))
        self._keep(head, whole)
        return whole or None

    def _for_session(self, session: Session, records: Records, i: int) -> bytes | Literal[False] | None:
        head = head_of(records, i)
        if head in self._kept:
            self._impatient.discard(session)
            return self._at_once(records, i)
        pending = self._pending.get(head)
        if pending is None:
            frame = payload_at(records, i)
            size_bytes = _readable(partial(stated_bytes, frame)) or 0
            is_small = size_bytes <= AT_ONCE_BYTES
            if is_small or session in self._impatient or len(self._pending) == MOST_PENDING:
                return self._at_once(records, i)
            pending = self._pending[head] = _Pending(blank_record(records, i, size_bytes), frame)
            pending.sessions[session] = None
            if len(self._pending) == 1:
                in_steps(self._work(), self._call_soon)
            return False
        pending.sessions[session] = None
        return False

    def _work(self) -> Iterator[None]:
        yield  # the session that asked for the first one goes on with its turn
        while self._pending:
            head, pending = next(iter(self._pending.items()))
            whole: bytes | None = pending.record
            try:
                at = 0
                for piece in pieces(pending.frame):
                    fill_record(pending.record, at, piece)
                    at += len(piece)
                    yield
            except (BadFrame, NoLibrary) as error:
                _note_unreadable(error)
                whole = None
            del self._pending[head]
            self._keep(head, whole)
            for session in pending.sessions:
                if session.link is not None:
                    self._impatient.add(session)
                    session.link.accept_more()
            yield

    def _keep(self, head: bytes, whole: bytes | None) -> None:
        whole = whole or b""
        self._kept[head] = whole
        self.kept_bytes += len(head) + len(whole)
        while self.kept_bytes > self._most_bytes and len(self._kept) > 1:
            self.kept_bytes -= sum(map(len, self._kept.popitem(last=False)))


def _expand(records: Records, i: int) -> bytes:
    payload = plain(payload_at(records, i))
    record = blank_record(records, i, len(payload))
    fill_record(record, 0, payload)
    return record


def _readable(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (BadFrame, NoLibrary) as error:
        _note_unreadable(error)
        return None


def _note_unreadable(error: Exception) -> None:
    _log.error("unreadable_payload", "a compressed payload cannot be delivered: %s", error)
