"""Who uses the store over the wire, by name: what each has, how far its appends have come, how long it is waited for.

A peer outlives its connections. One that is not heard of for lease_ms is gone: its sessions are closed, and should it
come back it begins anew. The log knows the names, so that a store which is restarted waits for them as well.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from lightqueue.queues._queues import Queue
from lightqueue.queues.left_messages import Allowed, LeftMessage
from lightqueue.reading.following import Followed
from notify.api import Told
from notify.local.hub import Departure, Hub
from notify.local.own_names import ALL, OwnNames, is_named
from notify.local.questions import Questions
from notify.local.store import LocalStore
from notify.requests import contents
from notify.requests.client_requests import published, stands_at
from notify.requests.contents import failure_code
from notify.requests.group_requests import GroupRequests
from notify.requests.refused_appends import MOST_RANGES, REFUSED_BY_DISK, RefusedAppends
from notify.requests.users import User
from notify.server.describing import Descriptions
from notify.server.line import Line
from notify.server.peer_names import PeerNames, is_producers, name_fault
from notify.server.prepared import Prepared, begun, in_time, limits_of
from notify.settings import WireSettings
from store.errors import RecordTooLarge, StoreError
from store.namespaces import MARK
from store.ratelimit import RateLimitedLog
from store.records._records import RecordBatch, topic_runs
from store.records.records import RECORD_HEADER_BYTES
from store.state.changes import (
    Change,
    GroupAdvanced,
    PeerAppended,
    PeerGone,
    PeerOwner,
    SessionOpened,
    encode_change,
)
from store.wire import messages as wire
from store.wire.handshake import JUDGING_VERSION
from store.wire.messages import FailureCode, Hello, Refused, RefusedReason, Role, Welcome
from store.wire.operator_messages import ClientDetails, GatewayReport

log = logging.getLogger("penstock.wire")

HEAD_ROOM_BYTES = 4_096  # of a frame, or of what an append takes in the log, for what is not a peer's records
LATE_S = 0.25  # a tick that comes later than so long after the one before says that this process stood still
RETRY_S = 1.0
UNSAFE_NOTED = 64  # Appends of a peer; with so many it is looked at which of them are safe by now
MOST_FOLLOWED = 1_000_000
MOST_FOLLOWED_BY_CLIENT = 10_000  # each costs the store's memory a live queue
CHECK_CLIENTS_S = 30.0
CLIENTS_REMEMBERED = 10_000  # and as many producers


class Peer:
    """The state of one peer, by its name in the log: sessions and queues (its Member's), and appends in the log."""

    def __init__(self, name: str, store: LocalStore, hub: Hub, heard_s: float) -> None:
        self.name = name
        self.store = store
        self.member = store.member
        self.role: Role | None = None  # not known yet after a restart
        self.own = OwnNames(ALL)  # what it may name
        self.owner: PeerOwner = (None, "")  # of a client: its user, if users are judged, and its namespace
        self.left_by = b""  # what its delayed messages have to say of that
        self.known_topics: dict[bytes, None] | None = None  # where what it publishes counts for its user
        self.counts_for = ""  # as the log names the user, or clients without one
        self.line: Line | None = None
        self.can_judge = False  # it is a gateway that can be asked about what is due, and is connected
        self.questions, self.prepared = Questions(), Prepared()
        self.descriptions = Descriptions()
        self.heard_s = heard_s
        self.queues: dict[int, Queue] = {}  # by ref
        self.refs: dict[Queue, int] = {}
        self.follows: Counter[Queue] = Counter()
        self.began: dict[Queue, int] = {}  # queue_offset from which on it follows each
        self.hub = hub
        self._last_ref = 0
        self._unsafe: deque[tuple[int, int]] = deque()  # (sequence, log_offset of its end), oldest first
        state = hub.messages.peers.get(name)
        self._sequence = self._safe_sequence = state.sequence if state is not None else 0
        self._refused = RefusedAppends(state.refused if state is not None else ())
        self._lost = state.lost if state is not None else (1, 0)  # which may not be in the log: see PeerState
        store.member.listen(self, self)

    # --- StoreListener, SessionListener

    def wake(self) -> None:
        if self.line is not None:
            self.line.wake()

    def safe_advanced(self) -> None:
        self.wake()

    def taken_over(self, client_id: str) -> None:
        if self.line is not None:
            self.line.tell_taken_over(client_id)

    def told(self, message: Told) -> None:
        if self.line is not None and self.role is Role.GATEWAY:
            self.line.told(message)

    def judge(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> None:
        if self.line is not None:
            self.line.told(self.questions.ask(messages, then))

    def describe(self, client_id: str, then: Callable[[ClientDetails | None], None]) -> None:
        self.descriptions.describe(self.line, client_id, then)

    def report(self, after: int, then: Callable[[GatewayReport | None], None]) -> None:
        self.descriptions.report(self.line, after, then)

    def lost_line(self) -> None:
        """Its connection ended."""
        self.line, self.can_judge = None, False
        self.prepared.clear()
        self._refused.lost_line()
        self.questions.lost()
        self.descriptions.lost()

    # --- appends

    @property
    def confirmed(self) -> int:
        """Every Append up to this sequence is in the log, and safe."""
        self._note_safe()
        doubtful = [first for first, last in (*self._refused.ranges[:1], self._lost) if first <= last]
        return min([self._safe_sequence, *(first - 1 for first in doubtful)])

    def _note_safe(self) -> None:
        safe = self.store.appends.safe_mark
        while self._unsafe and self._unsafe[0][1] <= safe:
            self._safe_sequence = self._unsafe.popleft()[0]

    def append(self, sequence: int, records: memoryview, limit_bytes: int) -> wire.WireMessage:
        """Store what came in an Append, if it is not there already. Appended, to be said once it is safe, or Failed."""
        refused = self._refused
        if refused.ranges and refused.has(sequence, stops=self.role is Role.GATEWAY):
            return wire.Failed(FailureCode.UNAVAILABLE, "it was refused already, and others were stored since")
        if sequence <= self._sequence and not self._lost[0] <= sequence <= self._lost[1]:
            return wire.Appended(0, 0)
        if refused.stops_from:
            return self._refuse(sequence, FailureCode.UNAVAILABLE, "one before it was refused")
        try:
            batch, changes = self._batch(sequence, records, limit_bytes)
            start = self.store.appends.append_in_steps(batch, self._before(changes) if changes else None)
        except (ValueError, StoreError) as error:
            return self._refuse(sequence, failure_code(error), str(error))
        end = start + batch.size
        self._sequence = max(sequence, self._sequence)
        if len(self._unsafe) >= UNSAFE_NOTED:
            self._note_safe()
        self._unsafe.append((self._sequence, end))
        self._lost = (sequence + 1, self._lost[1])  # they come in order
        return wire.Appended(start, end)

    def _before(self, changes: list[Change]) -> Callable[[], None]:
        """An append with changes of state. Returns what to call once all of it is applied."""
        taken = [change for change in changes if isinstance(change, GroupAdvanced)]
        self.hub.consumers.will_take(taken)

        def applied() -> None:
            self.hub.consumers.took(taken)
            for change in changes:
                if isinstance(change, SessionOpened):
                    self.hub.claims.hold(self.member, change.client_id)

        return applied

    def publish(
        self, sequence: int, records: memoryview, limit_bytes: int
    ) -> Callable[[], tuple[wire.WireMessage, int]]:
        """As append(). To be called once all is applied: it gives an answer that says where the messages are, and the
        log_offset where they end."""
        is_again = sequence <= self._sequence and not self._lost[0] <= sequence <= self._lost[1]
        answer = self.append(sequence, records, limit_bytes)
        return lambda: self._published(sequence, records, limit_bytes, answer, is_again)

    def _published(
        self, sequence: int, records: memoryview, limit_bytes: int, answer: wire.WireMessage, is_again: bool
    ) -> tuple[wire.WireMessage, int]:
        if isinstance(answer, wire.Failed):
            return answer, 0
        messages = self.hub.messages
        if not is_again:
            assert isinstance(answer, wire.Appended)
            return published(messages, records, answer.start + RECORD_HEADER_BYTES), answer.end
        return self._published_before(sequence, records, limit_bytes), messages.end

    def _published_before(self, sequence: int, records: memoryview, limit_bytes: int) -> wire.WireMessage:
        """The answer to a Publish that was sent again. What it says need not be what it said the first time."""
        messages = self.hub.messages
        state = messages.peers.get(self.name)
        place = state.place(sequence) if state is not None else None
        unknown = wire.Failed(FailureCode.NO_SUCH_POSITION, "it is stored, but nobody knows any more where")
        if place is None or not stands_at(messages, records, place - len(records)):
            return unknown
        try:
            contents.add_records(RecordBatch(), records, Role.CLIENT, self.limits(limit_bytes))
        except ValueError as error:
            return wire.Failed(FailureCode.BAD_REQUEST, str(error))
        answer = published(messages, records, place - len(records))
        is_there = all(
            queue_offset >= 0 or not is_queued
            for queue_offset, (_, _, _, is_queued) in zip(answer.queue_offsets, topic_runs(records), strict=True)
        )
        return answer if is_there else unknown

    def _batch(self, sequence: int, records: memoryview, limit_bytes: int) -> tuple[RecordBatch, list[Change]]:
        """The records and how far the peer has come with them: all of it gets into the log, or nothing."""
        assert self.role is not None
        if len(records) > limit_bytes:
            raise RecordTooLarge(len(records), limit_bytes)
        batch, changes = self.prepared.take(records) or begun(records, self.role, self.limits(limit_bytes))
        if changes:
            self.hub.consumers.check_taken(self.name, [each for each in changes if isinstance(each, GroupAdvanced)])
            changes, late = in_time(changes, self._is_others)
            if late or any(isinstance(change, SessionOpened) and change.holder != self.name for change in changes):
                batch = RecordBatch()
                batch.begin_atomic()
                contents.add_held_by(batch, records, self.name, late)
        is_client = self.role is Role.CLIENT
        if is_client and (fault := self.own.fault_of_records(records) or contents.left_fault(records, self.left_by)):
            raise contents.BadContents(fault)
        user = self.counts_for if is_client else ""
        counted = self.hub.quotas.take_records(user, self.known_topics, records) if is_client else ()
        newest, refused = max(sequence, self._sequence), self._refused.ranges
        owner = self.owner if is_client else None
        batch.append(*encode_change(PeerAppended(self.name, newest, refused, is_client, user, counted, owner)))
        batch.end_atomic()
        return batch, changes

    def limits(self, size_bytes: int) -> contents.ContentLimits:
        """Of its records."""
        return limits_of(self.hub.messages, self.role, size_bytes)

    def _is_others(self, client_id: str) -> bool:
        return self.hub.claims.holder(client_id) not in (None, self.member)

    def refuse(self, sequence: int, answer: wire.Failed) -> wire.Failed:
        """Its user may not: the answer to an Append that is not looked at. One that is stored already is no news."""
        if sequence > self._sequence:
            self._refuse(sequence, answer.code, answer.message)
        return answer

    def _refuse(self, sequence: int, code: FailureCode, why: str) -> wire.Failed:
        self._refused.add(sequence, stops=self.role is Role.GATEWAY and code in REFUSED_BY_DISK)
        return wire.Failed(code, why)

    @property
    def has_too_many_refused(self) -> bool:
        return len(self._refused.ranges) > MOST_RANGES

    def knows_refused(self, sequence: int) -> None:
        """Forget refusals up to this sequence, which the peer knows."""
        self._refused.known(sequence)

    # --- queues

    def follow(self, request: wire.Follow) -> wire.WireMessage:
        fault = contents.filter_fault(request.topic_filter)
        if fault:
            return wire.Failed(FailureCode.BAD_REQUEST, f"topic filter {fault}")
        most = MOST_FOLLOWED if self.role is Role.GATEWAY else MOST_FOLLOWED_BY_CLIENT
        if len(self.queues) >= most:
            return wire.Failed(FailureCode.NOT_ALLOWED, f"more than {most} queues at a time")
        found: list[wire.QueueInfo] = []

        def then(followed: list[Followed]) -> None:
            found.extend(self._info(each) for each in followed)

        self.store.queues.follow(request.topic_filter, request.start, request.history, request.spills, then)
        return wire.Following(found, self.store.queues.end)

    def _info(self, followed: Followed) -> wire.QueueInfo:
        queue = followed.queue
        if queue not in self.refs:
            self._last_ref += 1
            self.refs[queue] = self._last_ref
            self.queues[self._last_ref] = queue
        self.follows[queue] += 1
        self.began[queue] = min(followed.position, self.began.get(queue, followed.position))
        return wire.QueueInfo(self.refs[queue], queue.kind, queue.next_offset, followed.position)

    def unfollow(self, refs: list[int]) -> None:
        for ref in refs:
            queue = self.queues.get(ref)
            if queue is None:
                continue
            self.follows[queue] -= 1
            if not self.follows[queue]:
                del self.follows[queue], self.queues[ref], self.refs[queue], self.began[queue]
            self.store.queues.unfollow(queue)

    def ends(self, refs: list[int]) -> list[tuple[int, int]]:
        """Where these queues end."""
        return [(ref, queue.next_offset) for ref in refs if (queue := self.queues.get(ref)) is not None]

    def set_floors(self, floors: list[tuple[int, int]]) -> None:
        known = [(self.queues[ref], floor) for ref, floor in floors if ref in self.queues]
        self.store.queues.needed_from(known)


class Peers:
    """Owner of all peers of a store. `clock`: monotonic seconds."""

    def __init__(self, hub: Hub, settings: WireSettings, store_name: str, clock: Callable[[], float]) -> None:
        """`store_name`: of this process and no other, since what refs stand for is known to it alone.

        Peers consume groups, so no message is handed out that does not fit in a frame."""
        self.settings = settings
        self.clock = clock
        self.hub = hub
        self.leases_ended = 0
        self.max_frame_bytes = min(settings.max_frame_bytes, hub.messages.log.largest_append_bytes) & ~7
        answer_bytes = self.max_frame_bytes - HEAD_ROOM_BYTES
        hub.consumers.hand_out(answer_bytes - HEAD_ROOM_BYTES, clock)
        self._store_name = store_name
        self._events = RateLimitedLog(log)
        self._ticked_s = now_s = clock()
        self._peers = {name: Peer(name, LocalStore(hub, member), hub, now_s) for name, member in hub.returning.items()}
        self._names = PeerNames(self._peers, hub.messages.peers)
        self.groups = GroupRequests(hub.consumers, answer_bytes, clock, self._names.shown)
        self._departures: deque[tuple[str, Departure]] = deque()  # and the name that the log is to forget, if it is
        self._try_again_s = 0.0
        self._check_clients_s = 0.0

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def append_limit_bytes(self) -> int:
        """Records that one Append may have."""
        return self.max_frame_bytes - HEAD_ROOM_BYTES

    # --- coming and going

    def meet(self, hello: Hello, line: Line, is_user: User | None = None) -> tuple[Peer, Welcome] | Refused:
        """A peer comes in. If the store knows it, it has again what it had before."""
        if not hello.name:
            return Refused(RefusedReason.BAD_HELLO, "a peer needs a name that no other process has")
        if hello.name.startswith(MARK):
            return Refused(RefusedReason.BAD_HELLO, f"no peer may have a name that begins with {MARK}")
        role = Role(hello.role)
        if not is_named(hello.namespace):
            return Refused(RefusedReason.BAD_HELLO, f"no namespace is called {hello.namespace!r}")
        owner = (is_user.name if is_user is not None else None, hello.namespace)
        name = self._names.of(role, hello.namespace, hello.name)
        if fault := name_fault(role, owner, *self._names.known(name)):
            return Refused(RefusedReason.BAD_HELLO, f"the name {hello.name!r} {fault}")
        peer = self._peers.get(name)
        resumed = peer is not None
        if peer is None:
            peer = self._peers[name] = Peer(name, LocalStore.join(self.hub, name), self.hub, 0.0)
        if role is Role.CLIENT:
            peer.owner, peer.own = owner, OwnNames(hello.namespace)
        if peer.line is not None:
            peer.line.close("the same peer made another connection")
            peer.lost_line()
            self.hub.withdraw(peer.member)
        peer.role, peer.line, peer.heard_s = role, line, self.clock()
        peer.left_by = is_user.left_by if is_user is not None else b""
        if is_user is not None:
            self._forget_refs(peer)
        if role is Role.CLIENT:
            peer.known_topics, peer.counts_for = self.hub.quotas.of_client(*owner)
        peer.descriptions.met(hello)
        peer.can_judge = role is Role.GATEWAY and JUDGING_VERSION in hello.versions
        if role is Role.GATEWAY:
            self.hub.gateways[peer.name] = peer.member
            if self.hub.messages.peers.get(peer.name) is None:
                self._remember(peer.name)
        return peer, self._welcome(peer, resumed, owner[0] or "")

    def _forget_refs(self, peer: Peer) -> None:
        """What a user opened on another connection it opens again, since what it may do can be less by now."""
        if peer.follows:
            hub = self.hub
            self._departures.append(("", Departure(hub.claims, hub.followers, peer.member, peer.follows)))
            peer.queues, peer.refs, peer.follows, peer.began = {}, {}, Counter(), {}
        self.groups.forget_refs(peer.name)

    def _remember(self, name: str) -> None:
        """Should the store be restarted, a gateway is not to lose its clients because it has not appended so far."""
        batch = RecordBatch()
        batch.append(*encode_change(PeerAppended(name, 0)))
        with suppress(StoreError):  # its first append does the same
            self.hub.messages.append(batch)

    def _welcome(self, peer: Peer, resumed: bool, user: str) -> Welcome:
        messages = self.hub.messages
        return Welcome(
            version=1,
            store_name=self._store_name,
            epoch=0,
            credit_bytes=max(self.settings.credit_bytes, self.max_frame_bytes),
            max_frame_bytes=self.max_frame_bytes,
            heartbeat_ms=self.settings.heartbeat_ms,
            live_only=list(messages.settings.live_only),
            log_end=messages.end,
            appended=peer.confirmed,
            resumed=resumed,
            now_ms=messages.now_ms(),
            address=self.settings.advertise,
            max_delay_s=messages.settings.max_delay_s,
            namespace=peer.own.namespace if peer.role is Role.CLIENT else "",
            left_by=peer.left_by,
            counted=int(self.hub.quotas.counted),
            max_changes=self.settings.max_changes_per_publish,
            log_identity=messages.log.name,
            user=peer.own.user(user),
        )

    def lost(self, peer: Peer, line: Line) -> None:
        """A connection ended. What the peer has it keeps for a while; what it waits for it will ask for again."""
        if peer.line is line:
            peer.lost_line()
            self.hub.withdraw(peer.member)

    def left(self, peer: Peer, why: str, for_good: bool = True) -> None:
        """A peer is gone, with or without a word. What it appended is forgotten if that is `for_good`."""
        if self._peers.get(peer.name) is not peer:
            return
        del self._peers[peer.name]
        if peer.line is not None:
            peer.line.close(why)
            peer.lost_line()
        self._departures.append((peer.name if for_good else "", self.hub.leave(peer.member, peer.follows)))
        self.groups.left(peer.name)
        self.go_on()

    def go_on(self) -> bool:
        """Clean up some of what those left that are gone. True if there is more to do at once."""
        if not self._departures or self.clock() < self._try_again_s or self.hub.messages.applying.left_bytes:
            return False
        name, departure = self._departures[0]
        try:
            if not departure.is_over:
                departure.step()
            if departure.is_over:
                self._forget([name])
                self._departures.popleft()
        except StoreError:  # on a full disk
            self._try_again_s = self.clock() + RETRY_S
            return False
        return bool(self._departures)

    def _forget(self, names: Iterable[str]) -> None:
        """Have the log say that peers are gone, once it says so of their sessions' connections. Raises a StoreError."""
        batch = RecordBatch()
        for name in names:
            if name not in self._peers and self.hub.messages.peers.get(name) is not None:
                batch.append(*encode_change(PeerGone(name)))
        if batch.size:
            self.hub.messages.append(batch)

    def _is_client(self, peer: Peer) -> bool:
        """Whether it holds nothing but what it appended, which is remembered for longer: it may send that again."""
        state = self.hub.messages.peers.get(peer.name)
        return state is not None and state.is_client

    def _forget_clients(self) -> None:
        """Give up clients that have not appended for long, and the oldest of too many."""
        away = [(name, state) for name, state in self.hub.messages.peers.clients() if name not in self._peers]
        gone = []
        for producers, memory_s in ((False, self.settings.client_memory_s), (True, self.settings.producer_memory_s)):
            those = [each for each in away if is_producers(each[0]) is producers]
            oldest_ms = time.time() * 1000 - memory_s * 1000
            too_many = len(those) - CLIENTS_REMEMBERED
            gone += [name for at, (name, state) in enumerate(those) if at < too_many or state.appended_ms < oldest_ms]
        with suppress(StoreError):  # it is tried again
            self._forget(gone)

    # --- leases

    def tick(self) -> None:
        """To be called every few hundredths of a second: give up who was not heard of for too long."""
        if self.hub.messages.applying.left_bytes:
            return  # what they say waits, and some are not listened to
        now_s = self.clock()
        stalled_s = now_s - self._ticked_s - LATE_S
        self._ticked_s = now_s
        if stalled_s > 0:  # no peer could be heard meanwhile
            for peer in self._peers.values():
                peer.heard_s += stalled_s
        for peer in self._peers.values():
            peer.descriptions.tick()
        lease_s = self.settings.lease_ms / 1000
        for peer in [peer for peer in self._peers.values() if now_s - peer.heard_s > lease_s]:
            self.leases_ended += 1
            self._events.warning("lease", "peer %s was not heard of for %d ms: gone", peer.name, lease_s * 1000)
            self.left(peer, f"not heard of for {self.settings.lease_ms} ms", for_good=not self._is_client(peer))
        if now_s >= self._check_clients_s:
            self._check_clients_s = now_s + CHECK_CLIENTS_S
            self._forget_clients()
        self.go_on()
        self._events.settle()
