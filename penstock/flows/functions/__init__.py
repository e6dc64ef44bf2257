"""What functions of flows get and give: `to = "python:package.module:handler"` (docs/flows.md).

def handler(message: FunctionMessage) -> FunctionOutput | None:
    ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class FunctionMessage:
    """A message as a function gets it, what `map` made of it included.

    key, content_type: empty if there is none. headers: user properties, of a name that comes again the last one.
    message_id: by it a function knows a message that comes again. time: when the message was stored, UTC.
    """

    topic: str
    payload: bytes
    key: str
    headers: dict[str, str]
    message_id: str
    time: datetime
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class FunctionOutput:
    """A message that a function publishes. It may say `topic, payload` as a tuple instead."""

    topic: str
    payload: bytes | str = b""
    key: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = ""


class RejectMessage(Exception):
    """Raised by a function: this message is of no use, however often it comes. It becomes a dead letter."""
