"""What a gateway asks of a store in another process: what is to be sent, and what has no answer so far. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from store.errors import WireError
from store.wire.frames import Frame, frame_head
from store.wire.messages import Message

Answered = Callable[[Message, Frame], None]


class Request(msgspec.Struct, eq=False):
    """A frame that was asked to be sent: with a request_id if it has an answer."""

    message: Message
    answered: Answered | None = None
    records: bytes = b""
    request_id: int = 0
    size_bytes: int = 0
    placed: Callable[[int], object] | None = None  # where the records stand; see Placed


class Requests:
    """Owner of both, in the order in which they were asked. They outlive connections."""

    def __init__(self, wake_sender: Callable[[], None]) -> None:
        """`wake_sender`: there is something to be sent, soon."""
        self.to_send: deque[Request] = deque()
        self._wake_sender = wake_sender
        self._last_id = 0
        self._unanswered: dict[int, Request] = {}
        self._unanswered_bytes = 0

    def ask(
        self, message: Message, answered: Answered, records: bytes = b"", placed: Callable[[int], object] | None = None
    ) -> None:
        self._last_id += 1
        self.to_send.append(Request(message, answered, records, self._last_id, 0, placed))
        self._wake_sender()

    def tell(self, message: Message) -> None:
        self.to_send.append(Request(message))
        self._wake_sender()

    def outgoing(self, credit_bytes: int) -> list[bytes]:
        """What may be sent now, in order; the rest waits until less than `credit_bytes` have no answer."""
        chunks: list[bytes] = []
        while self.to_send:
            request = self.to_send[0]
            head = frame_head(request.message, request.request_id, len(request.records))
            if request.request_id:
                size_bytes = len(head) + len(request.records)
                if self._unanswered_bytes + size_bytes > credit_bytes:
                    break
                request.size_bytes = size_bytes
                self._unanswered_bytes += size_bytes
                self._unanswered[request.request_id] = request
            self.to_send.popleft()
            chunks.append(head)
            if request.records:
                chunks.append(request.records)
        return chunks

    def unanswered(self, request_id: int) -> Request:
        """Raises WireError if nobody asked."""
        request = self._unanswered.get(request_id)
        if request is None:
            raise WireError(f"an answer to request_id {request_id}, which nobody asked for")
        return request

    def done(self, request: Request) -> None:
        """Its answer was dealt with."""
        del self._unanswered[request.request_id]
        self._unanswered_bytes -= request.size_bytes
        if self.to_send:
            self._wake_sender()

    def lost(self) -> None:
        """The connection ended. What was not answered is to be sent again, before what was not sent."""
        self.to_send.extendleft(reversed(self._unanswered.values()))
        self._unanswered.clear()
        self._unanswered_bytes = 0
