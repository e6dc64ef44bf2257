"""Pages of groups' queues from the tier, for groups that stand where retention has dropped the log."""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from lightqueue.errors import NoSuchPosition
from lightqueue.groups.group_queue import GroupQueue
from lightqueue.groups.queue_reads import TierPage
from lightqueue.message_store import MessageStore
from lightqueue.queues.matching import has_wildcard
from lightqueue.queues.table import level_of
from lightqueue.reading.following import time_ms
from notify.local.tier import Tier
from store.errors import StoreError
from store.ratelimit import RateLimitedLog
from store.records._records import Records, records_from, records_size
from store.wire.tier_messages import FindTime, QueueRead, ReadQueue, TierAnswer, TierFault, TimeFound

PAGE_BYTES: Final = 256 << 10  # about: to look at one takes some 0.1 ms of the loop
PAGE_MESSAGES: Final = 2_048
LIMIT_BYTES: Final = 256 << 20  # of a page with a single message
PAGES_OF_GROUP: Final = 4
MOST_BYTES: Final = 64 << 20  # of the pages of all groups
PAUSE_S: Final = 1.0  # before it is tried again
SAID_AGAIN_S: Final = 60.0
COUNTS_DIFFER: Final = (
    "group %s over %s: the store's queue_offsets are %d ahead of the tier's; it goes on by the store's"
)
NOT_WRITTEN: Final = "the tier has not written them yet"
SOMETHING_ELSE: Final = "the tier has answered something else"
PLACE: Final = re.compile(r"[@=]?\d{1,19}")  # in the queue
Located = Callable[[str | TierFault], None]
_events = RateLimitedLog(logging.getLogger("penstock.store"))


def is_counted(topic_filter: str) -> bool:
    """Whether the tier has the queue_offsets of a filter's messages: of a topic, or of `level/#`."""
    return not has_wildcard(topic_filter) or level_of(topic_filter) is not None


class GroupPages:
    """A QueueInTier (lightqueue): the pages of one group, and its question, of which there is one at a time."""

    def __init__(self, owner: GroupTier, queue: GroupQueue) -> None:
        self.queue = queue
        self.why = ""  # it waits
        self._owner = owner
        self._pages: list[TierPage] = []  # the last one was used last
        self._wanted = -1  # the queue_offset that is asked for; -1: none
        self._again_s = 0.0  # not before
        self._ahead: int | None = None  # of the tier's queue_offsets are the store's; None: to be asked
        self._place = (-1, 0)  # a queue_offset, and the log_offset from which on to look for it
        self._said_s = 0.0
        self._is_closed = False

    def page(self, queue_offset: int, kept: int) -> TierPage | None:
        pages = self._pages
        for page in reversed(pages):
            if page.start <= queue_offset < page.behind:
                if page is not pages[-1]:
                    pages.remove(page)
                    pages.append(page)
                return page
        if not self._owner.has_more:
            return TierPage(queue_offset, Records(kept))
        if self._wanted < 0 and self._owner.clock() >= self._again_s:
            self._wanted = queue_offset
            log_offset = self._owner.place_of(self.queue, kept)
            if self._ahead is None:
                self._compare(kept, log_offset)
            else:
                self._ask(self._place[1] if self._place[0] == queue_offset else 0, kept)
        return None

    def waits_for(self, queue_offset: int) -> bool:
        return self._wanted == queue_offset or (bool(self.why) and self._owner.clock() < self._again_s)

    def forget(self, page: TierPage) -> None:
        """The owner has no room for it."""
        self._pages.remove(page)

    def close(self) -> None:
        """The group needs nothing of the tier any more."""
        self._is_closed = True
        for page in self._pages:
            self._owner.gone(page)
        self._pages = []

    def _compare(self, kept: int, log_offset: int) -> None:
        """Ask for the tier's queue_offset of the first message in the log, which is `kept` here and stands at
        `log_offset` (0: the log has none yet). If the tier does not have that message, it says which number is next.

        It differs if the tier began to count later, or has messages of a log that this one was restored from.
        """
        first = self._owner.log_first

        def came(answer: TierAnswer, _: bytes) -> None:
            self._wanted = -1
            if isinstance(answer, QueueRead) and (answer.messages or answer.upcoming >= 0 or answer.next > log_offset):
                number = answer.queue_offset if answer.messages else answer.upcoming
                self._ahead = kept - number if number >= 0 else 0
                if self._ahead:
                    _events.warning("group", COUNTS_DIFFER, *self.queue.state.key, self._ahead)
            elif isinstance(answer, QueueRead):
                self._pause(NOT_WRITTEN)
            else:
                self._pause(answer.why if isinstance(answer, TierFault) else SOMETHING_ELSE)
            self._owner.serve(self.queue)

        question = ReadQueue(self.queue.state.topic_filter, 0, first, max(first, log_offset) + 1, 1, 1)
        self._owner.ask(question, LIMIT_BYTES, came)

    def _ask(self, start: int, kept: int) -> None:
        """Ask for the messages from `_wanted` on, from a log_offset on (0: wherever they are)."""
        stop, wanted = self._owner.log_first, self._wanted

        def came(answer: TierAnswer, records: bytes) -> None:
            self._came(wanted, answer, records, start, stop, kept)

        number = max(0, wanted - (self._ahead or 0))
        question = ReadQueue(self.queue.state.topic_filter, number, start, stop, PAGE_MESSAGES, PAGE_BYTES)
        self._owner.ask(question, LIMIT_BYTES, came)

    def _came(self, wanted: int, answer: TierAnswer, records: bytes, start: int, stop: int, kept: int) -> None:
        self._wanted = -1
        if self._is_closed:
            return
        if not isinstance(answer, QueueRead):
            self._pause(answer.why if isinstance(answer, TierFault) else SOMETHING_ELSE)
        elif answer.messages:
            found = records_from(records, max(wanted, answer.queue_offset + (self._ahead or 0)))
            self._place = found.next, answer.next
            self._add(TierPage(wanted, found))
        elif answer.next >= stop:
            self._add(TierPage(wanted, Records(kept)))
        else:
            self._place = wanted, answer.next
            if answer.next <= start:
                self._pause(NOT_WRITTEN)
        self._owner.serve(self.queue)

    def _add(self, page: TierPage) -> None:
        self.why = ""
        self._pages.append(page)
        if len(self._pages) > PAGES_OF_GROUP:
            self._owner.gone(self._pages.pop(0))
        self._owner.added(self, page)

    def _pause(self, why: str) -> None:
        now_s = self._owner.clock()
        self._again_s = now_s + PAUSE_S
        if why != self.why or now_s - self._said_s > SAID_AGAIN_S:
            self._said_s = now_s
            _events.warning("group", "group %s over %s waits for the tier: %s", *self.queue.state.key, why)
        self.why = why


