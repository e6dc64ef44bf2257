"""Queues of a store in another process: which are followed, where they end, and what was read of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from lightqueue.queues._queues import LIVE, Queue
from lightqueue.queues.matching import any_of
from lightqueue.reading.following import FROM_NOW, Followed
from notify.api import EVENTS, NO_LISTENER, GatewayListener, RecordsAt, RetainedMessage, RetainedPage
from notify.events.lookup import queue_named
from notify.events.mirrors import Mirror, Mirrors, Recheck
from notify.handed import HandedQueue
from notify.position_reads import Came, PositionReads
from notify.remote.handed import HandedStore
from notify.remote.reads import RangeReads, records_there
from store.records._records import Records
from store.wire import messages as wire
from store.wire.base import WireMessage
from store.wire.client.requests import Outcome, PendingRequests
from store.wire.frames import Frame
from store.wire.messages import FailureCode, Welcome

RETAINED_PER_PAGE = 500
OF_OLD_REFS = (wire.Unfollow, wire.Floors, wire.Read, wire.Enough, wire.Check)  # meant for one store process


class RemoteQueues:
    """StoreQueues (notify.api): owner of what this gateway knows of the store's queues."""

    def __init__(
        self,
        requests: PendingRequests,
        cache_bytes: int,
        wake_sender: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`wake_sender`: there is something to send, though no turn ends."""
        self.listener: GatewayListener = NO_LISTENER
        self.is_live_only: Callable[[bytes], bool] | None = None
        self.weigh: Callable[[bytes], tuple[int, list[Queue]]] | None = None
        self.generation = 0
        self.end = self.safe = 0
        self.events = dict.fromkeys(EVENTS, 0)
        self._ask, self._tell = requests.ask, requests.tell
        self._wake_sender = wake_sender
        self._mirrors = Mirrors()
        self.watched = self._mirrors.watched
        self._grown: dict[Queue, None] = {}
        self._recheck = Recheck(clock)
        self.ranges = RangeReads(cache_bytes, self._mirrors.refs, self._ask, self._came)
        self._positions = PositionReads(self._ask_positions)

    # --- following queues

    def collect_grown(self) -> list[Queue]:
        grown, self._grown = self._grown, {}
        return list(grown)

    def follow(
        self, topic_filter: str, start: int, history: bool, spills: bool, then: Callable[[list[Followed]], None]
    ) -> None:
        def answered(answer: Outcome, _: Frame) -> None:
            if isinstance(answer, wire.Following | wire.FollowingPast):
                self.knows_up_to(answer.log_end)
                found = [
                    self._follow(info, topic_filter, history, spills, i > 0) for i, info in enumerate(answer.queues)
                ]
                if isinstance(answer, wire.FollowingPast):
                    found[0] = found[0]._replace(begins=answer.begins)
                then(found)
            else:
                then([])

        self._ask(wire.Follow(topic_filter, history, start, spills), answered)

    def _follow(self, info: wire.QueueInfo, topic_filter: str, history: bool, spills: bool, live: bool) -> Followed:
        queue = self._mirrors.follow(info, topic_filter, history, spills)
        self._end_at(queue, info.next_offset)
        return Followed(queue, info.position, live)

    def unfollow(self, queue: Queue) -> None:
        refs = self._mirrors.unfollow(queue)
        if refs is None:
            return
        self.ranges.forget(queue)
        self._grown.pop(queue, None)
        if refs:
            self._tell(wire.Unfollow(refs))

    def locate(self, topic_filter: str, where: str, then: Callable[[int | None], None]) -> None:
        def answered(answer: Outcome, _: Frame) -> None:
            then(answer.queue_offset if isinstance(answer, wire.Located) else None)

        self._ask(wire.Locate(topic_filter, where), answered)

    def needed_from(self, floors: Iterable[tuple[Queue, int]]) -> None:
        moved = self._mirrors.moved(floors)
        for at in range(0, len(moved), wire.ITEMS_PER_FRAME):
            self._tell(wire.Floors(moved[at : at + wire.ITEMS_PER_FRAME]))

    # --- reading

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records | None:
        found = self.ranges.read(queue, start, max_records, max_bytes)
        if self.ranges.has_wanted:
            self._wake_sender()
        return found

    def read_many(self, queues: list[Queue], starts: list[int], most: int, max_bytes: int) -> list[Records | None]:
        found = self.ranges.read_many(queues, starts, most, max_bytes)
        if self.ranges.has_wanted:
            self._wake_sender()
        return found

    def _came(self, queue: Queue) -> None:
        self._grown[queue] = None

    def read_at(self, log_offsets: list[int], max_bytes: int, then: Callable[[], None]) -> RecordsAt | None:
        return self._positions.read_at(log_offsets, then)

    def _ask_positions(self, log_offsets: list[int], came: Came) -> None:
        def answered(answer: Outcome, frame: Frame) -> None:
            if isinstance(answer, wire.RecordsAt):
                came(records_there(log_offsets, answer.found, frame.records))
            else:
                is_later = isinstance(answer, wire.Failed) and answer.code == FailureCode.UNAVAILABLE
                came(None if is_later else {})

        self._ask(wire.ReadAt(log_offsets), answered)

    def retained(self, topic_filter: str, after: str | None, then: Callable[[RetainedPage], None]) -> None:
        def answered(answer: Outcome, _: Frame) -> None:
            if isinstance(answer, wire.RetainedFound):
                then(RetainedPage([RetainedMessage(*each) for each in answer.messages], answer.next))
            else:
                then(RetainedPage([], None))

        self._ask(wire.Retained(topic_filter, after or "", RETAINED_PER_PAGE), answered)

    # --- what the store says

    def heard(self, message: WireMessage, frame: Frame) -> bool:
        """Take what the store says of queues. False: it is something else."""
        if isinstance(message, wire.Pushed):
            self._pushed(message, frame)
        elif isinstance(message, wire.Grew):
            self.events["followed"] += len(message.queues)
            self._end_all_at(message)
        elif isinstance(message, wire.GrewNamed):
            self._grew_named(message)
        elif isinstance(message, wire.Safe):
            self.safe = max(self.safe, message.log_offset)
        else:
            return False
        return True

    def _pushed(self, message: wire.Pushed, frame: Frame) -> None:
        self.knows_up_to(message.log_end)
        self.safe = max(self.safe, message.safe)
        self.events["followed"] += len(message.ranges)
        by_ref = self._mirrors.by_ref
        queues = {ref: by_ref[ref].queue for ref, _, _ in message.ranges if ref in by_ref}
        too_much = self.ranges.pushed(message, frame, queues)
        if too_much:
            self._tell(wire.Enough(too_much))
        for ref, first, count in message.ranges:
            if ref in queues:
                self._end_at(queues[ref], first + count)

    def _end_all_at(self, message: wire.Grew | wire.Checked) -> int:
        """Set the ends of queues that a message tells. Returns the number of queues that grew."""
        self.knows_up_to(message.log_end)
        by_ref = self._mirrors.by_ref
        mirrors = ((by_ref.get(ref), next_offset) for ref, next_offset in message.queues)
        return sum(self._end_at(mirror.queue, next_offset) for mirror, next_offset in mirrors if mirror is not None)

    def _grew_named(self, message: wire.GrewNamed) -> None:
        """Queues of which the store tells all gateways."""
        self.knows_up_to(message.log_end)
        for name, next_offset in message.queues:
            queue = self.watched.find(name)
            self.events["other" if queue is None else "followed"] += 1
            if queue in self._mirrors.refs:  # if not, it is being followed again, and where it ends is on its way
                self._end_at(queue, next_offset)

    def tick(self) -> None:
        """Check with the store where a few of the followed queues end. Call it several times a second, while there is
        a connection.
        """
        refs = self._recheck.page(self._mirrors.by_ref)
        if refs:
            self._ask(wire.Check(refs), self._checked)

    def _checked(self, answer: Outcome, _: Frame) -> None:
        self._recheck.answered()
        if isinstance(answer, wire.Checked):
            self.events["missed"] += self._end_all_at(answer)

    def knows_up_to(self, log_end: int) -> None:
        """The store said of all queues that it knows to be followed where they end by then."""
        if log_end > self.end and self._mirrors.are_all_followed:
            self.end = log_end

    def _end_at(self, queue: Queue, next_offset: int) -> bool:
        if next_offset <= queue.next_offset:
            return False
        queue.ends_at(next_offset)
        self._grown[queue] = None
        return True

    # --- another process

    def handed(self) -> list[HandedQueue]:
        """The queues that are followed."""
        return [
            HandedQueue(
                ref=ref,
                kind=mirror.queue.kind,
                topic_filter=mirror.topic_filter,
                history=mirror.history,
                spills=mirror.spills,
                followed=mirror.followed,
                next_offset=mirror.queue.next_offset,
                floor=mirror.floor,
            )
            for ref, mirror in self._mirrors.by_ref.items()
        ]

    def take_over(self, handed: HandedStore) -> None:
        """Follow what another process followed, which nothing reads here so far."""
        live_only = handed.welcome.live_only
        self.is_live_only = any_of(live_only) if live_only else None
        self.end, self.safe = handed.end, handed.safe
        for each in handed.queues:
            queue = queue_named(each.topic_filter, each.kind, each.next_offset)
            mirror = Mirror(
                queue, each.topic_filter, each.history, each.spills, followed=each.followed, floor=each.floor
            )
            self._mirrors.take_over(each.ref, mirror)

    def ref_of(self, queue: Queue) -> int:
        """Raises KeyError if the store knows no such queue, or was restarted since."""
        return self._mirrors.refs[queue]

    def taken(self, ref: int) -> Queue:
        """A queue that was taken over, for one more reader. Raises KeyError."""
        mirror = self._mirrors.by_ref[ref]
        mirror.readers += 1
        return mirror.queue

    def drop_unread(self) -> None:
        """Follow no more what was taken over and nothing reads."""
        for queue in self._mirrors.unread():
            self._mirrors.by_queue[queue].readers = 1
            self.unfollow(queue)

    # --- connections

    def connected(self, welcome: Welcome) -> None:
        self.is_live_only = any_of(welcome.live_only) if welcome.live_only else None
        if not self._mirrors.by_queue:  # of those that there are it is not known yet what they have up to there
            self.end = max(self.end, welcome.log_end)

    def clear(self) -> None:
        """The store has given this gateway up: it follows nothing."""
        self._mirrors.clear()
        self._recheck.begin_anew()
        self._grown.clear()
        self.ranges.clear()
        self._positions.clear()

    def restart(self) -> None:
        """The store is another process now, which knows no refs: follow all queues again."""
        self.ranges.restart()
        self._recheck.begin_anew()
        for mirror in self._mirrors.follow_again():
            follow = wire.Follow(mirror.topic_filter, mirror.history, FROM_NOW, mirror.spills)
            self._ask(follow, partial(self._followed_again, mirror))

    def _followed_again(self, mirror: Mirror, answer: Outcome, _: Frame) -> None:
        """The same queue in a store that is another process. What the old one had in its memory only is lost."""
        if isinstance(answer, wire.Following | wire.FollowingPast):
            self._take_up(mirror, answer.queues, answer.log_end)
            self.knows_up_to(answer.log_end)

    def _take_up(self, mirror: Mirror, found: list[wire.QueueInfo], log_end: int) -> None:
        queue = mirror.queue
        info = next((each for each in found if each.kind == queue.kind), found[0])
        for other in found:
            if other is not info:
                self._tell(wire.Unfollow([other.ref]))
        if not mirror.readers:
            self._tell(wire.Unfollow([info.ref]))
            return
        self._mirrors.followed_again(mirror, info.ref)
        if queue.kind == LIVE or info.next_offset < queue.next_offset:
            self.ranges.forget(queue)
            self.listener.lost_entries(queue, info.next_offset, log_end)
            queue.ends_at(info.next_offset)
        else:
            self._end_at(queue, info.next_offset)
            self._grown[queue] = None  # a Read of it may have been lost with the old store
