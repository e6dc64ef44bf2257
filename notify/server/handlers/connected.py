"""The state of one connection of an admitted peer, which the handlers of its requests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from notify.requests.contents import failure_code, filter_fault
from notify.requests.group_requests import Requester
from notify.requests.reads import Answer
from notify.requests.users import ConnectionPermits
from notify.server.events import FRAME_ROOM_BYTES, Events
from notify.server.incoming import HeldRequests
from notify.server.line import WireCounters, WireOutput
from notify.server.peers import Peer, Peers
from notify.server.safe_answers import SafeAnswers
from store.errors import StoreError, WireError
from store.wire import messages as wire
from store.wire.frames import Frame
from store.wire.messages import FailureCode, Role, WireMessage

Handlers = dict[type[WireMessage], Callable[..., Iterator[object] | None]]


@dataclass(slots=True, eq=False)
class Connected:
    """`out`, `answers`, `held`: what goes out, waits for the log, waits for what is being applied. `fail`: end the
    connection, for this reason. `receiver` of messages of groups; `wake`: have the connection looked at soon."""

    peer: Peer
    peers: Peers
    permits: ConnectionPermits
    events: Events
    out: WireOutput
    answers: SafeAnswers
    held: HeldRequests
    figures: WireCounters
    receiver: Requester
    wake: Callable[[], None]
    fail: Callable[[WireError], None]

    def answer(self, request_id: int, message: WireMessage, records: bytes = b"") -> None:
        if not self.out.is_closing:
            if self.peer.role is Role.CLIENT:
                message, records = self.peer.own.cut(message, records)
            self.out.answer(request_id, message, records)

    def answer_when_safe(self, request_id: int, answer: WireMessage) -> None:
        """Send an answer once everything that the log has now is safe."""
        self.answers.add(request_id, self.peer.store.appends.mark, answer)
        self.wake()

    def reply(self, frame: Frame, read: Callable[[int], Answer]) -> None:
        """Answer a request that only reads, by `read` of so many bytes."""
        self.answer(frame.request_id, *self.found(frame.message, read))

    def found(self, message: WireMessage, read: Callable[[int], Answer]) -> Answer:
        """The result of `read`, of so many bytes, for a request that only reads."""
        self.figures.reads += 1
        fault = self.filter_fault(message)
        if fault:
            return wire.Failed(FailureCode.BAD_REQUEST, f"topic filter {fault}"), b""
        try:
            return read(self.room_bytes)
        except StoreError as error:
            return wire.Failed(failure_code(error), str(error)), b""

    def filter_fault(self, message: WireMessage) -> str:
        """The fault of a request's topic filter; empty: it is valid."""
        topic_filter = getattr(message, "topic_filter", None)
        return filter_fault(topic_filter) if topic_filter else ""

    @property
    def room_bytes(self) -> int:
        """Most bytes of the records of an answer."""
        return self.peers.max_frame_bytes - FRAME_ROOM_BYTES

    def is_ready(self) -> bool:
        """True if the peer can be sent an answer that it waits for, or needs none any more."""
        return self.out.has_room or self.out.is_closing