class GroupTier:
    """Owner of the pages of all groups. `serve`: is told of a group that may go on."""

    def __init__(
        self,
        messages: MessageStore,
        tier: Tier,
        serve: Callable[[GroupQueue], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: monotonic seconds."""
        self.serve = serve
        self.clock = clock
        self.ask = tier.ask
        self._tier = tier
        self._messages = messages
        self._pages: OrderedDict[int, tuple[GroupPages, TierPage]] = OrderedDict()  # the oldest first
        self._used_bytes = 0
        messages.groups.read_history(self)

    @property
    def has_more(self) -> bool:
        return self._tier.has_more

    @property
    def log_first(self) -> int:
        return self._messages.log.first

    def place_of(self, queue: GroupQueue, queue_offset: int) -> int:
        """log_offset of a message in the log; 0: the queue has none there."""
        is_there = queue_offset < queue.queue.next_offset
        return self._messages.queues.log_offset_at(queue.queue, queue_offset) if is_there else 0

    def queue_in_tier(self, queue: GroupQueue) -> GroupPages | None:
        """As a GroupHistory."""
        return GroupPages(self, queue) if self.has(queue.state.topic_filter) else None

    def added(self, pages: GroupPages, page: TierPage) -> None:
        """A group has a page more: the oldest pages go if there are too many."""
        self._pages[id(page)] = pages, page
        self._used_bytes += records_size(page.records)
        while self._used_bytes > MOST_BYTES and len(self._pages) > 1:
            owner, oldest = next(iter(self._pages.values()))
            self.gone(oldest)
            owner.forget(oldest)

    def gone(self, page: TierPage) -> None:
        """A group has a page no more."""
        del self._pages[id(page)]
        self._used_bytes -= records_size(page.records)

    # --- where a group begins

    def locate(self, topic_filter: str, start: str, then: Located) -> bool:
        """Ask the tier where `earliest` or a time is. `then` gets it as `@7`, or unchanged if the log knows it, or why
        there is no answer. Returns False if the tier need not be asked: `then` is not called.
        """
        if not self.has(topic_filter) or PLACE.fullmatch(start) or start in ("latest", "now"):
            return False
        if start == "earliest":
            if self._tier.is_served:
                self._find_number(topic_filter, 0, start, then)
            return self._tier.is_served
        try:
            at_ms = time_ms(start)
            if at_ms > self._messages.log.timestamp_ms(self.log_first):
                return False
        except (NoSuchPosition, LookupError, StoreError):
            return False
        self._find_time(topic_filter, start, max(0, at_ms), 0, then)
        return True

    def has(self, topic_filter: str) -> bool:
        """Whether the tier may have messages of a filter that the log does not have, and their queue_offsets."""
        return self._tier.has_more and is_counted(topic_filter)

    def _find_time(self, topic_filter: str, start: str, at_ms: int, log_offset: int, then: Located) -> None:
        stop = self.log_first

        def came(answer: TierAnswer, _: bytes) -> None:
            match answer:
                case TimeFound(found, True) if found >= stop:
                    then(start)
                case TimeFound(found, True):
                    self._find_number(topic_filter, found, start, then)
                case TimeFound(found, False):
                    self._find_time(topic_filter, start, at_ms, found, then)
                case _:
                    then(answer if isinstance(answer, TierFault) else TierFault(SOMETHING_ELSE))

        self._tier.ask(FindTime(topic_filter, at_ms, log_offset, stop), 1, came)

    def _find_number(self, topic_filter: str, log_offset: int, start: str, then: Located) -> None:
        """The queue_offset of the first message from a log_offset on."""
        stop = self.log_first

        def came(answer: TierAnswer, _: bytes) -> None:
            match answer:
                case QueueRead(_, number, queue_offset) if number:
                    then(f"@{queue_offset}")
                case QueueRead(following, 0, _) if log_offset < following < stop:
                    self._find_number(topic_filter, following, start, then)
                case QueueRead() | TierFault() if start == "earliest" or isinstance(answer, QueueRead):
                    then(start)  # it is found once the group reads
                case _:
                    then(answer if isinstance(answer, TierFault) else TierFault(SOMETHING_ELSE))

        self._tier.ask(ReadQueue(topic_filter, 0, log_offset, stop, 1, 1), LIMIT_BYTES, came)
