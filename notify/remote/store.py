"""A message store in another process, as a gateway sees it: requests and answers as frames. No I/O.

Requests outlive connections. What is not answered when a connection ends is sent again, in the same order, on the next
one; Appends bear numbers by which the store knows those that it has. Only when the store has given up on this gateway
(its sessions may be elsewhere by now) everything under way is void, and its clients have to connect anew.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Protocol

import msgspec

from notify.api import NO_LISTENER, GatewayListener, History, StoreStatus
from notify.local.questions import judged
from notify.owners import UNJUDGED, Claimant, ClaimDenied
from notify.remote.appends import RemoteAppends
from notify.remote.groups import OF_OLD_CONSUMERS, RemoteGroups
from notify.remote.handed import HandedStore
from notify.remote.limits import RemoteBans, RemotePace, RemoteQuotas
from notify.remote.queues import OF_OLD_REFS, RemoteQueues
from notify.remote.reads import RemoteHistory
from store.errors import StoreAway, WireError
from store.ratelimit import RateLimitedLog
from store.state.sessions import SessionState
from store.wire import messages as wire
from store.wire.client.requests import Outcome, PendingRequests, RequestRules
from store.wire.frames import Frame
from store.wire.group_messages import Pop
from store.wire.messages import FailureCode, Welcome

log = logging.getLogger("penstock.wire")

ROUNDING_MS = 2  # the time was rounded down to a millisecond, by the store and here
CONGESTED_BYTES = 8 << 20
ASKED_AGAIN = (wire.Read, wire.ReadAt, Pop, wire.Check)  # by a process that takes over
HEARTBEATS_OF_TRUST = 3  # less than a store waits for before it gives up on a silent gateway
_decode_session = msgspec.msgpack.Decoder(SessionState).decode


class StoreClock:
    """The store's clock: all gateways go by that one, however wrong their own are. Rather late than early, as messages
    expire by it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds, of any beginning."""
        self._clock = clock
        self._ahead_ms = 0  # of the store's Unix time before our clock
        self._behind_ms = 0  # at most, of what we take for the store's time after it

    def set(self, now_ms: int, asked_s: float) -> None:
        """The time (Unix, ms) at some moment since `asked_s` by our clock."""
        now_s = self._clock()
        self._ahead_ms = now_ms - int(now_s * 1000)
        self._behind_ms = max(0, math.ceil((now_s - asked_s) * 1000))

    def now_ms(self) -> int:
        """Unix time."""
        return self._ahead_ms + int(self._clock() * 1000)

    def due_ms(self, delay_s: int) -> int:
        """When a delay that begins now is over at the latest."""
        return self.now_ms() + self._behind_ms + ROUNDING_MS + 1_000 * delay_s


class RemoteSessions:
    """StoreSessions (notify.api) over requests."""

    def __init__(
        self, requests: PendingRequests, is_trusted: Callable[[], bool], heard_end: Callable[[int], None]
    ) -> None:
        """`heard_end` is told up to which log_offset the store says that it has told everything."""
        self._ask, self._tell = requests.ask, requests.tell
        self._is_trusted = is_trusted
        self._heard_end = heard_end
        self.is_held = False  # nothing is to be delivered, since the sessions are about to be another process's

    @property
    def are_ours(self) -> bool:
        """A process that was stopped for long finds here, before anything else, that it may have been given up."""
        return not self.is_held and self._is_trusted()

    def claim(
        self,
        client_id: str,
        clean_start: bool,
        then: Callable[[SessionState | ClaimDenied | None], None],
        claimant: Claimant = UNJUDGED,
    ) -> None:
        def answered(answer: Outcome, _: Frame) -> None:
            if isinstance(answer, wire.Claimed):
                self._heard_end(answer.log_end)
                then(_decode_session(answer.session) if answer.session else None)
            elif isinstance(answer, wire.ClaimRefused):
                then(ClaimDenied(tuple(answer.filters), answer.quota))

        user, reads_all, reads, adopts_anonymous, address, counts = claimant
        whose = (user, reads_all, tuple(reads), adopts_anonymous, address, counts)
        self._ask(wire.Claim(client_id, clean_start, *whose), answered)

    def release(self, client_id: str) -> None:
        self._tell(wire.Release(client_id))


class StoreSender(Protocol):
    """The link that carries what RemoteStore.outgoing() says."""

    def flush(self) -> None:
        """Send it now."""

    def wake(self) -> None:
        """Send it when the loop turns."""


class RemoteStore:
    """A Store (notify.api). outgoing() returns the bytes to send; received() takes the frames that came."""

    _appends_of, _queues_of, _groups_of = RemoteAppends, RemoteQueues, RemoteGroups

    def __init__(
        self,
        patience_s: float,
        cache_bytes: int,
        sender: StoreSender,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: seconds, as in `heard_s`."""
        self.listener: GatewayListener = NO_LISTENER
        self.status: StoreStatus | None = None
        self.answers_at_once = self.is_certain = False
        self.max_delay_s = 0  # until the store has said so
        self.unconfirmed = "the store is connected, and did not confirm what was sent to it"
        self.patience_s = patience_s
        self.welcome: Welcome | None = None  # of the connection there is, if there is one
        self.connects, self.why_away = 0, ""  # the latter: why there is none, or the last one ended
        self.reached_s = self.heard_s = 0.0  # when it was made; when the newest question was asked that was answered
        self._sender = sender
        self._is_in_turn, self._clock = False, clock
        self._log, self._store_name = RateLimitedLog(log), ""
        self.store_clock = StoreClock(clock)
        self._requests = requests = PendingRequests(RequestRules(), clock, self._wake_sender)
        self._pace = RemotePace(requests)
        self.lags = self._pace.tell
        self.appends = self._appends_of(requests)
        self.queues = self._queues_of(requests, cache_bytes, self._wake_sender, clock)
        self.sessions = RemoteSessions(requests, self._is_trusted, self.queues.knows_up_to)
        self.groups = self._groups_of(requests)
        self.history: History = RemoteHistory(requests)
        self.bans = RemoteBans(requests, self)
        self.quotas = RemoteQuotas(requests, self)

    def listen(self, listener: GatewayListener) -> None:
        self.listener = self.appends.listener = self.queues.listener = listener

    # --- the gateway's turn: what is asked in it needs no other one to be sent

    def turn_begins(self) -> None:
        self._is_in_turn = True

    def turn_ends(self) -> None:
        self._is_in_turn = False
        if self._requests.to_send or self.queues.ranges.has_wanted:
            self._sender.flush()

    def _wake_sender(self) -> None:
        if not self._is_in_turn:
            self._sender.wake()

    # --- several times a second

    def tick(self) -> bool:
        self._log.tell_left_out()
        if self.welcome is not None:
            self.queues.tick()
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
    def congested(self) -> bool:
        return self.appends.unstored_bytes > CONGESTED_BYTES or self._pace.is_slow

    def _is_trusted(self) -> bool:
        """Whether the store has been heard of so lately that it cannot have given this gateway up."""
        welcome = self.welcome
        return welcome is not None and self._clock() - self.heard_s < HEARTBEATS_OF_TRUST * welcome.heartbeat_ms / 1000

    # --- frames out

    def outgoing(self) -> list[bytes]:
        """The bytes that may be sent now, in order; the rest waits for credit."""
        ranges = self.queues.ranges
        if ranges.has_wanted:
            ranges.ask()
        return self._requests.outgoing()

    # --- frames in

    def received(self, frame: Frame) -> None:
        """Deal with one frame. Raises WireError."""
        message = frame.message
        if frame.request_id:
            self._answer(frame)
        elif self.queues.heard(message, frame):
            self.listener.wake()
        elif isinstance(message, wire.TakenOver):
            self.listener.taken_over(message.client_id)
        elif self._pace.heard(message):
            pass
        elif not (self.bans.heard(message, self.listener) or judged(message, self.listener, self._requests.tell)):
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

    # --- another process

    def hold(self) -> None:
        """Deliver nothing to clients until go_on()."""
        self.sessions.is_held = True

    def go_on(self) -> None:
        self.sessions.is_held = False

    @property
    def has_under_way(self) -> bool:
        """Whether the store is away, or owes an answer to anything but what can be asked again by another process."""
        return self.welcome is None or self._requests.owes_other_than(ASKED_AGAIN)

    def ask_last(self, then: Callable[[], None]) -> None:
        """Call `then` once the store has handled everything that it was sent so far."""
        self._requests.ask(wire.Check([]), lambda answer, frame: then())
        self._sender.flush()

    def handed(self) -> HandedStore:
        """The state that another process needs to go on; nothing may be under way. Raises StoreAway."""
        if self.welcome is None:
            raise StoreAway(self.why_away or "there is no connection")
        return HandedStore(
            store_name=self._store_name,
            sequence=self.appends.mark,
            end=self.queues.end,
            safe=self.queues.safe,
            welcome=self.welcome,
            queues=self.queues.handed(),
            consumers=self.groups.handed(),
        )

    def take_over(self, handed: HandedStore) -> None:
        """Go on where another process was, with the next connection."""
        self._store_name, self.max_delay_s = handed.store_name, handed.welcome.max_delay_s
        self.appends.take_over(handed.sequence)
        self.appends.most_frame_bytes = handed.welcome.max_frame_bytes
        self.queues.take_over(handed)
        self.quotas.take_over(handed.welcome)

    # --- connections

    def connected(self, welcome: Welcome) -> None:
        """A connection was made: go on where the last one ended, if the store lets us."""
        is_first = not self._store_name
        restarted = welcome.store_name != self._store_name
        self.welcome, self.reached_s = welcome, self._clock()
        self.appends.most_frame_bytes = welcome.max_frame_bytes
        self.store_clock.set(welcome.now_ms, self.heard_s)
        self.max_delay_s = welcome.max_delay_s
        self._pace.connected(welcome)
        self.connects, self._store_name = self.connects + 1, welcome.store_name
        if not is_first and not welcome.resumed:
            self._begin_anew(welcome)
        else:
            self._go_on(welcome, restarted)
        self.queues.connected(welcome)
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
        self._requests.collect_waiting()
        newest = self.appends.begin_anew(welcome.appended)
        self.queues.clear()
        self.groups.clear()
        self.listener.disowned(newest, StoreAway("the store was out of reach for too long"))
        self.appends.safe_mark = self.appends.mark

    def _go_on(self, welcome: Welcome, restarted: bool) -> None:
        """Send again what the store does not have. One that was restarted knows no refs: follow all queues again."""
        missing = []
        for request in self._requests.collect_waiting():
            message = request.message
            if isinstance(message, wire.Append) and message.sequence <= welcome.appended:
                self.appends.answered(request, wire.Appended(0, 0))
            elif not (restarted and isinstance(message, OF_OLD_REFS + OF_OLD_CONSUMERS)):
                missing.append(request)
        if restarted:
            self._say_who_is_here()
            self.groups.restart()
            self.queues.restart()
        self._requests.to_send += missing

    def _say_who_is_here(self) -> None:
        """Tell a store that was restarted of connections that the log does not have."""
        held = self.listener.unlogged()
        for at in range(0, len(held), wire.ITEMS_PER_FRAME):
            client_ids, users = zip(*held[at : at + wire.ITEMS_PER_FRAME], strict=True)
            self._requests.tell(wire.Holds(list(client_ids), users))
