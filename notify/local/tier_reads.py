"""Reads of history that the log does not have: what the tier is asked, and what becomes of its answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from lightqueue.errors import NoSuchPosition
from lightqueue.message_store import MessageStore
from lightqueue.reading.finding import FindQuery
from lightqueue.reading.following import time_ms
from lightqueue.reading.replay import ScanQuery, scan
from notify.local.tier import Tier
from store.errors import StoreError
from store.wire import messages as wire
from store.wire.messages import FailureCode, WireMessage
from store.wire.tier_messages import (
    MOST_PLACES,
    FindKey,
    FindQueueOffset,
    FindTime,
    KeyFound,
    PlacesRead,
    QueueRead,
    RangeRead,
    ReadPlaces,
    ReadRange,
    TierAnswer,
    TierFault,
    TierQuestion,
    TimeFound,
)

Past = wire.Scan | wire.Seek | wire.Get | wire.Find
Then = Callable[[WireMessage, bytes], None]
_AT_QUEUE_OFFSET = re.compile(r"@(\d{1,19})")


class TierReads:
    """Requests that read history, as far as the tier has to answer them."""

    def __init__(self, messages: MessageStore, tier: Tier) -> None:
        self._messages = messages
        self._tier = tier

    @property
    def seam(self) -> int:
        """log_offset where the log takes over."""
        return self._tier.seam

    @property
    def table_url(self) -> str | None:
        """Like Tier.url."""
        return self._tier.url

    def question(self, request: WireMessage, most_bytes: int) -> TierQuestion | None:
        """The question for the tier that a request needs; None: the log has the answer."""
        if not self._tier.has_more:
            return None
        try:
            return self._asked(request, most_bytes)
        except NoSuchPosition:
            return None  # the log says what is wrong

    def _asked(self, request: WireMessage, most_bytes: int) -> TierQuestion | None:
        tier = self._tier
        match request:
            case wire.Scan(topic_filter, start, stop, max_bytes, tag) if start < min(tier.seam, stop):
                return ReadRange(topic_filter, start, min(stop, tier.seam), tag, min(max_bytes, most_bytes))
            case wire.Seek(topic_filter, where, start) if start < tier.seam:
                return self._sought(topic_filter, where, start)
            case wire.Get(log_offset) if tier.has(log_offset):
                return ReadPlaces([log_offset])
            case wire.Find() if 0 < request.before <= tier.seam:
                wanted = FindQuery.parse(request.key, request.topic_filter, request.since, request.until)
                times = wanted.since_ms, wanted.until_ms
                return FindKey(request.key, request.topic_filter, *times, request.before, request.limit)
        return None

    def _sought(self, topic_filter: str, where: str, start: int) -> TierQuestion | None:
        log, seam = self._messages.log, self._tier.seam
        if where == "earliest":
            return FindTime(topic_filter, 0, 0, seam) if self._tier.first is None else None
        if where == "now" or where.startswith("="):
            return None
        position = _AT_QUEUE_OFFSET.fullmatch(where)
        if position is not None:
            queue = self._messages.queues.stored(topic_filter)
            number = int(position[1])
            if queue is not None and number >= self._messages.queues.first_offset(queue):
                return None
            return FindQueueOffset(topic_filter, number, start, seam)
        at_ms = time_ms(where)
        with suppress(LookupError, StoreError):
            if at_ms > log.timestamp_ms(log.first):
                return None
        return FindTime(topic_filter, max(0, at_ms), start, seam)

    def ask(
        self,
        request: WireMessage,
        question: TierQuestion,
        limit_bytes: int,
        then: Then,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`then` gets the answer to a request, and its records. `is_ready`: whether it can be taken now."""

        def came(answer: TierAnswer, records: bytes) -> None:
            if (
                isinstance(answer, RangeRead) and isinstance(request, wire.Scan) and isinstance(question, ReadRange)
                and answer.lost and not answer.messages and question.stop <= answer.next < request.stop
            ):  # fmt: skip
                self._read_behind_loss(request, question.max_bytes, answer, limit_bytes, then, is_ready)
            else:
                then(*self._made(request, answer, records))

        self._tier.ask(question, limit_bytes, came, is_ready)

    def _read_behind_loss(
        self,
        request: wire.Scan,
        max_bytes: int,
        answer: RangeRead,
        limit_bytes: int,
        then: Then,
        is_ready: Callable[[], bool],
    ) -> None:
        """Something is lost in front of the log, with no message of the tier after it: the log's first one says so."""
        again = self.question(request, max_bytes) if self.has(answer.next) else None
        if again is not None:
            self.ask(request, again, limit_bytes, then, is_ready)  # the log begins elsewhere by now
            return
        wanted = ScanQuery(request.topic_filter, answer.next, request.stop, request.tag.encode(), answer.lost)
        try:
            found = scan(self._messages, wanted, max_bytes, limit_bytes)
        except NoSuchPosition as error:
            then(wire.Failed(FailureCode.NO_SUCH_POSITION, str(error)), b"")
        except StoreError as error:
            then(wire.Failed(FailureCode.UNAVAILABLE, str(error)), b"")
        else:
            then(wire.Scanned(found.next, self._messages.end, found.queue_offset, found.number), found.records)

    def _made(self, request: WireMessage, answer: TierAnswer, records: bytes) -> tuple[WireMessage, bytes]:
        match answer:
            case RangeRead(following, number, queue_offset, _):
                return wire.Scanned(following, self._messages.end, queue_offset, number), records
            case TimeFound(log_offset, found):
                is_in_log = found and log_offset >= self._tier.seam  # it is to be looked for there
                return wire.Sought(log_offset, found and not is_in_log), b""
            case PlacesRead([True], queue_offset):
                return wire.Got(queue_offset), records
            case PlacesRead():
                text = "no message begins there, or it is not kept any more"
                return wire.Failed(FailureCode.NO_SUCH_POSITION, text), b""
            case KeyFound(before, number):
                return wire.Found(before, number), records
            case TierFault(why):
                return wire.Failed(FailureCode.UNAVAILABLE, why), b""
            case QueueRead():  # to a question that no request asks
                return wire.Failed(FailureCode.UNAVAILABLE, "the tier has answered something else"), b""

    def goes_on(self, answer: WireMessage) -> WireMessage:
        """The log's answer to a search; where the log has no more, it goes on in the tier."""
        if isinstance(answer, wire.Found) and not answer.before and self._tier.has_more:
            return wire.Found(self._tier.seam, answer.count)
        return answer

    def known(self, where: str) -> int | None:
        """The log_offset that `earliest` stands for, or that `=4096` names, if that is in the tier; else None."""
        if where == "earliest":
            return self._tier.first
        if where.startswith("=") and where[1:].isdecimal() and self._tier.has(int(where[1:])):
            return int(where[1:])
        return None

    def has(self, log_offset: int) -> bool:
        """Whether a read from this log_offset on begins in the tier."""
        return 0 <= log_offset < self._tier.seam and self._tier.has_more

    # --- messages by their places

    def not_in_log(self, log_offsets: list[int]) -> list[int]:
        """The log_offsets that must be read from the tier; the log has the others, whatever `tier.reads` says."""
        first = self._messages.log.first
        if not self._tier.has_more or not log_offsets or min(log_offsets) >= first:
            return []
        return [each for each in log_offsets if each < first]

    def read_places(
        self,
        log_offsets: list[int],
        limit_bytes: int,
        then: Callable[[dict[int, bytes] | str], None],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`then` gets the records at places of the tier, of the first of them if they get too long (empty: there is
        none), or why there is no answer."""

        def came(answer: TierAnswer, records: bytes) -> None:
            if not isinstance(answer, PlacesRead):
                then(answer.why if isinstance(answer, TierFault) else "the tier has answered something else")
                return
            parts, there = _parts(records), zip(log_offsets, answer.found, strict=False)
            then({log_offset: next(parts) if is_there else b"" for log_offset, is_there in there})

        self._tier.ask(ReadPlaces(log_offsets[:MOST_PLACES]), limit_bytes, came, is_ready)


def _parts(records: bytes) -> Iterator[bytes]:
    """Each record of some records in log format."""
    at = 0
    while at < len(records):
        size = int.from_bytes(records[at : at + 4], "little")
        yield records[at : at + size]
        at += size
