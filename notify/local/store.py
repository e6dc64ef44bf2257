"""The store in this process, as a gateway here or the wire server uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Self

from lightqueue.errors import NoSuchPosition
from lightqueue.queues._queues import Queue
from lightqueue.reading.following import Followed, follow, locate
from notify.api import (
    EVENTS,
    GatewayListener,
    GroupConsumer,
    History,
    LeasedMessages,
    Placed,
    RecordsAt,
    RetainedPage,
    StoreStatus,
)
from notify.handed import HandedConsumer, HandedQueue
from notify.limits import StoreBans
from notify.local.claims import Answer
from notify.local.group_consumer import open_consumer
from notify.local.hub import Hub
from notify.local.limits import LocalQuotas
from notify.local.members import Member
from notify.local.reads import LocalHistory, LocalStatus
from notify.owners import UNJUDGED, Claimant
from notify.position_reads import Came, PositionReads
from store.records._records import RecordBatch, Records, records_from
from store.state.changes import GroupAdvanced
from store.state.group_settings import LATEST, GroupSettings
from store.state.group_states import GroupKey, Maker
from store.wire.tier_messages import TierFault

LARGEST_BYTES: Final = 256 << 20  # of the records of an answer of the tier: of one message, at most


class LocalAppends:
    """StoreAppends (notify.api) of one member, and what the wire server needs beside it."""

    def __init__(self, hub: Hub, member: Member) -> None:
        self._hub = hub
        self._member = member
        self._messages = hub.messages
        self._taken: list[GroupAdvanced] = []

    def append(self, batch: RecordBatch, placed: Placed | None = None) -> None:
        start = self.append_at(batch, is_awaited=False)
        if placed is not None:
            placed(0, batch.size, start)

    def await_safe(self) -> None:
        self._messages.log.catch_up()

    def append_at(self, batch: RecordBatch, is_awaited: bool = True) -> int:
        """Like append(); the log_offset of the first record."""
        taken, self._taken = self._taken, []
        start = self._messages.append(batch, is_awaited)
        if taken:
            self._hub.consumers.took(taken)
        self._hub.tell_changes(self._member)
        return start

    def append_in_steps(self, batch: RecordBatch, applied: Callable[[], None] | None = None) -> int:
        """Like append_at(); see MessageStore.append_in_steps. Growth is told once all is applied.

        First `applied` is called, which may not store anything.
        """
        start = self._messages.append_in_steps(batch)
        applying = self._messages.applying
        if not applying.left_bytes:
            if applied is not None:
                applied()
            self._hub.tell_changes(self._member)
        elif applied is not None:
            applying.then(applied)
        return start

    @property
    def mark(self) -> int:
        return self._messages.end

    @property
    def safe_mark(self) -> int:
        return self._messages.safe

    @property
    def flushed(self) -> int:
        """Everything before this log_offset is on the disk, whatever the flush policy promises."""
        return self._messages.log.on_disk

    def commit(self) -> None:
        """Write everything that was appended to the page cache. Raises StoreFull or DiskFailed."""
        self._messages.log.commit()

    def hurry(self) -> None:
        """Sync everything that was committed to the disk now; the listener is told when that is done."""
        self._messages.log.hurry()

    def flush_fault(self) -> str:
        """The reason why nothing more gets to the disk; empty: it does."""
        return self._messages.log.sync_error

    def will_take(self, taken: list[GroupAdvanced]) -> None:
        """The next append says this of messages that were handed out."""
        self._hub.consumers.will_take(taken)
        self._taken += taken


class LocalSessions:
    """StoreSessions (notify.api) of one member."""

    are_ours = True

    def __init__(self, hub: Hub, member: Member) -> None:
        self._claims = hub.claims
        self._member = member

    def claim(self, client_id: str, clean_start: bool, then: Answer, claimant: Claimant = UNJUDGED) -> None:
        self._claims.claim(self._member, client_id, clean_start, then, claimant)

    def release(self, client_id: str) -> None:
        self._claims.release(self._member, client_id)

    def hold_again(self, client_id: str, user: str | None) -> None:
        self._claims.hold_again(self._member, client_id, user)


class LocalQueues:
    """StoreQueues (notify.api) of one member: each answer comes at once, but those of the tier."""

    def __init__(self, hub: Hub, member: Member) -> None:
        self._hub = hub
        self._member = member
        self._messages = messages = hub.messages
        self._queues = messages.queues
        self._tier_reads = hub.tier_reads
        self._positions = PositionReads(self._ask_tier)
        self.events = dict.fromkeys(EVENTS, 0)
        self.weigh: Callable[[bytes], tuple[int, list[Queue]]] | None = messages.queues.dispatcher.weigh
        has_live_only = bool(messages.settings.live_only)
        self.is_live_only: Callable[[bytes], bool] | None = messages.queues.is_live_only if has_live_only else None

    @property
    def end(self) -> int:
        return self._messages.end

    @property
    def safe(self) -> int:
        return self._messages.safe

    @property
    def generation(self) -> int:
        return self._queues.dispatcher.generation

    def collect_grown(self) -> list[Queue]:
        return self._hub.collect_grown(self._member)

    def follow(
        self, topic_filter: str, start: int, history: bool, spills: bool, then: Callable[[list[Followed]], None]
    ) -> None:
        begins = self._tier_reads.seam if history and self._tier_reads.has(start) else 0
        followed = follow(self._messages, topic_filter, max(start, begins) if begins else start, history, spills)
        if begins:
            followed[0] = followed[0]._replace(begins=begins)
        for each in followed:
            self._hub.followers.follow(self._member, each.queue, each.position)
        then(followed)

    def follow_again(self, handed: HandedQueue) -> tuple[Queue, bool]:
        """A queue that another process followed, once more; whether it has all that it had there."""
        queue, is_whole = self._queues.watch_again(handed.topic_filter, handed.kind, handed.next_offset)
        if handed.spills:
            self._queues.spill(queue)
        self._hub.followers.follow(self._member, queue, queue.next_offset)
        return queue, is_whole

    def unfollow(self, queue: Queue) -> None:
        self._hub.followers.unfollow(self._member, queue)

    def locate(self, topic_filter: str, where: str, then: Callable[[int | None], None]) -> None:
        try:
            position: int | None = locate(self._messages, topic_filter, where)
        except NoSuchPosition:
            position = None
        then(position)

    def needed_from(self, floors: Iterable[tuple[Queue, int]]) -> None:
        self._hub.followers.needed_from(self._member, floors)

    # --- reading

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records:
        return self._queues.read(queue, start, max_records, max_bytes)

    def read_many(self, queues: list[Queue], starts: list[int], most: int, max_bytes: int) -> Sequence[Records | None]:
        return self._queues.read_many(queues, starts, most, max_bytes)

    def read_at(self, log_offsets: list[int], max_bytes: int, then: Callable[[], None]) -> RecordsAt | None:
        if self._tier_reads.not_in_log(log_offsets):
            return self._positions.read_at(log_offsets, then)
        with suppress(LookupError):
            records = self._messages.records_at(log_offsets)
            return {log_offset: (records, i) for i, log_offset in enumerate(log_offsets)}
        return {log_offset: self._record_at(log_offset) for log_offset in log_offsets}

    def _record_at(self, log_offset: int) -> tuple[Records, int] | None:
        try:
            return self._messages.records_at([log_offset]), 0
        except LookupError:
            return None

    def _ask_tier(self, log_offsets: list[int], came: Came) -> None:
        """Read places of which the log does not have all."""

        def read(found: dict[int, bytes] | str) -> None:
            if isinstance(found, str):
                came(None)
                return
            records: RecordsAt = {}
            for log_offset in log_offsets:
                if log_offset in found:
                    data = found[log_offset]
                    records[log_offset] = (records_from(memoryview(data), 0), 0) if data else None
                elif self._tier_reads.not_in_log([log_offset]):
                    break
                else:
                    records[log_offset] = self._record_at(log_offset)
            came(records)
            self._member.listener.wake()

        self._tier_reads.read_places(self._tier_reads.not_in_log(log_offsets), LARGEST_BYTES, read)

    def retained(self, topic_filter: str, after: str | None, then: Callable[[RetainedPage], None]) -> None:
        then(self._hub.retained_pages.page(topic_filter, after))


class LocalGroups:
    """StoreGroups (notify.api) of one member."""

    def __init__(self, hub: Hub, member: Member, appends: LocalAppends) -> None:
        self._consumers = hub.consumers
        self._member = member
        self.will_take = appends.will_take

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
        maker, key = Maker(user, True), (self._member.name, consumer)

        def located(found: str | TierFault) -> None:
            if isinstance(found, TierFault):
                then(found.why)
            elif not self._member.is_gone:
                then(open_consumer(self._consumers, key, group, if_new, found, handed, maker))

        if not self._consumers.locate(group, start, located, is_new=True):
            located(start)

    def take_over(self, joined: HandedConsumer, handed: Callable[[LeasedMessages], None]) -> GroupConsumer | str:
        """A consumer that another process had, with what it holds; why not, if its group is not to be had."""
        key, asked = (self._member.name, joined.request.consumer), joined.request
        group, maker = (asked.group, asked.topic_filter), Maker(None, True)
        return open_consumer(self._consumers, key, group, joined.settings, LATEST, handed, maker)


class LocalStore:
    """A Store (notify.api) over a MessageStore in this process: every answer comes at once."""

    _appends_of, _queues_of, _groups_of = LocalAppends, LocalQueues, LocalGroups

    def __init__(self, hub: Hub, member: Member) -> None:
        """`member`: of the hub, whose requests these are."""
        self.member = member
        self.is_certain = self.answers_at_once = True
        self.reached_s, self.heard_s = 0.0, math.inf
        self.unconfirmed = "the disk did not confirm a flush"
        self._hub = hub
        self.messages = messages = hub.messages  # for the requests that come over the wire
        self.readers = hub.readers
        self.appends = self._appends_of(hub, member)
        self.sessions = LocalSessions(hub, member)
        self.queues = self._queues_of(hub, member)
        self.groups = self._groups_of(hub, member, self.appends)
        self.bans: StoreBans = hub.bans
        self.quotas = LocalQuotas(hub.quotas, member)
        self.tier_reads = hub.tier_reads
        self.history: History = LocalHistory(messages, self.tier_reads)
        self.status: StoreStatus | None = LocalStatus(messages)
        self.patience_s = messages.settings.flush_timeout_ms / 1000
        self.max_delay_s = messages.settings.max_delay_s

    @classmethod
    def join(cls, hub: Hub, name: str) -> Self:
        """Make the LocalStore of a new member of the hub."""
        return cls(hub, hub.join(name))

    def listen(self, listener: GatewayListener) -> None:
        self.member.listen(listener, listener)

    @property
    def congested(self) -> bool:
        return self._hub.pace.is_slow

    def lags(self, is_behind: bool) -> None:
        self._hub.pace.heard(self.member, is_behind)

    # --- another process

    def hold(self) -> None:
        """Do nothing: messages are delivered also while clients wait for another process."""

    def go_on(self) -> None: ...

    def turn_begins(self) -> None:
        """Do nothing: a store in this process waits for no turn."""

    def turn_ends(self) -> None: ...

    # --- several times a second

    def tick(self) -> bool:
        more = self.messages.tick()
        self._hub.tell_changes(self.member)
        self._hub.consumers.tick()
        self._hub.tier.tick()
        self._hub.readers.tell_losses()
        return more

    def now_ms(self) -> int:
        return self.messages.now_ms()

    def due_ms(self, delay_s: int) -> int:
        return self.now_ms() + 1_000 * delay_s + 1  # now_ms() is rounded down

    def fault(self) -> str:
        return str(self.messages.fault() or "")
