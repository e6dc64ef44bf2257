"""The peers that use the store over the wire, by name: what each has, and how far its appends are.

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
from notify.local.store import LocalQueues, LocalStore
from notify.requests import contents
from notify.requests.group_requests import GroupRequests
from notify.requests.users import User
from notify.server.appends import PeerAppends
from notify.server.describing import Descriptions
from notify.server.line import Line
from notify.server.peer_names import PeerNames, is_producers, name_fault
from notify.settings import WireSettings
from store.errors import StoreError
from store.namespaces import MARK
from store.ratelimit import RateLimitedLog
from store.records._records import RecordBatch
from store.state.changes import (
    PeerAppended,
    PeerGone,
    PeerOwner,
    encode_change,
)
from store.wire import messages as wire
from store.wire.base import ANOTHER_CONNECTION
from store.wire.handshake import JUDGING_VERSION
from store.wire.messages import FailureCode, Hello, Refused, RefusedReason, Role, Welcome
from store.wire.operator_messages import ClientDetails, GatewayReport

log = logging.getLogger("penstock.wire")

HEAD_ROOM_BYTES = 4_096  # of a frame, or of what an append takes in the log, for what is not a peer's records
LATE_S = 0.25  # a tick that comes later than so long after the one before says that this process stood still
RETRY_S = 1.0
FIND_LEADER_S = 5.0  # more than its lease for a peer of a cluster's last leader: it may wait for that one at first
MOST_FOLLOWED = 1_000_000
MOST_FOLLOWED_BY_CLIENT = 10_000  # each costs the store's memory a live queue
CHECK_CLIENTS_S = 30.0
CLIENTS_REMEMBERED = 10_000  # and as many producers


class FollowedQueues:
    """Owner of the queues that one peer follows, and of the refs by which the peer and its store call them."""

    def __init__(self, queues: LocalQueues) -> None:
        self.by_ref: dict[int, Queue] = {}
        self.refs: dict[Queue, int] = {}
        self.follows: Counter[Queue] = Counter()
        self.began: dict[Queue, int] = {}  # queue_offset from which on it follows each
        self._queues = queues
        self._last_ref = 0

    def forget(self) -> Counter[Queue]:
        """Forget the followed queues. Returns them, with the number of times that each was followed."""
        follows = self.follows
        self.by_ref, self.refs, self.follows, self.began = {}, {}, Counter(), {}
        return follows

    def follow(self, request: wire.Follow, role: Role | None, knows_tier: bool = True) -> wire.WireMessage:
        """`knows_tier`: the peer can read on in the tier what the log does not have any more."""
        fault = contents.filter_fault(request.topic_filter)
        if fault:
            return wire.Failed(FailureCode.BAD_REQUEST, f"topic filter {fault}")
        most = MOST_FOLLOWED if role is Role.GATEWAY else MOST_FOLLOWED_BY_CLIENT
        if len(self.by_ref) >= most:
            return wire.Failed(FailureCode.NOT_ALLOWED, f"more than {most} queues at a time")
        found: list[wire.QueueInfo] = []
        begins: list[int] = []

        def then(followed: list[Followed]) -> None:
            found.extend(self._info(each) for each in followed)
            begins.extend(each.begins for each in followed)

        self._queues.follow(request.topic_filter, request.start, request.history, request.spills, then)
        if knows_tier and begins[0]:
            return wire.FollowingPast(found, self._queues.end, begins[0])
        return wire.Following(found, self._queues.end)

    def _info(self, followed: Followed) -> wire.QueueInfo:
        queue = followed.queue
        if queue not in self.refs:
            self._last_ref += 1
            self.refs[queue] = self._last_ref
            self.by_ref[self._last_ref] = queue
        self.follows[queue] += 1
        self.began[queue] = min(followed.position, self.began.get(queue, followed.position))
        return wire.QueueInfo(self.refs[queue], queue.kind, queue.next_offset, followed.position)

    def unfollow(self, refs: list[int]) -> None:
        for ref in refs:
            queue = self.by_ref.get(ref)
            if queue is None:
                continue
            self.follows[queue] -= 1
            if not self.follows[queue]:
                del self.follows[queue], self.by_ref[ref], self.refs[queue], self.began[queue]
            self._queues.unfollow(queue)

    def ends(self, refs: list[int]) -> list[tuple[int, int]]:
        """The ends of these queues."""
        return [(ref, queue.next_offset) for ref in refs if (queue := self.by_ref.get(ref)) is not None]

    def set_floors(self, floors: list[tuple[int, int]]) -> None:
        known = [(self.by_ref[ref], floor) for ref, floor in floors if ref in self.by_ref]
        self._queues.needed_from(known)


class Peer:
    """The state of one peer, by its name in the log: who it is, its appends, the queues that it follows."""

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
        self.questions = Questions()
        self.descriptions = Descriptions()
        self.heard_s = heard_s
        self.hub = hub
        self.appends = PeerAppends(self, hub)
        self.followed = FollowedQueues(store.queues)
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
        """Note that the peer's connection ended."""
        self.line, self.can_judge = None, False
        self.appends.lost_line()
        self.questions.lost()
        self.descriptions.lost()


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
        answer_bytes = hub.tier.most_bytes = self.max_frame_bytes - HEAD_ROOM_BYTES
        hub.consumers.hand_out(answer_bytes - HEAD_ROOM_BYTES, clock)
        self._store_name = store_name
        self._events = RateLimitedLog(log)
        self._ticked_s = now_s = clock()
        self._peers = {name: Peer(name, LocalStore(hub, member), hub, now_s) for name, member in hub.returning.items()}
        if hub.messages.log.kept is not None:
            self.wait_for_all()
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
            peer.line.close(ANOTHER_CONNECTION)
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
        """Forget a peer's refs: it opens things again on each connection, as its permissions may have changed."""
        if follows := peer.followed.forget():
            hub = self.hub
            self._departures.append(("", Departure(hub.claims, hub.followers, peer.member, follows)))
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
            epoch=messages.epoch,
            credit_bytes=max(self.settings.credit_bytes, self.max_frame_bytes),
            max_frame_bytes=self.max_frame_bytes,
            heartbeat_ms=self.settings.heartbeat_ms,
            live_only=list(messages.settings.live_only),
            log_end=messages.end,
            appended=peer.appends.confirmed,
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
        self._departures.append((peer.name if for_good else "", self.hub.leave(peer.member, peer.followed.follows)))
        self.groups.left(peer.name)
        self.go_on()

    def all_left(self, why: str) -> None:
        """All peers are gone; they may come back to another process."""
        for peer in list(self._peers.values()):
            self.left(peer, why, for_good=False)
        while self.go_on():
            pass

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
        """Record that peers are gone, after the ends of their sessions' connections. Raises a StoreError."""
        batch = RecordBatch()
        for name in names:
            if name not in self._peers and self.hub.messages.peers.get(name) is not None:
                batch.append(*encode_change(PeerGone(name)))
        if batch.size:
            self.hub.messages.append(batch)

    def _is_client(self, peer: Peer) -> bool:
        """True if the log knows a peer as a client: its appends are remembered for longer, as it may repeat them."""
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

    def wait_for_all(self) -> None:
        """This store leads its cluster, now or again: peers that no store has let in lately have time to come."""
        for peer in self._peers.values():
            peer.heard_s = self.clock() + FIND_LEADER_S

    def tick(self) -> None:
        """Call this every few hundredths of a second: give up peers that were silent for too long."""
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
        self._events.tell_left_out()
