"""Messages of a queue of AMQP 0-9-1, and what expressions may name of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from os import urandom
from typing import Any, Final

from cel_expr_python import cel

from penstock.flows.expressions import Variables, json_of
from penstock.flows.sources.known_ids import DIGEST_BYTES


class QueuedMessage:
    """A message as a consumer has it. `tag`: by which its connection settles it."""

    __slots__ = (
        "_headers",
        "content_encoding",
        "content_type",
        "correlation_id",
        "digest",
        "exchange",
        "message_id",
        "message_type",
        "payload",
        "reply_to",
        "routing_key",
        "tag",
        "timestamp",
        "topic",
    )

    def __init__(
        self,
        tag: int,
        payload: bytes,
        routing_key: str = "",
        exchange: str = "",
        headers: Mapping[str, Any] | None = None,
        *,
        content_type: str | None = None,
        content_encoding: str | None = None,
        message_id: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        message_type: str | None = None,
        timestamp: datetime | None = None,
    ) -> None:
        self.tag, self.payload = tag, payload
        self.routing_key, self.exchange = routing_key, exchange
        self.topic = routing_key.replace(".", "/")
        self.content_type, self.content_encoding = content_type or "", content_encoding or ""
        self.message_id, self.correlation_id = message_id or "", correlation_id or ""
        self.reply_to, self.message_type = reply_to or "", message_type or ""
        self.timestamp = timestamp
        self.digest = _digest(message_id) if message_id else urandom(DIGEST_BYTES)
        """By which it is known again; without an id by this process alone, and as long as its connection lasts."""
        self._headers = headers

    def __len__(self) -> int:
        return len(self.payload)

    @property
    def named(self) -> str:
        return f"message {self.message_id[:100]!r}, routing key {self.routing_key!r}"

    @property
    def headers(self) -> dict[str, str]:
        """Those that are texts, numbers or truth values."""
        return {name: text for name, value in (self._headers or {}).items() if (text := _text(value)) is not None}

    @property
    def time(self) -> datetime:
        """The property `timestamp`; 1970 without one."""
        found = self.timestamp or datetime.fromtimestamp(0, UTC)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _digest(message_id: str) -> bytes:
    return blake2b(message_id.encode(errors="surrogateescape"), digest_size=DIGEST_BYTES).digest()


def _text(value: object) -> str | None:
    """None: it is none that MQTT could pass on."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case bytes():
            try:
                value = value.decode()
            except UnicodeDecodeError:
                return None
    return value if isinstance(value, str) and "\0" not in value else None


_OF_QUEUES: Final[dict[str, tuple[cel.Type, Callable[[QueuedMessage], Any]]]] = {
    "topic": (cel.Type.STRING, lambda message: message.topic),
    "levels": (cel.Type.List(cel.Type.STRING), lambda message: message.topic.split("/")),
    "routing_key": (cel.Type.STRING, lambda message: message.routing_key),
    "exchange": (cel.Type.STRING, lambda message: message.exchange),
    "message_id": (cel.Type.STRING, lambda message: message.message_id),
    "correlation_id": (cel.Type.STRING, lambda message: message.correlation_id),
    "reply_to": (cel.Type.STRING, lambda message: message.reply_to),
    "message_type": (cel.Type.STRING, lambda message: message.message_type),
    "content_type": (cel.Type.STRING, lambda message: message.content_type),
    "payload": (cel.Type.BYTES, lambda message: message.payload),
    "json": (cel.Type.DYN, json_of),
    "headers": (cel.Type.Map(cel.Type.STRING, cel.Type.STRING), lambda message: message.headers),
    "time": (cel.Type.TIMESTAMP, lambda message: message.time),
}
QUEUES: Final = Variables(_OF_QUEUES)
