"""A message store in another process, as a gateway sees it: requests and answers as frames. No I/O.

Requests outlive connections. What is not answered when a connection ends is sent again, in the same order, on the next
one; Appends bear numbers by which the store knows those that it has. Only when the store has given up on this gateway
(its sessions may be elsewhere by now) everything under way is void, and its clients have to connect anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from lightqueue.queues._queues import LIVE, Queue
from lightqueue.queues.matching import any_of
from lightqueue.reading.following import FROM_NOW, Followed
from notify.api import (
    EVENTS,
    NO_LISTENER,
    GatewayListener,
    Placed,
    RecordsAt,
    RetainedMessage,
    RetainedPage,
    StoreStatus,
)
from notify.events.mirrors import Mirror, Mirrors
from notify.events.recheck import Recheck
from notify.history import History
from notify.local.questions import judged
from notify.owners import UNJUDGED, Claimant, ClaimDenied
from notify.remote.bans import RemoteBans
from notify.remote.groups import OF_OLD_CONSUMERS, RemoteGroups
from notify.remote.history import RemoteHistory
from notify.remote.pace import RemotePace
from notify.remote.position_reads import PositionReads
from notify.remote.quotas import RemoteQuotas
from notify.remote.range_cache import RangeCache
from notify.remote.range_reads import RangeReads
from notify.remote.store_clock import StoreClock
from store.errors import RecordTooLarge, RequestRefused, StoreAway, WireError
from store.ratelimit import RateLimitedLog
from store.records._records import RecordBatch, Records
from store.state.sessions import SessionState
from store.wire import messages as wire
from store.wire.client.requests import Outcome, PendingRequest, PendingRequests, RequestRules
from store.wire.frames import Frame
from store.wire.messages import FailureCode, Welcome

log = logging.getLogger("penstock.wire")

RETAINED_PER_PAGE = 500
BATCH_HEADER_BYTES = 40  # of the record in which the store puts the records of an Append
HEAD_ROOM_BYTES = 4_096  # of a frame, for what is not records
CONGESTED_BYTES = 8 << 20
HEARTBEATS_OF_TRUST = 3  # less than a store waits for before it gives up on a silent gateway
_OF_OLD_REFS = (wire.Unfollow, wire.Floors, wire.Read, wire.Enough, wire.Check)  # meant for one store process
_decode_session = msgspec.msgpack.Decoder(SessionState).decode


class RemoteStore:
    """A Store (notify.api). outgoing() returns the bytes to send; received() takes the frames that came."""

    # CPython 3.11 looks up each method anew of an object with more than 29 attributes in its __dict__, which has what
    # tests put in place of methods.
    __slots__ = (
        "__dict__", "_ask", "_clock", "_groups", "_grown", "_is_in_turn", "_log", "_mirrors", "_most_frame_bytes",
        "_pace", "_placed", "_positions", "_ranges", "_recheck", "_requests", "_send", "_send_soon", "_store_name",
        "_tell", "answers_at_once", "bans", "connects", "end", "events", "generation", "heard_s", "history",
        "is_certain", "is_live_only", "join_group", "lags", "listener", "mark", "max_delay_s", "patience_s",
        "quotas", "reached_s", "safe", "safe_mark", "status", "store_clock", "unconfirmed", "unstored_bytes",
        "watched", "weigh", "welcome", "why_away", "will_take",
    )  # fmt: skip

    def __init__(
        self,
        patience_s: float,
        cache_bytes: int,
        send: Callable[[], None],
        send_soon: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`send` what outgoing() says; `send_soon`: when the loop turns; `clock`: seconds, as in `heard_s`."""
        self.listener: GatewayListener = NO_LISTENER
        self.status: StoreStatus | None = None
        self.answers_at_once = False
        self.is_live_only: Callable[[bytes], bool] | None = None
        self.weigh: Callable[[bytes], tuple[int, list[Queue]]] | None = None
        self.generation = self.max_delay_s = 0  # until the store has said so
        self.is_certain = False
        self.unconfirmed = "the store is connected, and did not confirm what was sent to it"
        self.patience_s = patience_s
        self.end = self.safe = self.mark = self.safe_mark = 0
        self.welcome: Welcome | None = None  # of the connection there is, if there is one
        self._most_frame_bytes = 1 << 20  # as the store said last: what is sent later must fit as well
        self.connects, self.why_away = 0, ""  # the latter: why there is none, or the last one ended
        self.reached_s = self.heard_s = 0.0  # when it was made; when the newest question was asked that was answered
        self._send, self._send_soon = send, send_soon
        self._is_in_turn, self._clock = False, clock
        self._log, self._store_name = RateLimitedLog(log), ""
        self.store_clock = StoreClock(clock)
        self._requests = PendingRequests(RequestRules(), clock, self._wake_sender)
        self._ask, self._tell = self._requests.ask, self._requests.tell
        self.unstored_bytes = 0  # of Appends that are not answered
        self._placed: dict[int, Callable[[int], object]] = {}  # by sequence, who is told where the records stand
        self._pace = RemotePace(self._tell)
        self.lags = self._pace.tell
        self._mirrors = Mirrors()
        self.watched = self._mirrors.watched
        self._grown: dict[Queue, None] = {}
        self.events = dict.fromkeys(EVENTS, 0)
        self._recheck = Recheck(clock)
        self._ranges = RangeReads(cache_bytes, self._mirrors.refs, self._ask, self._came)
        self._positions = PositionReads(self._ask)
        self._groups = RemoteGroups(self._ask, self._tell)
        self.join_group, self.will_take = self._groups.join, self._groups.will_take
        self.history: History = RemoteHistory(self._ask)
        self.bans = RemoteBans(self._tell, lambda: self.welcome)
        self.quotas = RemoteQuotas(self._ask, self._tell, lambda: self.welcome)

    def listen(self, listener: GatewayListener) -> None:
        self.listener = listener

    # --- the way in

    def await_safe(self) -> None: ...  # the store hurries with each Append

    def append(self, batch: RecordBatch, placed: Placed | None = None) -> None:
        limit = self._most_frame_bytes - HEAD_ROOM_BYTES
        if batch.size <= limit:
            self._append(batch, 0, placed)
            return
        pieces = batch.split(limit)
        if (largest := max(piece.size for piece in pieces)) > limit:
            raise RecordTooLarge(largest, limit)
        first = 0
        for piece in pieces:
            self._append(piece, first, placed)
            first += piece.size

    def _append(self, piece: RecordBatch, first: int, placed: Placed | None) -> None:
        """Records that are `first` bytes behind the beginning of their batch."""
        self.mark += 1
        self.unstored_bytes += piece.size
        if placed is not None:
            self._placed[self.mark] = partial(placed, first, piece.size)
        self._ask(wire.Append(self.mark), self._appended, bytes(piece))

    def _appended(self, answer: Outcome, frame: Frame) -> None:
        self._append_answered(self._requests.unanswered(frame.request_id), answer)

    def _append_answered(self, request: PendingRequest, answer: Outcome) -> None:
        assert isinstance(request.message, wire.Append)
        sequence = request.message.sequence
        self.unstored_bytes -= len(request.records)
        placed = self._placed.pop(sequence, None) if self._placed else None
        if isinstance(answer, RequestRefused):
            self.safe_mark = sequence - 1
            self.listener.refused(sequence, answer)
        elif isinstance(answer, wire.Appended) and placed is not None:
            placed(answer.start + BATCH_HEADER_BYTES if answer.end else -1)
        self.safe_mark = sequence

    # --- sessions

    def claim(
        self,
        client_id: str,
        clean_start: bool,
        then: Callable[[SessionState | ClaimDenied | None], None],
        claimant: Claimant = UNJUDGED,
    ) -> None:
        def answered(answer: Outcome, _: Frame) -> None:
            if isinstance(answer, wire.Claimed):
                self._knows_up_to(answer.log_end)
                then(_decode_session(answer.session) if answer.session else None)
            elif isinstance(answer, wire.ClaimRefused):
                then(ClaimDenied(tuple(answer.filters), answer.quota))

        user, reads_all, reads, adopts_anonymous, address, counts = claimant
        whose = (user, reads_all, tuple(reads), adopts_anonymous, address, counts)
        self._ask(wire.Claim(client_id, clean_start, *whose), answered)

    def release(self, client_id: str) -> None:
        self._tell(wire.Release(client_id))

    # --- following queues

    def take_grown(self) -> list[Queue]:
        grown, self._grown = self._grown, {}
        return list(grown)

    def follow(
        self, topic_filter: str, start: int, history: bool, spills: bool, then: Callable[[list[Followed]], None]
    ) -> None:
        def answered(answer: Outcome, _: Frame) -> None:
            if isinstance(answer, wire.Following):
                self._knows_up_to(answer.log_end)
                then([self._follow(info, topic_filter, history, spills, i > 0) for i, info in enumerate(answer.queues)])
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
        self._ranges.forget(queue)
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
        found = self._ranges.read(queue, start, max_records, max_bytes)
        if self._ranges.has_wanted:
            self._wake_sender()
        return found

    def read_many(self, queues: list[Queue], starts: list[int], most: int, max_bytes: int) -> list[Records | None]:
        found = self._ranges.read_many(queues, starts, most, max_bytes)
        if self._ranges.has_wanted:
            self._wake_sender()
        return found

    def _came(self, queue: Queue) -> None:
        self._grown[queue] = None

    def _pushed(self, message: wire.Pushed, frame: Frame) -> None:
        self._knows_up_to(message.log_end)
        self.safe = max(self.safe, message.safe)
        self.events["followed"] += len(message.ranges)
        by_ref = self._mirrors.by_ref
        queues = {ref: by_ref[ref].queue for ref, _, _ in message.ranges if ref in by_ref}
        too_much = self._ranges.pushed(message, frame, queues)
        if too_much:
            self._tell(wire.Enough(too_much))
        for ref, first, count in message.ranges:
            if ref in queues:
                self._end_at(queues[ref], first + count)

    def read_at(self, log_offsets: list[int], max_bytes: int, then: Callable[[], None]) -> RecordsAt | None:
        return self._positions.read_at(log_offsets, then)

    def retained(self, topic_filter: str, after: str | None, then: Callable[[RetainedPage], None]) -> None:
        def answered(answer: Outcome, _: Frame) -> None:
            if isinstance(answer, wire.RetainedFound):
                then(RetainedPage([RetainedMessage(*each) for each in answer.messages], answer.next))
            else:
                then(RetainedPage([], None))

        self._ask(wire.Retained(topic_filter, after or "", RETAINED_PER_PAGE), answered)

    # --- the gateway's turn: what is asked in it needs no other one to be sent

    def turn_begins(self) -> None:
        self._is_in_turn = True

    def turn_ends(self) -> None:
        self._is_in_turn = False
        if self._requests.to_send or self._ranges.has_wanted:
            self._send()

    def _wake_sender(self) -> None:
        if not self._is_in_turn:
            self._send_soon()

    # --- several times a second

    def tick(self) -> bool:
        self._log.settle()
        refs = self._recheck.page(self._mirrors.by_ref) if self.welcome is not None else None
        if refs:
            self._ask(wire.Check(refs), self._checked)
        return False

    def now_ms(self) -> int:
        return self.store_clock.now_ms()

    def due_ms(self, delay_s: int) -> int:
        return self.store_clock.due_ms(delay_s)

    def fault(self) -> str:
        return (
            "" if self.welcome is not None else "the store cannot be reached" + (self.why_away and f": {self.why_away}")
        )

    @property
    def cache(self) -> RangeCache:
        """The ranges that were read, shared by all readers."""
        return self._ranges.cache

    @property
    def congested(self) -> bool:
        return self.unstored_bytes > CONGESTED_BYTES or self._pace.is_slow

    @property
    def has_sessions(self) -> bool:
        """A process that was stopped for long finds here, before anything else, that it may have been given up."""
        welcome = self.welcome
        return welcome is not None and self._clock() - self.heard_s < HEARTBEATS_OF_TRUST * welcome.heartbeat_ms / 1000

    # --- frames out

    def outgoing(self) -> list[bytes]:
        """The bytes that may be sent now, in order; the rest waits for credit."""
        if self._ranges.has_wanted:
            self._ranges.ask()
        return self._requests.outgoing()

    # --- frames in

    def received(self, frame: Frame) -> None:
        """Deal with one frame. Raises WireError."""
        message = frame.message
        if frame.request_id:
            self._answer(frame)
        elif isinstance(message, wire.Pushed):
            self._pushed(message, frame)
            self.listener.wake()
        elif isinstance(message, wire.Grew):
            self.events["followed"] += len(message.queues)
            self._end_all_at(message)
            self.listener.wake()
        elif isinstance(message, wire.GrewNamed):
            self._grew_named(message)
            self.listener.wake()
        elif isinstance(message, wire.Safe):
            self.safe = max(self.safe, message.log_offset)
            self.listener.wake()
        elif isinstance(message, wire.TakenOver):
            self.listener.taken_over(message.client_id)
        elif self._pace.heard(message):
            pass
        elif not (self.bans.heard(message, self.listener) or judged(message, self.listener, self._tell)):
            raise WireError(f"the store sent {type(message).__name__}, which was not expected")

    def _answer(self, frame: Frame) -> None:
        request = self._requests.unanswered(frame.request_id)
        answer: Outcome = frame.message
        if isinstance(answer, wire.Failed):
            if answer.code is not FailureCode.NO_SUCH_POSITION:
                self._log.error("request", "the store refused %s: %s", type(request.message).__name__, answer.message)
            answer = self._requests.rules.errors.of(answer)
        assert request.answered is not None
        request.answered(answer, frame)
        self._requests.done(request)
        self.listener.wake()

    def _end_all_at(self, message: wire.Grew | wire.Checked) -> int:
        """How many of these queues grew."""
        self._knows_up_to(message.log_end)
        by_ref = self._mirrors.by_ref
        mirrors = ((by_ref.get(ref), next_offset) for ref, next_offset in message.queues)
        return sum(self._end_at(mirror.queue, next_offset) for mirror, next_offset in mirrors if mirror is not None)

    def _grew_named(self, message: wire.GrewNamed) -> None:
        """Queues of which the store tells all gateways."""
        self._knows_up_to(message.log_end)
        for name, next_offset in message.queues:
            queue = self.watched.find(name)
            self.events["other" if queue is None else "followed"] += 1
            if queue in self._mirrors.refs:  # if not, it is being followed again, and where it ends is on its way
                self._end_at(queue, next_offset)

    def _checked(self, answer: Outcome, _: Frame) -> None:
        self._recheck.answered()
        if isinstance(answer, wire.Checked):
            self.events["missed"] += self._end_all_at(answer)

    def _knows_up_to(self, log_end: int) -> None:
        """The store said of all queues that it knows to be followed where they end by then."""
        if log_end > self.end and self._mirrors.are_all_followed:
            self.end = log_end

    def _end_at(self, queue: Queue, next_offset: int) -> bool:
        if next_offset <= queue.next_offset:
            return False
        queue.ends_at(next_offset)
        self._grown[queue] = None
        return True

    # --- connections

    def connected(self, welcome: Welcome) -> None:
        """A connection was made: go on where the last one ended, if the store lets us."""
        is_first = not self._store_name
        restarted = welcome.store_name != self._store_name
        self.welcome, self.reached_s = welcome, self._clock()
        self._most_frame_bytes = welcome.max_frame_bytes
        self.store_clock.set(welcome.now_ms, self.heard_s)
        self.max_delay_s = welcome.max_delay_s
        self._pace.connected(welcome)
        self.connects, self._store_name = self.connects + 1, welcome.store_name
        self.is_live_only = any_of(welcome.live_only) if welcome.live_only else None
        if not is_first and not welcome.resumed:
            self._begin_anew(welcome)
        else:
            self._go_on(welcome, restarted)
        if not self._mirrors.by_queue:  # of those that there are it is not known yet what they have up to there
            self.end = max(self.end, welcome.log_end)
        self._requests.connected(welcome)
        self.listener.safe_advanced()
        self.listener.wake()

    def lost(self) -> None:
        """The connection ended."""
        self.welcome = None
        self._requests.lost()

    def _begin_anew(self, welcome: Welcome) -> None:
        """The store gave up on us: nothing of what was under way may reach it, and no client keeps its session."""
        self._log.error("disowned", "the store has given our sessions up; all clients have to connect again")
        self._requests.take_waiting()
        newest, self.mark = self.mark, welcome.appended
        self.safe_mark = 0
        self.unstored_bytes = 0
        self._placed.clear()
        self._forget_queues()
        self._groups.clear()
        self.listener.disowned(newest, StoreAway("the store was out of reach for too long"))
        self.safe_mark = self.mark

    def _forget_queues(self) -> None:
        self._mirrors.clear()
        self._recheck.begin_anew()
        self._grown.clear()
        self._ranges.clear()
        self._positions.clear()

    def _go_on(self, welcome: Welcome, restarted: bool) -> None:
        """Send again what the store does not have. One that was restarted knows no refs: follow all queues again."""
        missing = []
        for request in self._requests.take_waiting():
            message = request.message
            if isinstance(message, wire.Append) and message.sequence <= welcome.appended:
                self._append_answered(request, wire.Appended(0, 0))
            elif not (restarted and isinstance(message, _OF_OLD_REFS + OF_OLD_CONSUMERS)):
                missing.append(request)
        if restarted:
            self._say_who_is_here()
            self._groups.restart()
            self._ranges.restart()
            self._recheck.begin_anew()
            for mirror in self._mirrors.follow_again():
                follow = wire.Follow(mirror.topic_filter, mirror.history, FROM_NOW, mirror.spills)
                self._ask(follow, partial(self._followed_again, mirror))
        self._requests.to_send += missing

    def _say_who_is_here(self) -> None:
        """Tell a store that was restarted of connections that the log does not have."""
        held = self.listener.unlogged()
        for at in range(0, len(held), wire.ITEMS_PER_FRAME):
            client_ids, users = zip(*held[at : at + wire.ITEMS_PER_FRAME], strict=True)
            self._tell(wire.Holds(list(client_ids), users))

    def _followed_again(self, mirror: Mirror, answer: Outcome, _: Frame) -> None:
        """The same queue in a store that was restarted. What was in its memory only is lost."""
        if isinstance(answer, wire.Following):
            self._take_up(mirror, answer.queues)
            self._knows_up_to(answer.log_end)

    def _take_up(self, mirror: Mirror, found: list[wire.QueueInfo]) -> None:
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
            self._ranges.forget(queue)
            queue.ends_at(info.next_offset)
            self.listener.lost_entries(queue)
        else:
            self._end_at(queue, info.next_offset)
            self._grown[queue] = None  # a Read of it may have been lost with the old store
