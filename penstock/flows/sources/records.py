"""Records of a Kafka topic, and what expressions may name of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from cel_expr_python import cel

from penstock.flows.expressions import Variables, json_of

Headers = list[tuple[str, bytes | str | None]] | None


class KafkaRecord:
    """A record as a consumer has it. Texts are decoded when they are asked for."""

    __slots__ = ("_headers", "_key", "offset", "partition", "payload", "time_ms", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | str | None = None,
        value: bytes | str | None = None,
        headers: Headers = None,
        time_ms: int = 0,
    ) -> None:
        """A value that is null (a tombstone) is an empty payload."""
        self.topic, self.partition, self.offset = topic, partition, offset
        self.payload = value.encode() if isinstance(value, str) else value or b""
        self.time_ms = time_ms
        self._key, self._headers = key, headers

    def __len__(self) -> int:
        return len(self.payload)

    @property
    def key(self) -> str:
        """Empty where there is none, and where it is no text."""
        key = self._key
        if not isinstance(key, str):
            key = self._key = _text(key) or ""
        return key

    @property
    def headers(self) -> dict[str, str]:
        """Those that are text. Of a name that comes again the last one."""
        if not self._headers:
            return {}
        return {name: text for name, value in self._headers or () if (text := _text(value)) is not None}

    @property
    def time(self) -> datetime:
        """When it was created or appended, as the topic is configured; 1970 where it has no time."""
        return datetime.fromtimestamp(self.time_ms / 1000, UTC)


def _text(value: bytes | str | None) -> str | None:
    """None: it is none that MQTT could pass on."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    return None if value is None or "\0" in value else value


_OF_RECORDS: Final[dict[str, tuple[cel.Type, Callable[[KafkaRecord], Any]]]] = {
    "topic": (cel.Type.STRING, lambda record: record.topic),
    "partition": (cel.Type.INT, lambda record: record.partition),
    "offset": (cel.Type.INT, lambda record: record.offset),
    "payload": (cel.Type.BYTES, lambda record: record.payload),
    "json": (cel.Type.DYN, json_of),
    "headers": (cel.Type.Map(cel.Type.STRING, cel.Type.STRING), lambda record: record.headers),
    "key": (cel.Type.STRING, lambda record: record.key),
    "time": (cel.Type.TIMESTAMP, lambda record: record.time),
}
RECORDS: Final = Variables(_OF_RECORDS)
