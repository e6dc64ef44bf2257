"""What a client asks of a store, as frames. No I/O.

Requests outlive connections: what is not answered when one ends is sent again, in the same order, on the next one. A
Publish bears a number by which the store knows those that it has, so it is stored once however often it is sent. But
some mean something on one connection only: they end with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.sdk.errors import ConnectionLost, NotPermitted, StoreRefused, TimedOut
from store.errors import WireError
from store.wire import messages as wire
from store.wire.frames import Frame, frame_head
from store.wire.messages import Message, Welcome

NEVER_S = float("inf")
MOST_PUBLISHES = 64  # without an answer; the store remembers where so many are

Outcome = Message | Exception
Answered = Callable[[Outcome, memoryview], None]
_NOTHING = memoryview(b"")


@dataclass(slots=True, eq=False)
class Request:
    """A request, and who is told of its answer, or of why there is none."""

    message: Message
    answered: Answered
    deadline_s: float
    records: bytes = b""
    request_id: int = 0
    size_bytes: int = 0
    is_once: bool = False


class Requests:
    """Owner of what is to be sent and what is not answered. `clock`: monotonic seconds."""

    def __init__(self, timeout_s: float, clock: Callable[[], float], wake_sender: Callable[[], None]) -> None:
        """`wake_sender`: there is something to be sent, soon."""
        self.timeout_s = timeout_s
        self.welcome: Welcome | None = None  # of the connection there is, if there is one
        self.away = "not connected yet"  # why there is none
        self._clock = clock
        self._wake = wake_sender
        self._request_ids = 0
        self._told: list[bytes] = []
        self._to_send: deque[Request] = deque()
        self._to_publish: deque[Request] = deque()
        self._unanswered: dict[int, Request] = {}
        self._unanswered_bytes = 0
        self._publishes = 0  # of those

    def __len__(self) -> int:
        return len(self._to_send) + len(self._to_publish) + len(self._unanswered)

    @property
    def can_publish(self) -> bool:
        """Whether one more Publish would be sent, and not only wait here."""
        return self.welcome is not None and self._publishes + len(self._to_publish) < MOST_PUBLISHES

    # --- asking

    def ask(self, message: Message, answered: Answered, records: bytes = b"") -> Request:
        """Have a request sent; `answered` is called once, unless the request is dropped."""
        request = Request(message, answered, self._clock() + self.timeout_s, records)
        (self._to_publish if isinstance(message, wire.Publish) else self._to_send).append(request)
        self._wake()
        return request

    def ask_once(self, message: Message, answered: Answered) -> Request:
        """As ask(), on the connection that there is: if it ends first, the outcome is ConnectionLost. No time limit."""
        assert self.welcome is not None
        request = Request(message, answered, NEVER_S, is_once=True)
        self._to_send.append(request)
        self._wake()
        return request

    def tell(self, message: Message) -> None:
        """Have something sent that has no answer, if there is a connection."""
        if self.welcome is not None:
            self._told.append(frame_head(message))
            self._wake()

    def drop(self, request: Request) -> None:
        """Nobody wants the answer any more."""
        request.answered = _unwanted

    # --- bytes out

    def outgoing(self) -> list[bytes]:
        """What is to be sent now."""
        if self.welcome is None:
            return []
        chunks, self._told = self._told, []
        if self._to_send:
            self._send_from(self._to_send, chunks)
        if self._to_publish and self._publishes < MOST_PUBLISHES:
            self._send_from(self._to_publish, chunks)
        return chunks

    def _send_from(self, waiting: deque[Request], chunks: list[bytes]) -> None:
        welcome = self.welcome
        assert welcome is not None
        while waiting:
            request = waiting[0]
            is_publish = isinstance(request.message, wire.Publish)
            if is_publish and self._publishes >= MOST_PUBLISHES:
                return
            if not request.request_id:
                self._request_ids = self._request_ids % 0xFFFFFFFF + 1
                request.request_id = self._request_ids
            head = frame_head(request.message, request.request_id, len(request.records))
            size_bytes = len(head) + len(request.records)
            if size_bytes > welcome.max_frame_bytes:
                waiting.popleft()
                text = f"{size_bytes} bytes; a frame has {welcome.max_frame_bytes}: raise wire.max_frame_bytes"
                request.answered(StoreRefused(wire.FailureCode.RECORD_TOO_LARGE, text), _NOTHING)
                continue
            if self._unanswered_bytes + size_bytes > welcome.credit_bytes:
                return
            waiting.popleft()
            request.size_bytes = size_bytes
            self._unanswered_bytes += size_bytes
            self._publishes += is_publish
            self._unanswered[request.request_id] = request
            chunks += (head, request.records) if request.records else (head,)

    # --- frames in

    def received(self, frame: Frame) -> None:
        """An answer came. Raises WireError."""
        request = self._take(frame.request_id)
        if request is None:
            raise WireError(f"an answer to request_id {frame.request_id}, which nobody asked for")
        answer = frame.message
        request.answered(_refusal(answer) if isinstance(answer, wire.Failed) else answer, frame.records)
        if self._to_send or self._to_publish:
            self._wake()

    def _take(self, request_id: int) -> Request | None:
        request = self._unanswered.pop(request_id, None)
        if request is not None:
            self._unanswered_bytes -= request.size_bytes
            self._publishes -= isinstance(request.message, wire.Publish)
        return request

    # --- connections and time

    def connected(self, welcome: Welcome) -> None:
        self.welcome = welcome
        self._wake()

    def lost(self, why: str) -> None:
        """The connection ended: everything without an answer is to be sent again, before all others."""
        self.welcome = None
        self.away = why
        self._told.clear()
        for request in reversed(self._unanswered.values()):
            is_publish = isinstance(request.message, wire.Publish)
            (self._to_publish if is_publish else self._to_send).appendleft(request)
        self._unanswered.clear()
        self._unanswered_bytes = self._publishes = 0
        ended = [request for request in self._to_send if request.is_once]
        if ended:
            self._to_send = deque(request for request in self._to_send if not request.is_once)
        for request in ended:
            request.answered(ConnectionLost(why), _NOTHING)

    def tick(self) -> None:
        """To be called several times a second: give up what waits for too long. The answer may still come."""
        now_s = self._clock()
        for waiting in (self._to_send, self._to_publish):
            while waiting and waiting[0].deadline_s <= now_s:
                request = waiting.popleft()
                request.answered(self._timed_out(request), _NOTHING)
        for request in list(self._unanswered.values()):
            if request.deadline_s <= now_s:
                request.answered(self._timed_out(request), _NOTHING)
                request.answered, request.deadline_s = _unwanted, NEVER_S

    def _timed_out(self, request: Request) -> TimedOut:
        why = self.away if self.welcome is None else "it is connected, and does not answer"
        what = "publish" if isinstance(request.message, wire.Publish) else type(request.message).__name__.lower()
        unsure = ""
        if what == "publish":
            unsure = "; the message may be stored or not" if request.request_id else "; the message was not sent"
        return TimedOut(f"{what}: no answer from the store within {self.timeout_s:g} s ({why}){unsure}")

    def fail_all(self, error: Exception) -> None:
        """Nothing will be answered any more."""
        waiting = [*self._unanswered.values(), *self._to_send, *self._to_publish]
        self._unanswered.clear()
        self._to_send.clear()
        self._to_publish.clear()
        self._unanswered_bytes = self._publishes = 0
        for request in waiting:
            request.answered(error, _NOTHING)


def _unwanted(_: Outcome, __: memoryview) -> None:
    """An answer that came too late."""


def _refusal(answer: wire.Failed) -> StoreRefused:
    kind = NotPermitted if answer.code is wire.FailureCode.NOT_PERMITTED else StoreRefused
    return kind(answer.code, answer.message)
