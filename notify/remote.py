"""A message store in another process, as a gateway sees it: requests and answers as frames. No I/O.

Requests outlive connections. What is not answered when a connection ends is sent again, in the same order, on the next
one; Appends bear numbers by which the store knows those that it has. Only when the store has given up on this gateway
(its sessions may be elsewhere by now) everything under way is void, and its clients have to connect anew.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from lightqueue._queues import LIVE, Queue
from lightqueue.following import FROM_NOW, Followed
from lightqueue.matching import any_of
from notify.api import NOBODY, Found, Listener, RetainedMessage, RetainedPage
from notify.range_cache import RangeCache
from store._records import RecordBatch, Records, ranges_from, records_from
from store.errors import RecordTooLarge, StoreAway, StoreError, WireError
from store.ratelimit import RateLimitedLog
from store.sessions import SessionState
from store.wire import messages as wire
from store.wire.frames import Frame, frame_head
from store.wire.messages import FailureCode, Message, Welcome

if TYPE_CHECKING:  # a gateway apart needs none of it
    from lightqueue.message_store import MessageStore

log = logging.getLogger("penstock.wire")

RETAINED_PER_PAGE = 1_000
HEAD_ROOM_BYTES = 4_096  # of a frame, for what is not records
CONGESTED_BYTES = 8 << 20
HEARTBEATS_OF_TRUST = 3  # less than a store waits for before it gives up on a silent gateway
FOUND_KEPT = 16  # of about 1 MiB at most
_decode_session = msgspec.msgpack.Decoder(SessionState).decode

Answered = Callable[[Message, Frame], None]


@dataclass(slots=True, eq=False)
class _Request:
    """A frame that was asked to be sent: with a request_id if it has an answer."""

    message: Message
    answered: Answered | None = None
    records: bytes = b""
    request_id: int = 0
    size_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Mirror:
    """A queue of the store's that is followed here."""

    queue: Queue
    topic_filter: str
    history: bool
    spills: bool
    readers: int = 0  # here
    followed: int = 0  # as often as the store was asked to
    floor: int = 0


@dataclass(slots=True)
class _Wanted:
    """Ranges to be asked for at the end of the turn, and those asked for already, by (queue, queue_offset)."""

    now: dict[tuple[Queue, int], None] = field(default_factory=dict)
    asked: set[tuple[Queue, int]] = field(default_factory=set)
    max_records: int = 1
    max_bytes: int = 1


