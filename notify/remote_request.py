"""What a gateway asks of a store in another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from store.wire.frames import Frame
from store.wire.messages import Message

Answered = Callable[[Message, Frame], None]


@dataclass(slots=True, eq=False)
class Request:
    """A frame that was asked to be sent: with a request_id if it has an answer."""

    message: Message
    answered: Answered | None = None
    records: bytes = b""
    request_id: int = 0
    size_bytes: int = 0
    placed: Callable[[int], object] | None = None  # where the records stand; see Placed
