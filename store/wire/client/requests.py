"""The requests of one user of a store, as frames: those to be sent, and those without an answer. No I/O.

Requests outlive connections. A request that has no answer when its connection ends is sent again on the next
connection, in the same order. Append and Publish bear numbers by which the store knows those that it has, so it stores
each once however often it is sent. A request with a meaning on one connection only (`is_once`) ends with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from store.errors import WireError
from store.wire.client.request_errors import RequestErrors
from store.wire.frames import Frame, frame_head
from store.wire.messages import Failed, FailureCode, Goodbye, Publish, Welcome, WireMessage

NEVER_S = float("inf")

Outcome = WireMessage | Exception
Answered = Callable[[Outcome, Frame], None]
"""Called with the answer, or the reason why there is none, and the frame that brought it."""

NO_FRAME = Frame(Goodbye(""), 0, memoryview(b""), 0)  # of an outcome that no frame brought
MOST_REQUEST_ID = 0xFFFFFFFF


class PendingRequest(msgspec.Struct, eq=False):
    """A message to be sent, and the callback for its outcome; without a callback it has no answer."""

    message: WireMessage
    answered: Answered | None = None
    records: bytes = b""
    deadline_s: float = NEVER_S
    request_id: int = 0  # 0: it was never sent
    size_bytes: int = 0
    is_once: bool = False
    is_windowed: bool = False


@dataclass(frozen=True, slots=True)
class RequestRules:
    """The rules that differ between the users of the client.

    A request without an answer fails after `timeout_s` seconds. Of requests of the type `windowed` at most `window`
    are without an answer at a time, and they do not hold up others. With `refuses_large`, a request that is larger
    than the store's frames fails at once.
    """

    timeout_s: float = NEVER_S
    windowed: type[WireMessage] | None = None
    window: int = 0
    refuses_large: bool = False
    errors: RequestErrors = field(default_factory=RequestErrors)


class PendingRequests:
    """Owner of the requests that are not sent yet, and of those without an answer."""

    def __init__(self, rules: RequestRules, clock: Callable[[], float], wake_sender: Callable[[], None]) -> None:
        """`clock`: monotonic seconds. `wake_sender` is called when there is something to be sent."""
        self.rules = rules
        self.welcome: Welcome | None = None  # of the current connection, if there is one
        self.away = "not connected yet"  # why there is no connection
        self.to_send: deque[PendingRequest] = deque()
        self._windowed_to_send: deque[PendingRequest] = deque()
        self._told: list[bytes] = []
        self._has_deadlines = rules.timeout_s != NEVER_S
        self._windowed = rules.windowed
        self._clock = clock
        self._wake = wake_sender
        self._last_id = 0
        self._unanswered: dict[int, PendingRequest] = {}
        self._unanswered_bytes = 0
        self._windowed_unanswered = 0

    def __len__(self) -> int:
        return len(self.to_send) + len(self._windowed_to_send) + len(self._unanswered)

    def owes_other_than(self, kinds: tuple[type[WireMessage], ...]) -> bool:
        """Whether something waits to be sent, or for an answer, that is of none of these kinds."""
        waiting = (*self.to_send, *self._windowed_to_send, *self._unanswered.values())
        return bool(self._told) or any(not isinstance(request.message, kinds) for request in waiting)

    @property
    def has_window(self) -> bool:
        """True if one more windowed request would be sent at once."""
        waiting = self._windowed_unanswered + len(self._windowed_to_send)
        return self.welcome is not None and waiting < self.rules.window

    # --- asking

    def ask(self, message: WireMessage, answered: Answered, records: bytes = b"") -> PendingRequest:
        """Send a request; `answered` is called once, unless the request is dropped."""
        request = PendingRequest(message, answered, records)
        if self._has_deadlines:
            request.deadline_s = self._clock() + self.rules.timeout_s
        if type(message) is self._windowed:
            request.is_windowed = True
            self._windowed_to_send.append(request)
        else:
            self.to_send.append(request)
        self._wake()
        return request

    def ask_once(self, message: WireMessage, answered: Answered, records: bytes = b"") -> PendingRequest:
        """Like ask(), on the current connection only and without a time limit. If the connection ends first, the
        outcome is `errors.lost`."""
        assert self.welcome is not None
        request = PendingRequest(message, answered, records, is_once=True)
        self.to_send.append(request)
        self._wake()
        return request

    def tell(self, message: WireMessage) -> None:
        """Send a message that has no answer, in its order among the requests, on this connection or the next one."""
        self.to_send.append(PendingRequest(message))
        self._wake()

    def tell_first(self, message: WireMessage) -> None:
        """Send a message that has no answer before all requests. Without a connection it is dropped."""
        if self.welcome is not None:
            self._told.append(frame_head(message))
            self._wake()

    def drop(self, request: PendingRequest) -> None:
        """Ignore the answer to a request."""
        request.answered = _unwanted

    # --- bytes out

    def outgoing(self) -> list[bytes]:
        """The bytes to be sent now. The rest waits for credit or for the window."""
        welcome = self.welcome
        if welcome is None:
            return []
        chunks: list[bytes] = []
        if self._told:
            chunks, self._told = self._told, chunks
        if self.to_send:
            self._send_from(self.to_send, chunks, welcome)
        if self._windowed_to_send and self._windowed_unanswered < self.rules.window:
            self._send_from(self._windowed_to_send, chunks, welcome)
        return chunks

    def _send_from(self, waiting: deque[PendingRequest], chunks: list[bytes], welcome: Welcome) -> None:
        while waiting:
            request = waiting[0]
            if request.answered is None:
                waiting.popleft()
                chunks.append(frame_head(request.message))
                continue
            request_id, records = request.request_id, request.records
            if not request_id:
                request_id = request.request_id = self._last_id = self._last_id % MOST_REQUEST_ID + 1
            head = frame_head(request.message, request_id, len(records))
            size_bytes = len(head) + len(records)
            if size_bytes > welcome.max_frame_bytes and self.rules.refuses_large:
                self._refuse_large(waiting.popleft(), size_bytes, welcome)
                continue
            if self._unanswered_bytes + size_bytes > welcome.credit_bytes:
                return
            if request.is_windowed:
                if self._windowed_unanswered >= self.rules.window:
                    return
                self._windowed_unanswered += 1
            waiting.popleft()
            request.size_bytes = size_bytes
            self._unanswered_bytes += size_bytes
            self._unanswered[request_id] = request
            chunks.append(head)
            if records:
                chunks.append(records)

    def _refuse_large(self, request: PendingRequest, size_bytes: int, welcome: Welcome) -> None:
        text = f"{size_bytes} bytes; a frame has {welcome.max_frame_bytes}: raise wire.max_frame_bytes"
        self._settle(request, self.rules.errors.of_code(FailureCode.RECORD_TOO_LARGE, text))

    # --- frames in

    def unanswered(self, request_id: int) -> PendingRequest:
        """The request with this number. Raises WireError if there is none."""
        request = self._unanswered.get(request_id)
        if request is None:
            raise WireError(f"an answer to request_id {request_id}, which nobody asked for")
        return request

    def done(self, request: PendingRequest) -> None:
        """Take a request with an answer off the list."""
        del self._unanswered[request.request_id]
        self._unanswered_bytes -= request.size_bytes
        if request.is_windowed:
            self._windowed_unanswered -= 1
        if self.to_send or self._windowed_to_send:
            self._wake()

    def received(self, frame: Frame) -> None:
        """Settle the request that this frame answers. Raises WireError."""
        request = self.unanswered(frame.request_id)
        self.done(request)
        assert request.answered is not None
        answer = frame.message
        request.answered(self.rules.errors.of(answer) if isinstance(answer, Failed) else answer, frame)

    # --- connections and time

    def connected(self, welcome: Welcome) -> None:
        """A connection was made."""
        self.welcome = welcome
        self._wake()

    def lost(self, why: str = "") -> None:
        """The connection ended. Requests without an answer will be sent again, before those that were not sent."""
        self.welcome = None
        self.away = why
        self._told.clear()
        for request in reversed(self._unanswered.values()):
            (self._windowed_to_send if request.is_windowed else self.to_send).appendleft(request)
        self._forget_unanswered()
        ended = [request for request in self.to_send if request.is_once]
        if ended:
            self.to_send = deque(request for request in self.to_send if not request.is_once)
        for request in ended:
            self._settle(request, self.rules.errors.lost(why))

    def collect_waiting(self) -> deque[PendingRequest]:
        """Take all requests that are not sent yet; none of them will be sent from here."""
        waiting, self.to_send = self.to_send, deque()
        return waiting

    def tick(self) -> None:
        """Call this several times a second: it gives up requests past their deadline. Their answers may still come."""
        now_s = self._clock()
        for waiting in (self.to_send, self._windowed_to_send):
            while waiting and waiting[0].deadline_s <= now_s:
                request = waiting.popleft()
                self._settle(request, self._timed_out(request))
        for request in list(self._unanswered.values()):
            if request.deadline_s <= now_s:
                self._settle(request, self._timed_out(request))
                request.answered, request.deadline_s = _unwanted, NEVER_S

    def _timed_out(self, request: PendingRequest) -> Exception:
        why = self.away if self.welcome is None else "it is connected, and does not answer"
        unsure = ""
        if isinstance(request.message, Publish):
            unsure = "; the message may be stored or not" if request.request_id else "; the message was not sent"
        what = type(request.message).__name__.lower()
        text = f"{what}: no answer from the store within {self.rules.timeout_s:g} s ({why}){unsure}"
        return self.rules.errors.timed_out(text)

    def fail_all(self, error: Exception) -> None:
        """Settle all requests with an error."""
        waiting = [*self._unanswered.values(), *self.to_send, *self._windowed_to_send]
        self.to_send.clear()
        self._windowed_to_send.clear()
        self._forget_unanswered()
        for request in waiting:
            self._settle(request, error)

    def _forget_unanswered(self) -> None:
        self._unanswered.clear()
        self._unanswered_bytes = self._windowed_unanswered = 0

    @staticmethod
    def _settle(request: PendingRequest, error: Exception) -> None:
        if request.answered is not None:
            request.answered(error, NO_FRAME)


def _unwanted(_: Outcome, __: Frame) -> None:
    """Ignores an answer."""