class RemoteStore:
    """A Store (notify.api). What is to be sent is taken with outgoing(); what came goes to received()."""

    def __init__(
        self, patience_s: float, cache_bytes: int, wake_sender: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        """`wake_sender`: there is something to be sent, soon; `clock`: seconds, as in `heard_s`."""
        self.listener: Listener = NOBODY
        self.messages: MessageStore | None = None
        self.is_live_only: Callable[[bytes], bool] | None = None
        self.patience_s = patience_s
        self.cache = RangeCache(cache_bytes)
        self.end = 0
        self.safe = 0
        self.mark = 0
        self.safe_mark = 0
        self.welcome: Welcome | None = None  # of the connection there is, if there is one
        self.connects = 0
        self.why_away = ""  # why there is none, or the last one ended
        self.heard_s = 0.0  # when the newest question was asked that the store has answered
        self._wake_sender = wake_sender
        self._clock = clock
        self._events = RateLimitedLog(log)
        self._store_name = ""
        self._request_ids = 0
        self._to_send: deque[_Request] = deque()
        self._unanswered: dict[int, _Request] = {}
        self._unanswered_bytes = 0
        self.unstored_bytes = 0  # of Appends that are not answered
        self._queues: dict[int, _Mirror] = {}  # by ref
        self._refs: dict[Queue, int] = {}
        self._mirrors: dict[Queue, _Mirror] = {}
        self._grown: dict[Queue, None] = {}
        self._wanted = _Wanted()
        self._found: dict[tuple[int, ...], Found] = {}  # the newest answers: several may want the same
        self._finding: dict[tuple[int, ...], list[Callable[[], None]]] = {}  # asked for, and by whom

    # --- the way in

    def append(self, batch: RecordBatch) -> None:
        limit = (self.welcome.max_frame_bytes if self.welcome is not None else 1 << 20) - HEAD_ROOM_BYTES
        pieces = [batch] if batch.size <= limit else batch.split(limit)
        largest = max(piece.size for piece in pieces)
        if largest > limit:
            raise RecordTooLarge(largest, limit)
        for piece in pieces:
            self.mark += 1
            self.unstored_bytes += piece.size
            self._ask(wire.Append(self.mark), self._appended, bytes(piece))

    def _appended(self, answer: Message, frame: Frame) -> None:
        request = self._unanswered[frame.request_id]
        assert isinstance(request.message, wire.Append)
        self._append_answered(request.message.sequence, request, answer)
        self.listener.safe_advanced()

    def _append_answered(self, sequence: int, request: _Request, answer: Message) -> None:
        self.unstored_bytes -= len(request.records)
        if isinstance(answer, wire.Failed):
            self.safe_mark = sequence - 1
            self.listener.refused(sequence, StoreError(answer.message))
        self.safe_mark = sequence

    # --- sessions

    def claim(self, client_id: str, clean_start: bool, then: Callable[[SessionState | None], None]) -> None:
        def answered(answer: Message, _: Frame) -> None:
            if isinstance(answer, wire.Claimed):
                self.end = max(self.end, answer.log_end)
                then(_decode_session(answer.session) if answer.session else None)

        self._ask(wire.Claim(client_id, clean_start), answered)

    def release(self, client_id: str) -> None:
        self._tell(wire.Release(client_id))

    # --- following queues

    def take_grown(self) -> list[Queue]:
        grown, self._grown = self._grown, {}
        return list(grown)

    def follow(
        self, topic_filter: str, start: int, history: bool, spills: bool, then: Callable[[list[Followed]], None]
    ) -> None:
        def answered(answer: Message, _: Frame) -> None:
            if isinstance(answer, wire.Following):
                self.end = max(self.end, answer.log_end)
                then([self._follow(info, topic_filter, history, spills, i > 0) for i, info in enumerate(answer.queues)])

        self._ask(wire.Follow(topic_filter, history, start, spills), answered)

    def _follow(self, info: wire.QueueInfo, topic_filter: str, history: bool, spills: bool, live: bool) -> Followed:
        mirror = self._queues.get(info.ref)
        if mirror is None:
            queue = Queue(topic_filter.encode(), info.kind, 0, info.next_offset)
            mirror = self._queues[info.ref] = _Mirror(queue, topic_filter, history, spills, floor=info.position)
            self._refs[queue] = info.ref
            self._mirrors[queue] = mirror
        mirror.readers += 1
        mirror.followed += 1
        mirror.spills = mirror.spills or spills
        if info.next_offset > mirror.queue.next_offset:
            self._end_at(mirror.queue, info.next_offset)
        return Followed(mirror.queue, info.position, live)

    def unfollow(self, queue: Queue) -> None:
        mirror = self._mirrors[queue]
        ref = self._refs.get(queue)  # none while it is being followed again
        mirror.readers -= 1
        if mirror.readers:
            return
        del self._mirrors[queue]
        self.cache.forget(queue)
        self._grown.pop(queue, None)
        if ref is not None:
            del self._queues[ref], self._refs[queue]
            self._tell(wire.Unfollow([ref] * mirror.followed))

    def locate(self, topic_filter: str, where: str, then: Callable[[int | None], None]) -> None:
        def answered(answer: Message, _: Frame) -> None:
            then(answer.queue_offset if isinstance(answer, wire.Located) else None)

        self._ask(wire.Locate(topic_filter, where), answered)

    def needed_from(self, floors: Iterable[tuple[Queue, int]]) -> None:
        moved = []
        for queue, floor in floors:
            mirror, ref = self._mirrors[queue], self._refs.get(queue)
            if floor > mirror.floor and ref is not None:
                mirror.floor = floor
                moved.append((ref, floor))
        for at in range(0, len(moved), wire.MOST_ITEMS):
            self._tell(wire.Floors(moved[at : at + wire.MOST_ITEMS]))

    # --- reading

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records | None:
        found = self.cache.get(queue, start)
        if found is None and (queue, start) not in self._wanted.asked:
            self._wanted.now[queue, start] = None
            self._wanted.max_records, self._wanted.max_bytes = max_records, max_bytes
            self._wake_sender()
        return found

    def _ask_for_ranges(self) -> None:
        """One request for all that was found missing in a turn."""
        wanted = self._wanted
        asked = [(queue, start) for queue, start in wanted.now if queue in self._refs]
        wanted.now.clear()
        wanted.asked.update(asked)
        for at in range(0, len(asked), wire.MOST_ITEMS):
            part = asked[at : at + wire.MOST_ITEMS]
            ranges = [(self._refs[queue], start) for queue, start in part]
            self._ask(wire.Read(ranges, wanted.max_records, wanted.max_bytes), partial(self._came, part))

    def _came(self, asked: list[tuple[Queue, int]], answer: Message, frame: Frame) -> None:
        self._wanted.asked.difference_update(asked)
        for queue, _ in asked:
            if queue in self._mirrors:
                self._grown[queue] = None
        if isinstance(answer, wire.Ranges):  # fewer than asked for, if all of them were too much
            came = ranges_from(frame.records, [(first, count) for _, first, count in answer.ranges])
            ranges = [(*each, records) for each, records in zip(asked, came, strict=False)]
            useful = [each for each in ranges if each[0] in self._mirrors and each[2].next > each[1]]
            self.cache.add(frame.size_bytes, useful)

    def read_at(self, log_offsets: list[int], max_bytes: int, then: Callable[[], None]) -> Found | None:
        key = tuple(log_offsets)
        if key in self._found:
            return self._found[key]
        if key not in self._finding:
            self._finding[key] = []
            self._ask(wire.ReadAt(log_offsets), partial(self._found_at, key))
        self._finding[key].append(then)
        return None

    def _found_at(self, key: tuple[int, ...], answer: Message, frame: Frame) -> None:
        found: Found = {}
        if isinstance(answer, wire.RecordsAt):
            records = records_from(frame.records, 0)
            places = iter(range(records.count))
            for log_offset, is_kept in zip(key, answer.found, strict=False):
                found[log_offset] = (records, next(places)) if is_kept else None
        while len(self._found) >= FOUND_KEPT:
            del self._found[next(iter(self._found))]
        self._found[key] = found
        for then in self._finding.pop(key, ()):
            then()

    def retained(self, topic_filter: str, after: str | None, then: Callable[[RetainedPage], None]) -> None:
        def answered(answer: Message, _: Frame) -> None:
            if isinstance(answer, wire.RetainedFound):
                then(RetainedPage([RetainedMessage(*each) for each in answer.messages], answer.next))
            else:
                then(RetainedPage([], None))

        self._ask(wire.Retained(topic_filter, after or "", RETAINED_PER_PAGE), answered)

    # --- several times a second

    def tick(self) -> bool:
        self._events.settle()
        return False

    def fault(self) -> str:
        return (
            "" if self.welcome is not None else "the store cannot be reached" + (self.why_away and f": {self.why_away}")
        )

    @property
    def congested(self) -> bool:
        return self.unstored_bytes > CONGESTED_BYTES

    @property
    def has_sessions(self) -> bool:
        """A process that was stopped for long finds here, before anything else, that it may have been given up."""
        welcome = self.welcome
        return welcome is not None and self._clock() - self.heard_s < HEARTBEATS_OF_TRUST * welcome.heartbeat_ms / 1000

    # --- frames out

    def _ask(self, message: Message, answered: Answered, records: bytes = b"") -> None:
        self._request_ids += 1
        self._send(_Request(message, answered, records, self._request_ids))

    def _tell(self, message: Message) -> None:
        self._send(_Request(message))

    def _send(self, request: _Request) -> None:
        self._to_send.append(request)
        self._wake_sender()

    def outgoing(self) -> list[bytes]:
        """What may be sent now, in order; the rest waits for credit."""
        if self._wanted.now:
            self._ask_for_ranges()
        chunks: list[bytes] = []
        welcome = self.welcome
        if welcome is None:
            return chunks
        while self._to_send:
            request = self._to_send[0]
            head = frame_head(request.message, request.request_id, len(request.records))
            size_bytes = len(head) + len(request.records)
            if request.request_id:
                if self._unanswered_bytes + size_bytes > welcome.credit_bytes:
                    break
                request.size_bytes = size_bytes
                self._unanswered_bytes += size_bytes
                self._unanswered[request.request_id] = request
            self._to_send.popleft()
            chunks.append(head)
            if request.records:
                chunks.append(request.records)
        return chunks

    # --- frames in

    def received(self, frame: Frame) -> None:
        """Deal with one frame. Raises WireError."""
        message = frame.message
        if frame.request_id:
            self._answer(frame)
        elif isinstance(message, wire.Grew):
            self.end = max(self.end, message.log_end)
            for ref, next_offset in message.queues:
                mirror = self._queues.get(ref)
                if mirror is not None:
                    self._end_at(mirror.queue, next_offset)
            self.listener.wake()
        elif isinstance(message, wire.Safe):
            self.safe = max(self.safe, message.log_offset)
            self.listener.safe_advanced()
        elif isinstance(message, wire.TakenOver):
            self.listener.taken_over(message.client_id)
        else:
            raise WireError(f"the store sent {type(message).__name__}, which was not expected")

    def _answer(self, frame: Frame) -> None:
        request = self._unanswered.get(frame.request_id)
        if request is None:
            raise WireError(f"an answer to request_id {frame.request_id}, which nobody asked for")
        if isinstance(frame.message, wire.Failed) and frame.message.code is not FailureCode.NO_SUCH_POSITION:
            self._events.error("request", "the store refused %s: %s", _name(request.message), frame.message.message)
        assert request.answered is not None
        request.answered(frame.message, frame)
        del self._unanswered[frame.request_id]
        self._unanswered_bytes -= request.size_bytes
        if self._to_send:
            self._wake_sender()
        self.listener.wake()

    def _end_at(self, queue: Queue, next_offset: int) -> None:
        if next_offset > queue.next_offset:
            queue.ends_at(next_offset)
            self._grown[queue] = None

    # --- connections

    def connected(self, welcome: Welcome) -> None:
        """A connection was made: go on where the last one ended, if the store lets us."""
        is_first = not self._store_name
        restarted = welcome.store_name != self._store_name
        self.welcome = welcome
        self.connects += 1
        self._store_name = welcome.store_name
        self.is_live_only = any_of(welcome.live_only) if welcome.live_only else None
        if not is_first and not welcome.resumed:
            self._begin_anew(welcome)
        else:
            self._go_on(welcome, restarted)
        self.end = max(self.end, welcome.log_end)
        self._wake_sender()
        self.listener.safe_advanced()
        self.listener.wake()

    def lost(self) -> None:
        """The connection ended. What was not answered is to be sent again, before what was not sent."""
        self.welcome = None
        again = [request for request in self._unanswered.values() if request.request_id]
        self._to_send.extendleft(reversed(again))
        self._unanswered.clear()
        self._unanswered_bytes = 0

    def _begin_anew(self, welcome: Welcome) -> None:
        """The store gave up on us: nothing of what was under way may reach it, and no client keeps its session."""
        self._events.error("disowned", "the store has given our sessions up; all clients have to connect again")
        self._to_send.clear()
        newest, self.mark = self.mark, welcome.appended
        self.safe_mark = 0
        self.unstored_bytes = 0
        self._forget_queues()
        self.listener.disowned(newest, StoreAway("the store was out of reach for too long"))
        self.safe_mark = self.mark

    def _forget_queues(self) -> None:
        self._queues.clear()
        self._refs.clear()
        self._mirrors.clear()
        self._grown.clear()
        self._wanted = _Wanted()
        self._found.clear()
        self._finding.clear()
        self.cache.clear()

    def _go_on(self, welcome: Welcome, restarted: bool) -> None:
        """Send again what the store does not have. One that was restarted knows no refs: follow all queues again."""
        missing: deque[_Request] = deque()
        for request in self._to_send:
            message = request.message
            if isinstance(message, wire.Append) and message.sequence <= welcome.appended:
                self._append_answered(message.sequence, request, wire.Appended(0, 0))
            elif not (restarted and isinstance(message, wire.Unfollow | wire.Floors | wire.Read)):
                missing.append(request)
        self._to_send = deque()
        if restarted:
            held = self.listener.unlogged()
            for at in range(0, len(held), wire.MOST_ITEMS):
                self._tell(wire.Holds(held[at : at + wire.MOST_ITEMS]))
            self._wanted = _Wanted()
            mirrors = list(self._queues.values())
            self._queues.clear()
            for mirror in mirrors:
                del self._refs[mirror.queue]
                follow = wire.Follow(mirror.topic_filter, mirror.history, FROM_NOW, mirror.spills)
                self._ask(follow, partial(self._followed_again, mirror))
        self._to_send += missing

    def _followed_again(self, mirror: _Mirror, answer: Message, _: Frame) -> None:
        """The same queue in a store that was restarted. What was in its memory only is lost."""
        if not isinstance(answer, wire.Following):
            return
        queue = mirror.queue
        info = next((each for each in answer.queues if each.kind == queue.kind), answer.queues[0])
        for other in answer.queues:
            if other is not info:
                self._tell(wire.Unfollow([other.ref]))
        if not mirror.readers:
            self._tell(wire.Unfollow([info.ref]))
            return
        mirror.followed = 1
        self._queues[info.ref] = mirror
        self._refs[queue] = info.ref
        if queue.kind == LIVE or info.next_offset < queue.next_offset:
            self.cache.forget(queue)
            queue.ends_at(info.next_offset)
            self.listener.lost_entries(queue)
        else:
            self._end_at(queue, info.next_offset)
            self._grown[queue] = None  # a Read of it may have been lost with the old store


def _name(message: Message) -> str:
    return type(message).__name__
