"""The store's end of one connection to a peer: bytes in, bytes out; no I/O. Frames become calls, events become frames.

All bytes to send wait for outgoing(), so that a turn of the loop makes one write of it. A peer that does not read
gets no more: its requests wait unread, and events are merged, as each is only a position.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NoReturn

import msgspec

from notify.api import Told
from notify.requests import client_requests, group_requests, operator_requests, quota_requests, reads
from notify.requests.permissions import narrowed, show, unstated, wanted_by, why_not
from notify.requests.reads import locate
from notify.requests.rights_requests import Question, RightsRequests
from notify.requests.users import Permits, User
from notify.server import long_frames
from notify.server.answers import changed, following, found
from notify.server.arrival import Arrival
from notify.server.claiming import claim
from notify.server.counters import WireCounters
from notify.server.describing import ANSWERS, GatewayQuestion
from notify.server.events import FRAME_ROOM_BYTES, Events
from notify.server.incoming import NEVER_HELD, HeldRequests, Incoming
from notify.server.operator_line import OperatorLine
from notify.server.peer_names import is_producers
from notify.server.peers import Peer, Peers
from notify.server.safe_answers import SafeAnswers, check_refused
from store.errors import WireError
from store.records._records import cuts_between_changes
from store.wire import log_messages as of_log
from store.wire import messages as wire
from store.wire import pace_messages as of_pace
from store.wire import quota_messages as of_quota
from store.wire import rights_messages as of_rights
from store.wire.credit import Credit
from store.wire.frames import Frame, FrameReader, frame_head
from store.wire.handshake import NO_TOKENS, ServerHandshake
from store.wire.messages import FailureCode, Hello, Refused, RefusedReason, Role, Welcome, WireMessage
from store.wire.operator_messages import BanMade, LoginsEnded

log = logging.getLogger("penstock.wire")

UNSENT_BYTES = 1 << 20  # with so much waiting to be sent no further request is looked at


class Conversation:
    """A Line (notify.line) of a peer, once it has said who it is."""

    def __init__(
        self,
        peers: Peers,
        tokens: Mapping[str, str | None],
        figures: WireCounters,
        wake: Callable[[], None],
        of_namespaces: Mapping[str, str] = NO_TOKENS,
    ) -> None:
        """`wake`: have outgoing() called soon."""
        self.peer: Peer | None = None
        self._events: Events  # once there is a peer
        self.arrival = Arrival()
        self._operators: OperatorLine
        self.is_closing = False  # once everything is sent
        self.is_judged = False  # a frame waits for another server, which says what its user may do
        self.fault: WireError | None = None  # found by an answer that came later
        self.opened_s = self.said_s = peers.clock()
        self._peers = peers
        self._figures = figures
        self.wake = wake
        self._handshake = ServerHandshake(self._meet, tokens, of_namespaces)
        self.permits = Permits(None)
        self._is_client = False
        self._applying = peers.hub.messages.applying
        self._held = HeldRequests(self._applying, self.wake)
        self._incoming: Incoming | None = None
        self._credit = Credit(1)
        self._chunks: list[bytes] = []
        self._chunks_bytes = 0
        self._is_gathering = False  # what is said now goes out at once
        self._answers = SafeAnswers()

    # --- bytes in

    def received(self, data: bytes) -> None:
        """Take what came, and deal with as much of it as there is room for answers. Raises WireError."""
        if self.is_closing:
            return
        self._figures.received_bytes += len(data)
        if self._incoming is None:
            self._begin(self._handshake.feed(data))
            return
        assert self.peer is not None
        self.peer.heard_s = self._peers.clock()
        self._incoming.data.append(data)
        self.go_on()

    def _begin(self, answer: bytes) -> None:
        """Send the end of the handshake, if it came to one."""
        if not answer:
            return
        self._send_bytes(answer)
        if (refused := self._handshake.refused) is not None:
            self.is_closing = True
            raise WireError(f"not let in ({refused.reason}): {refused.message}")
        assert self._known.role is not None
        self._incoming = Incoming(FrameReader(self._peers.max_frame_bytes, self._known.role), self._credit)
        if rest := self._handshake.rest:
            self.received(rest)

    def _meet(self, hello: Hello) -> Welcome | Refused | None:
        return self.arrival.meet(hello, self._let_in, self._judged_later, self._held)

    def _judged_later(self, answer: Welcome | Refused) -> None:
        """The end of a handshake that waited; check() raises the fault, if there is one."""
        if self.is_closing:
            return
        try:
            self._begin(self._handshake.answer(answer))
        except WireError as error:
            self.fault = error
        self.wake()

    def _let_in(self, hello: Hello, user: User | None) -> Welcome | Refused:
        if self.is_closing:  # it left while it was judged
            return Refused(RefusedReason.USER, "it is gone")
        self.permits = Permits(user)
        if user is not None:
            hello = msgspec.structs.replace(hello, namespace=user.namespace)
        met = self._peers.meet(hello, self, user)
        if isinstance(met, Refused):
            return met
        self.peer, welcome = met
        self._is_client = self.peer.role is Role.CLIENT
        self._credit = Credit(welcome.credit_bytes)
        self._events = Events(self.peer, welcome, self._figures, self._peers.max_frame_bytes, self._tell)
        for client_id in self._peers.hub.claims.contested(self.peer.member):
            self.tell_taken_over(client_id)
        self._operators = OperatorLine(hello, self.peer, self.tell_taken_over)
        return welcome

    def go_on(self) -> None:
        """Deal with frames that wait, for some time. Raises WireError."""
        incoming, waiting = self._incoming, self._held.waiting
        if incoming is None:
            self._held.go_on()
            return
        incoming.begin()
        if waiting:
            self._held.go_on()
        while self._chunks_bytes < UNSENT_BYTES and not self.is_closing and not self.is_judged and not waiting:
            if incoming.work is not None:
                self._known.heard_s = self._peers.clock()  # it is not read meanwhile
                if not incoming.is_done():
                    break
                continue  # what was under way may have come to where it waits
            frame = incoming.next_frame()
            if frame is None:
                break
            if self._is_client or self._applying.left_bytes:
                self._deal_with(frame)
            else:
                self._handle_now(frame)
        incoming.end()
        self.wake()  # more may be read in this turn of the loop, and is dealt with in the next one

    def _deal_with(self, frame: Frame) -> None:
        """Handle a frame, if its peer may ask that: gateways and operators see to it themselves."""
        incoming = self._incoming
        assert incoming is not None
        if not self._is_client:
            incoming.work = self._handled(frame)
        elif fault := unstated(frame.message):
            self._refuse_frame(frame, FailureCode.NOT_PERMITTED, fault)
        elif too_many := long_frames.too_many(self._known, frame, self._peers.settings):
            self._refuse_frame(frame, FailureCode.BAD_REQUEST, too_many)
        elif fault := self._known.own.fault(frame.message):
            self._answer(frame.request_id, wire.Failed(FailureCode.NOT_ALLOWED, fault))
        elif self.permits.lets(frame.message):
            incoming.work = self._handled(frame)
        else:
            incoming.work = self._if_permitted(narrowed(frame, self._known.own.names))

    def _if_permitted(self, frame: Frame) -> Iterator[object]:
        """Judge a frame and handle it, in steps. Those behind it wait until it is known whether the user may."""

        def heard() -> None:
            self.is_judged = False
            if not self.is_closing:
                self.wake()

        waits = partial(setattr, self, "is_judged", True)
        wanted = partial(wanted_by, frame, self._peers.hub.messages, self._known.own.names)
        refused = yield from self.permits.judging(wanted, waits, heard)
        if refused is None:
            yield from self._handled(frame) or ()
        else:
            self._figures.not_permitted += 1
            self._refuse_frame(frame, FailureCode.NOT_PERMITTED, why_not(refused, self.permits.name))

    def _handled(self, frame: Frame) -> Iterator[object] | None:
        """Handle a frame, at once or once it may be. What is left to do of it, in steps."""
        held = self._held
        if not held.waiting and (type(frame.message) in NEVER_HELD or not held.is_applying):
            return self._begun(frame)
        held.do(partial(self._handle_now, frame))
        return None

    def _handle_now(self, frame: Frame) -> None:
        assert self._incoming is not None
        self._incoming.work = self._begun(frame)

    def _begun(self, frame: Frame) -> Iterator[object] | None:
        """Handle a frame; with many records: what may take long is done in steps before it is stored."""
        handle = partial(_HANDLERS[type(frame.message)], self, frame, frame.message)
        if len(frame.records) < long_frames.LONG_BYTES:
            return handle()
        most = self._peers.append_limit_bytes
        if self._is_client and frame.message.sequence > self._known.appends.confirmed:  # type: ignore[attr-defined]
            return long_frames.publish(self._known, frame.records, most, partial(self._held.do, handle))
        cuts = cuts_between_changes(frame.records, long_frames.CHANGES_AT_ONCE)
        if cuts:
            return long_frames.append(self._known, frame.records, cuts, most, partial(self._held.do, handle))
        return handle()

    def _refuse_frame(self, frame: Frame, code: FailureCode, why: str) -> None:
        """As any request that fails; a sequence of appends goes on behind it."""
        answer = wire.Failed(code, why)
        if isinstance(frame.message, wire.Append | wire.Publish):
            answer = self._known.appends.refuse(frame.message.sequence, answer)
            if self._known.appends.has_too_many_refused:
                self.fault = WireError("too many Publishes were refused without a Pong in between")
            self._answers.add(frame.request_id, 0, answer, frame.message.sequence)
            self.wake()
        elif frame.request_id:
            self._answer(frame.request_id, answer)

    @property
    def has_room(self) -> bool:
        """Whether it may be told what it waited for."""
        return self._chunks_bytes < UNSENT_BYTES

    @property
    def is_full(self) -> bool:
        """Whether it had better not be given more before what it has to say is sent."""
        has_more = bool(self._held.waiting) or (self._incoming is not None and self._incoming.has_more)
        return has_more and not self.is_closing and not self.is_judged and not self._held.is_blocked

    @property
    def is_idle(self) -> bool:
        """Whether its peer is let in, and nothing is left of what came: it is neither full nor waiting."""
        incoming = self._incoming
        if incoming is None or incoming.frames is not None or incoming.work is not None:
            return False
        return not (incoming.data or self._held.waiting or self.is_judged)

    def why_banned(self) -> str:
        """Why a client that was let in may not stay; empty if it is not banned."""
        return self.arrival.banned(self.permits.user) if self._is_client and not self.is_closing else ""

    def check(self) -> None:
        """Raises WireError for what was found wrong later."""
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault

    @property
    def is_waiting(self) -> bool:
        """Whether it is not to be listened to until its user is judged."""
        return self.is_judged or self._held.is_blocked or self._handshake.is_waiting

    # --- bytes out

    def outgoing(self) -> list[bytes]:
        """The bytes to send now. Call this once in a turn of the loop."""
        if self._incoming is not None:
            self._incoming.worked_s = 0.0
        if self.peer is not None and not self.is_closing:
            self._is_gathering = True
            try:
                for message in self._operators.take() if self._operators.to_tell else ():
                    self._tell(message)
                if self._answers.has_some or self._is_client:
                    for request_id, answer in self._answers.take(self.peer):
                        self._answer(request_id, answer)
                    if self._answers.wants_ping:
                        self.ping()
                if self._applying.left_bytes:  # all of it is told at once
                    self._held.wake_later()
                else:
                    self._peers.groups.consumers.turn_ends()
                    self._events.tell()
                    if self._events.has_more:
                        self.wake()
            finally:
                self._is_gathering = False
        elif self._held.is_blocked:  # it is not let in so far
            self._held.wake_later()
        chunks, self._chunks = self._chunks, []
        if chunks:
            self._figures.sent_bytes += self._chunks_bytes
            self._chunks_bytes = 0
            self.said_s = self._peers.clock()
        return chunks

    def _send_bytes(self, frame: bytes) -> None:
        self._chunks.append(frame)
        self._chunks_bytes += len(frame)
        if not self._is_gathering:
            self.wake()

    def _tell(self, message: WireMessage, records: bytes = b"", request_id: int = 0) -> None:
        self._send_bytes(frame_head(message, request_id, len(records)))
        if records:
            self._send_bytes(records)

    def _answer(self, request_id: int, message: WireMessage, records: bytes = b"") -> None:
        if not self.is_closing:
            if self._is_client:
                message, records = self._known.own.cut(message, records)
            request, came_s = self._credit.give(request_id)
            self._figures.request_times[request].add(time.perf_counter() - came_s)
            self._tell(message, records, request_id)

    def tell_taken_over(self, client_id: str) -> None:
        self._events.taken_over[client_id] = None
        self.wake()

    def told(self, message: Told | wire.Judge | GatewayQuestion) -> None:
        self._operators.told(message)
        self.wake()

    def close(self, reason: str) -> None:
        if not self.is_closing:
            self._tell(wire.Goodbye(reason))
            self.is_closing = True

    def ping(self) -> None:
        self._answers.pinged()
        self._tell(wire.Ping())

    @property
    def has_unanswered(self) -> bool:
        """Whether Appends wait to become safe."""
        return bool(self._answers or self._held)

    def lost(self) -> None:
        """The connection is gone."""
        self.is_closing = True
        if self._incoming is not None:
            self._incoming.clear()
        self._held.clear()
        self._chunks.clear()
        self._peers.groups.consumers.forget(self)
        if self.peer is not None:
            self._peers.lost(self.peer, self)

    # --- requests

    def _append(self, frame: Frame, message: wire.Append) -> None:
        peer = self._known
        self._figures.appends += 1
        answer = peer.appends.append(message.sequence, frame.records, self._peers.append_limit_bytes)
        check_refused(peer, "Appends")
        stored = answer if isinstance(answer, wire.Appended) else None
        mark = stored.end or peer.store.appends.mark if stored is not None else 0
        refused = 0 if stored is not None else message.sequence
        if self._applying.left_bytes:
            self._held.behind(partial(self._answers.add, frame.request_id, mark, answer, refused))
        else:
            self._answers.add(frame.request_id, mark, answer, refused)

    def _publish(self, frame: Frame, message: wire.Publish) -> None:
        peer = self._known
        self._figures.appends += 1
        published = peer.appends.publish(message.sequence, frame.records, self._peers.append_limit_bytes)
        check_refused(peer, "Publishes")
        self._held.behind(lambda: self._answers.add_published(peer, frame.request_id, message, *published()))
        self.wake()

    def _client_read(self, frame: Frame, message: client_requests.Question) -> None:
        self._reply(frame, lambda limit: client_requests.read(self._known.store, message, limit))

    def _count(self, frame: Frame, message: of_log.QueueOffsets) -> Iterator[None]:
        self._figures.reads += 1
        return long_frames.queue_offsets(self._known, message, partial(self._answer, frame.request_id))

    @property
    def _known(self) -> Peer:
        assert self.peer is not None
        return self.peer

    def _follow(self, frame: Frame, message: wire.Follow) -> None:
        self._events.tell()  # the answer says where the log ends
        self._answer(frame.request_id, self._events.up_to(following(self._known, message)))

    def _check(self, frame: Frame, message: wire.Check) -> Iterator[None]:
        def then(ends: list[tuple[int, int]]) -> None:
            self._events.tell()  # what is not said yet is not lost
            self._answer(frame.request_id, self._events.up_to(wire.Checked(ends, self._known.store.queues.end)))

        return long_frames.check(self._known, message.refs[: self._events.most_ends], then)

    def _read(self, frame: Frame, message: wire.Read) -> Iterator[None] | None:
        return self._events.catch_up(lambda: self._reply(frame, partial(self._events.read, message)))

    def _look_up(self, frame: Frame, message: WireMessage) -> None:
        self._reply(frame, lambda limit: _FINDS[type(message)](self._known.store, message, limit))

    def _change(self, frame: Frame, message: wire.CancelDelayed | of_log.HoldLog) -> None:
        """The answer waits until it is as safe as what is appended."""
        self._answer_when_safe(frame.request_id, changed(self._known, message))

    def _reply(self, frame: Frame, read: Callable[[int], reads.Answer]) -> WireMessage:
        self._figures.reads += 1
        answer, records = found(frame.message, read, self._peers.max_frame_bytes - FRAME_ROOM_BYTES)
        self._answer(frame.request_id, answer, records)
        return answer

    def _list_delayed(self, frame: Frame, message: wire.ListDelayed) -> Iterator[None]:
        self._figures.reads += 1
        listed = partial(reads.list_delayed, self._known.store, message)
        answer, _ = found(message, listed, self._peers.max_frame_bytes - FRAME_ROOM_BYTES)
        return show(answer, self.permits, self._known.own.names, partial(self._answer, frame.request_id))

    def _locate(self, frame: Frame, message: wire.Locate) -> None:
        locate(self._known.store, message, partial(self._answer, frame.request_id))

    def _claim(self, frame: Frame, message: wire.Claim) -> None:
        then, most = partial(self._answer, frame.request_id), self._peers.max_frame_bytes
        claim(self._known, message, most, lambda: self._events.told_end, then)

    def _operate(self, frame: Frame, message: WireMessage) -> Iterator[None] | None:
        return self._operators.requests.do(message, partial(self._answer_when_safe, frame.request_id))

    def _answer_when_safe(self, request_id: int, answer: WireMessage) -> None:
        self._answers.add(request_id, self._known.store.appends.mark, answer)
        self.wake()

    def _tell_rights(self, frame: Frame, message: Question) -> Iterator[None]:
        def waits() -> None:
            self.is_judged = True

        def done(answer: WireMessage) -> None:
            self.is_judged = False
            self._answer(frame.request_id, answer)
            self.wake()

        return RightsRequests(self.permits, self._known.own, waits).do(message, done)

    def _ask_group(self, frame: Frame, message: WireMessage) -> Iterator[None] | None:
        self.wake()  # what was said may be written at once
        return self._peers.groups.handle(self._known.name, self, message, partial(self._answer, frame.request_id))

    def _ping(self, _: Frame, __: wire.Ping) -> None:
        self._tell(wire.Pong(self._peers.hub.messages.now_ms()))

    def _pong(self, _: Frame, __: wire.Pong) -> None:
        self._answers.ponged(self._known)

    def _goodbye(self, _: Frame, message: wire.Goodbye) -> None:
        # Of clients there may be many a second.
        level = logging.INFO if self._known.role is Role.GATEWAY else logging.DEBUG
        log.log(level, "peer %s said goodbye: %s", self._known.name, message.reason)
        self.is_closing = True
        self._peers.left(self._known, "goodbye", for_good=not is_producers(self._known.name))

    def _unexpected(self, _: Frame, message: WireMessage) -> NoReturn:
        raise WireError(f"{type(message).__name__} in the middle of a connection")


_HANDLERS: dict[type[WireMessage], Callable[..., Iterator[object] | None]] = {
    wire.Append: Conversation._append,
    wire.Follow: Conversation._follow,
    wire.Unfollow: lambda self, _, message: long_frames.unfollow(self._known, self._events.push, message),
    wire.Floors: lambda self, _, message: long_frames.floors(self._known, message),
    wire.Check: Conversation._check,
    wire.Read: Conversation._read,
    wire.Enough: lambda self, _, message: long_frames.enough(self._events.push, message),
    wire.Locate: Conversation._locate,
    **dict.fromkeys((wire.CancelDelayed, of_log.HoldLog), Conversation._change),
    wire.ListDelayed: Conversation._list_delayed,
    wire.Claim: Conversation._claim,
    wire.Release: lambda self, _, message: self._known.store.sessions.release(message.client_id),
    wire.Holds: lambda self, _, message: long_frames.holds(self._known, message),
    wire.Judged: lambda self, _, message: self._known.questions.answered(message),
    of_pace.Behind: lambda self, _, message: self._known.store.lags(message.is_behind),
    of_quota.LiveSubscriptions: lambda self, _, message: quota_requests.tell_live(self._known.store, message),
    wire.Publish: Conversation._publish,
    wire.Scan: Conversation._client_read,
    wire.Seek: Conversation._client_read,
    wire.Get: Conversation._client_read,
    wire.GetDelayed: Conversation._client_read,
    wire.Find: Conversation._client_read,
    **dict.fromkeys((of_rights.Rights, of_rights.Permitted, of_rights.ReadableFilters), Conversation._tell_rights),
    BanMade: lambda self, _, message: self._operators.ban_made(message),
    LoginsEnded: lambda self, _, message: self._operators.logins_ended(message),
    wire.Ping: Conversation._ping,
    wire.Pong: Conversation._pong,
    wire.Goodbye: Conversation._goodbye,
    wire.Hello: Conversation._unexpected,
}
_FINDS: dict[type[WireMessage], Callable[..., reads.Answer]] = {
    wire.ReadAt: reads.read_positions,
    wire.Retained: reads.find_retained_messages,
    of_quota.TakeMessage: quota_requests.answer,
    of_quota.TakeSubscriptions: quota_requests.answer,
}
_HANDLERS |= dict.fromkeys(_FINDS, Conversation._look_up)
_HANDLERS |= dict.fromkeys(ANSWERS, lambda self, _, message: self._known.descriptions.answered(message))
_HANDLERS |= dict.fromkeys(client_requests.LOG_REQUESTS, Conversation._client_read)
_HANDLERS[of_log.QueueOffsets] = Conversation._count
_HANDLERS |= dict.fromkeys(operator_requests.REQUESTS, Conversation._operate)
_HANDLERS |= dict.fromkeys(group_requests.REQUESTS, Conversation._ask_group)
