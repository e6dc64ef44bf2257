"""The store's end of one connection to a peer: bytes in, bytes out; no I/O. Frames become calls, events become frames.

All bytes to send wait for outgoing(), so that a turn of the loop makes one write of it. A peer that does not read
gets no more: its requests wait unread, and events are merged, as each is only a position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from notify.api import Told
from notify.requests.users import ConnectionPermits, User
from notify.server.arrival import Arrival
from notify.server.describing import GatewayQuestion
from notify.server.events import Events
from notify.server.handlers.connected import Connected
from notify.server.handling import Handling
from notify.server.incoming import HeldRequests, Incoming
from notify.server.line import WireCounters, WireOutput
from notify.server.peers import Peer, Peers
from notify.server.safe_answers import SafeAnswers
from notify.server.withheld import WithheldOutput
from store.errors import WireError
from store.wire import messages as wire
from store.wire.credit import Credit
from store.wire.frames import FrameReader
from store.wire.handshake import NO_TOKENS, ServerHandshake
from store.wire.messages import Hello, Refused, RefusedReason, Role, Welcome


class Conversation:
    """A Line (notify.server.line) of a peer, once it has said who it is."""

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
        self._connected: Connected  # likewise
        self._handling: Handling
        self.arrival = Arrival()
        self.fault: WireError | None = None  # found by an answer that came later
        self.opened_s = peers.clock()
        self._peers = peers
        self._figures = figures
        self.wake = wake
        self._handshake = ServerHandshake(self._meet, tokens, of_namespaces)
        self.permits = ConnectionPermits(None)
        self._is_client = False
        self._applying = peers.hub.messages.applying
        self._held = HeldRequests(self._applying, self.wake)
        self._incoming: Incoming | None = None
        log = peers.hub.messages.log
        self._withheld = WithheldOutput(figures, wake, peers.clock, log) if log.kept is not None else None
        self._out = self._withheld or WireOutput(figures, wake, peers.clock)
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
        self._out.send(answer)
        if (refused := self._handshake.refused) is not None:
            self._out.is_closing = True
            raise WireError(f"not let in ({refused.reason}): {refused.message}")
        assert self._known.role is not None
        reader = FrameReader(self._peers.max_frame_bytes, self._known.role)
        self._incoming = self._handling.incoming = Incoming(reader, self._out.credit)
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
        self.permits = ConnectionPermits(user)
        if user is not None:
            hello = msgspec.structs.replace(hello, namespace=user.namespace)
        met = self._peers.meet(hello, self, user)
        if isinstance(met, Refused):
            return met
        self.peer, welcome = met
        self._is_client = self.peer.role is Role.CLIENT
        self._out.credit = Credit(welcome.credit_bytes)
        self._events = Events(self.peer, welcome, self._figures, self._peers.max_frame_bytes, self._out.tell)
        for client_id in self._peers.hub.claims.contested(self.peer.member):
            self.tell_taken_over(client_id)
        self._connected = Connected(
            peer=self.peer,
            peers=self._peers,
            permits=self.permits,
            events=self._events,
            out=self._out,
            answers=self._answers,
            held=self._held,
            figures=self._figures,
            receiver=self,
            wake=self.wake,
            fail=partial(setattr, self, "fault"),
        )
        self._handling = Handling(self._connected, hello, self.tell_taken_over)
        return welcome

    def go_on(self) -> None:
        """Deal with frames that wait, for some time. Raises WireError."""
        incoming, waiting = self._incoming, self._held.waiting
        if incoming is None:
            self._held.go_on()
            return
        handling, out = self._handling, self._out
        incoming.begin()
        if waiting:
            self._held.go_on()
        while out.has_room and not out.is_closing and not handling.is_judged and not waiting:
            if incoming.work is not None:
                self._known.heard_s = self._peers.clock()  # it is not read meanwhile
                if not incoming.is_done():
                    break
                continue  # what was under way may have come to where it waits
            frame = incoming.next_frame()
            if frame is None:
                break
            if self._is_client or self._applying.left_bytes:
                handling.deal_with(frame)
            else:
                handling.handle_now(frame)
        incoming.end()
        self.wake()  # more may be read in this turn of the loop, and is dealt with in the next one

    @property
    def has_room(self) -> bool:
        """True if the peer may be sent answers that it waited for."""
        return self._out.has_room

    @property
    def is_closing(self) -> bool:
        """True if the connection ends once everything is sent."""
        return self._out.is_closing

    @property
    def is_judged(self) -> bool:
        """Whether a frame waits for another server, which says what its user may do."""
        return self.peer is not None and self._handling.is_judged

    @property
    def is_withholding(self) -> bool:
        """Whether something to be sent waits until the log is accepted further."""
        return self._withheld is not None and self._withheld.is_withholding

    @property
    def said_s(self) -> float:
        """When something was sent last."""
        return self._out.said_s

    @property
    def is_full(self) -> bool:
        """True if received frames are left for a later turn, so that no more should be read now."""
        has_more = bool(self._held.waiting) or (self._incoming is not None and self._incoming.has_more)
        return has_more and not self.is_closing and not self.is_judged and not self._held.is_blocked

    @property
    def is_idle(self) -> bool:
        """True if the peer is admitted and no input is left: the connection is neither full nor waiting."""
        incoming = self._incoming
        if incoming is None or incoming.frames is not None or incoming.work is not None:
            return False
        return not (incoming.data or self._held.waiting or self.is_judged)

    def why_banned(self) -> str:
        """The ban that ends an admitted client's connection; empty: it is not banned."""
        return self.arrival.banned(self.permits.user) if self._is_client and not self.is_closing else ""

    def check(self) -> None:
        """Raises WireError for what was found wrong later."""
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault

    @property
    def is_waiting(self) -> bool:
        """True if the peer is not read from until its user is checked."""
        return self.is_judged or self._held.is_blocked or self._handshake.is_waiting

    # --- bytes out

    def outgoing(self) -> list[bytes]:
        """The bytes to send now. Call this once in a turn of the loop."""
        if self._incoming is not None:
            self._incoming.worked_s = 0.0
        out = self._out
        if self.peer is not None and not out.is_closing:
            out.is_gathering = True
            try:
                operators = self._handling.operators
                for message in operators.collect() if operators.to_tell else ():
                    out.tell(message)
                if self._answers.has_some or self._is_client:
                    if self._withheld is not None:
                        self._withheld.hold()
                    for request_id, answer in self._answers.take(self.peer):
                        self._connected.answer(request_id, answer)
                    if self._answers.wants_ping:
                        self.ping()
                    if self._withheld is not None:
                        self._withheld.let_go()
                if self._applying.left_bytes:  # all of it is told at once
                    self._held.wake_later()
                else:
                    self._peers.groups.consumers.turn_ends()
                    self._events.tell()
                    if self._events.has_more:
                        self.wake()
            finally:
                out.is_gathering = False
        elif self._held.is_blocked:  # it is not let in so far
            self._held.wake_later()
        return out.collect()

    def tell_taken_over(self, client_id: str) -> None:
        self._events.taken_over[client_id] = None
        self.wake()

    def told(self, message: Told | wire.Judge | GatewayQuestion) -> None:
        self._handling.operators.told(message)
        self.wake()

    def close(self, reason: str) -> None:
        if not self._out.is_closing:
            self._out.tell(wire.Goodbye(reason))
            self._out.is_closing = True
            self._held.clear()  # the peer sends again what has no answer, perhaps in other pieces

    def ping(self) -> None:
        self._answers.pinged()
        self._out.tell(wire.Ping())

    @property
    def has_unanswered(self) -> bool:
        """Whether Appends wait to become safe."""
        return bool(self._answers or self._held)

    def lost(self) -> None:
        """The connection is gone."""
        self._out.is_closing = True
        if self._incoming is not None:
            self._incoming.clear()
        self._held.clear()
        self._out.chunks.clear()
        self._peers.groups.consumers.forget(self)
        if self.peer is not None:
            self._handling.operators.lost()
            self._peers.lost(self.peer, self)

    @property
    def _known(self) -> Peer:
        assert self.peer is not None
        return self.peer
