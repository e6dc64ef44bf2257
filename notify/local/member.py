"""Who uses a message store in this process: a gateway here, or the store's end of one somewhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from lightqueue.errors import NoSuchPosition
from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue, read_at
from lightqueue.reading.following import Followed, follow, locate
from notify.api import EVENTS, NOBODY, Found, GroupSeat, Handed, Listener, Placed, RetainedPage
from notify.bans import StoreBans
from notify.history import History, LocalHistory
from notify.local.group_seats import open_seat
from notify.owners import UNJUDGED, Claimant, ClaimRefused, Holder
from notify.quotas import LocalQuotas
from store.records._records import RecordBatch, Records
from store.state.changes import GroupAdvanced
from store.state.group_settings import GroupSettings
from store.state.group_states import GroupKey, Maker
from store.state.sessions import SessionState

if TYPE_CHECKING:
    from notify.local.hub import Hub

MOST_NAMED = 4_096  # queues that a member is yet to be told of by name; of more only those that it follows are kept
Answer = Callable[[SessionState | ClaimRefused | None], None]


class Member:
    """A Store (notify.api) over a MessageStore in this process: every answer comes at once."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.name = name
        self.is_gone = False
        self.anonymous = Holder(self, "")  # of all its connections without a user
        self.is_certain = True
        self.reached_s, self.heard_s = 0.0, math.inf
        self.unconfirmed = "the disk did not confirm a flush"
        self.listener: Listener = NOBODY
        self.floors: dict[Queue, int] = {}
        self._hub = hub
        self.readers = hub.readers
        self.bans: StoreBans = hub.bans
        self.quotas = LocalQuotas(hub.quotas, self)
        self.history: History = LocalHistory(hub.messages)
        self.events = dict.fromkeys(EVENTS, 0)
        self._news: dict[Queue, None] = {}
        self._named: dict[Queue, None] = {}
        self._any_grew = False
        self._taken: list[GroupAdvanced] = []
        self._messages = messages = hub.messages
        self.messages: MessageStore | None = messages
        self.patience_s = messages.settings.flush_timeout_ms / 1000
        self.max_delay_s = messages.settings.max_delay_s
        self.weigh: Callable[[bytes], int] | None = messages.queues.dispatcher.weigh
        has_live_only = bool(messages.settings.live_only)
        self.is_live_only: Callable[[bytes], bool] | None = messages.queues.is_live_only if has_live_only else None

    # --- the way in

    def append(self, batch: RecordBatch, placed: Placed | None = None) -> None:
        start = self.append_at(batch, is_awaited=False)
        if placed is not None:
            placed(0, batch.size, start)

    def await_safe(self) -> None:
        self._messages.log.flusher.catch_up()

    def append_at(self, batch: RecordBatch, is_awaited: bool = True) -> int:
        """As append(); the log_offset of the first record."""
        taken, self._taken = self._taken, []
        start = self._messages.append(batch, is_awaited)
        if taken:
            self._hub.consumers.took(taken)
        self._hub.settle(self)
        return start

    def append_in_steps(self, batch: RecordBatch, applied: Callable[[], None] | None = None) -> int:
        """As append_at(); see MessageStore.append_in_steps. Growth is told once all is applied.

        First `applied` is called, which may not store anything.
        """
        start = self._messages.append_in_steps(batch)
        applying = self._messages.applying
        if not applying.left_bytes:
            if applied is not None:
                applied()
            self._hub.settle(self)
        elif applied is not None:
            applying.then(applied)
        return start

    @property
    def end(self) -> int:
        return self._messages.end

    @property
    def safe(self) -> int:
        return self._messages.safe

    @property
    def flushed(self) -> int:
        """Everything before this log_offset is on the disk, whatever the flush policy promises."""
        return self._messages.log.flusher.flushed

    def commit(self) -> None:
        """Have the page cache hold everything that was appended. Raises StoreFull or DiskFailed."""
        self._messages.log.commit()

    def hurry(self) -> None:
        """Have everything that was committed go to the disk now; the listener hears of it."""
        self._messages.log.flusher.hurry()

    def flush_fault(self) -> str:
        """Why nothing more gets to the disk; empty if it does."""
        error = self._messages.log.flusher.error
        return str(error) if error is not None else ""

    mark = end
    safe_mark = safe
    has_sessions = True

    # --- sessions

    def claim(self, client_id: str, clean_start: bool, then: Answer, claimant: Claimant = UNJUDGED) -> None:
        self._hub.claim(self, client_id, clean_start, then, claimant)

    def release(self, client_id: str) -> None:
        self._hub.release(self, client_id)

    def hold_again(self, client_id: str, user: str | None) -> None:
        self._hub.hold_again(self, client_id, user)

    # --- following queues

    @property
    def generation(self) -> int:
        return self._messages.queues.dispatcher.generation

    def take_grown(self) -> list[Queue]:
        return self._hub.take_grown(self)

    def follow(
        self, topic_filter: str, start: int, history: bool, spills: bool, then: Callable[[list[Followed]], None]
    ) -> None:
        followed = follow(self._messages, topic_filter, start, history, spills)
        for each in followed:
            self._hub.follow(self, each.queue, each.position)
        then(followed)

    def unfollow(self, queue: Queue) -> None:
        self._hub.unfollow(self, queue)

    def locate(self, topic_filter: str, where: str, then: Callable[[int | None], None]) -> None:
        try:
            position: int | None = locate(self._messages, topic_filter, where)
        except NoSuchPosition:
            position = None
        then(position)

    @property
    def congested(self) -> bool:
        return self._hub.pace.is_slow

    def lags(self, is_behind: bool) -> None:
        self._hub.pace.heard(self, is_behind)

    def needed_from(self, floors: Iterable[tuple[Queue, int]]) -> None:
        self._hub.needed_from(self, floors)

    # --- reading

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records:
        return self._messages.queues.read(queue, start, max_records, max_bytes)

    def read_many(self, queues: list[Queue], starts: list[int], most: int, max_bytes: int) -> Sequence[Records | None]:
        return self._messages.queues.read_many(queues, starts, most, max_bytes)

    def read_at(self, log_offsets: list[int], max_bytes: int, then: Callable[[], None]) -> Found:
        memory = self._messages.log.memory
        with suppress(LookupError):
            records = read_at(memory, log_offsets)
            return {log_offset: (records, i) for i, log_offset in enumerate(log_offsets)}
        found: Found = {}
        for log_offset in log_offsets:
            try:
                found[log_offset] = read_at(memory, [log_offset]), 0
            except LookupError:
                found[log_offset] = None
        return found

    def retained(self, topic_filter: str, after: str | None, then: Callable[[RetainedPage], None]) -> None:
        then(self._hub.retained_pages.page(topic_filter, after))

    # --- consumer groups

    def join_group(
        self,
        group: GroupKey,
        consumer: str,
        if_new: GroupSettings,
        start: str,
        handed: Callable[[Handed], None],
        then: Callable[[GroupSeat | str], None],
        user: str | None = None,
    ) -> None:
        maker = Maker(user, True)
        then(open_seat(self._hub.consumers, (self.name, consumer), group, if_new, start, handed, maker))

    def will_take(self, taken: list[GroupAdvanced]) -> None:
        self._hub.consumers.will_take(taken)
        self._taken += taken

    def turn_begins(self) -> None:
        """Nothing waits here for a turn's end."""

    def turn_ends(self) -> None: ...

    # --- several times a second

    def tick(self) -> bool:
        more = self._messages.tick()
        self._hub.settle(self)
        self._hub.consumers.tick()
        return more

    def now_ms(self) -> int:
        return self._messages.now_ms()

    def due_ms(self, delay_s: int) -> int:
        return self.now_ms() + 1_000 * delay_s + 1  # now_ms() is rounded down

    def fault(self) -> str:
        return str(self._messages.fault() or "")

    # --- for the hub

    @property
    def has_news(self) -> bool:
        return bool(self._news or self._named or self._any_grew)

    def grew(self, queue: Queue) -> None:
        self._news[queue] = None

    def grew_named(self, queues: Iterable[Queue]) -> None:
        """Of these it is told by name, whether it follows them or not.

        Once there are too many, those that it follows are told as grew() has it, and the others are forgotten: no queue
        that it follows may be left out, since it takes all of them for known up to the end that it is told.
        """
        if not self._any_grew:
            self._named.update(dict.fromkeys(queues))
            if len(self._named) <= MOST_NAMED:
                return
            queues, self._named, self._any_grew = self._named, {}, True
        self._news.update(dict.fromkeys(self._hub.followed_of(self, queues)))

    def take_named(self) -> tuple[list[Queue], bool]:
        """What grew_named() was called with, and whether there was too much of it for that.

        A queue that nobody watches any more is not the one that may have its name now.
        """
        named = [queue for queue in self._named if queue.watchers] if self._named else []
        others = self._any_grew
        self._named, self._any_grew = {}, False
        return named, others

    def take_news(self) -> list[Queue]:
        news, self._news = self._news, {}
        return list(news)

    def forget(self, queue: Queue) -> None:
        """It does not follow this queue any more."""
        self._news.pop(queue, None)
        self.floors.pop(queue, None)
