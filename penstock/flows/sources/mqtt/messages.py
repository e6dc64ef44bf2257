"""Messages of an MQTT broker as a flow has them, and what expressions may name of them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from os import urandom
from typing import Any, Final

from cel_expr_python import cel

from penstock.flows import ID_HEADER, VIA
from penstock.flows.expressions import Variables, json_of
from penstock.flows.sources.known_ids import DIGEST_BYTES


class BrokerMessage:
    """A message as a subscriber has it. `tag`: its place among those of its connection; `packet_id`: 0 at QoS 0."""

    __slots__ = (
        "content_type",
        "correlation_data",
        "digest",
        "expires_s",
        "packet_id",
        "payload",
        "qos",
        "response_topic",
        "retain",
        "tag",
        "topic",
        "user_properties",
    )

    def __init__(
        self, tag: int, packet_id: int, topic: str, payload: bytes, qos: int, retain: bool, properties: Any = None
    ) -> None:
        """`properties`: of its PUBLISH, as the library has them."""
        self.tag, self.packet_id = tag, packet_id
        self.topic, self.payload, self.qos, self.retain = topic, payload, qos, retain
        self.user_properties: list[tuple[str, str]] = getattr(properties, "UserProperty", [])
        self.content_type: str = getattr(properties, "ContentType", "")
        self.response_topic: str | None = getattr(properties, "ResponseTopic", None)
        self.correlation_data: bytes | None = getattr(properties, "CorrelationData", None)
        self.expires_s: int | None = getattr(properties, "MessageExpiryInterval", None)
        id_ = dict(self.user_properties).get(ID_HEADER)
        known_by = f"{topic}\0{id_}".encode()  # an id alone could be taken by whoever may publish anywhere
        self.digest = blake2b(known_by, digest_size=DIGEST_BYTES).digest() if id_ else urandom(DIGEST_BYTES)
        """By which it is known again; without an id by this process alone, and as long as its connection lasts."""

    def __len__(self) -> int:
        return len(self.payload) + sum(len(name) + len(text) for name, text in self.user_properties)

    @property
    def named(self) -> str:
        return f"message of topic {self.topic[:200]!r}"

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.user_properties)

    @property
    def stores(self) -> list[str]:
        """Those that it came through."""
        return [store for name, store in self.user_properties if name == VIA]


_OF_BROKERS: Final[dict[str, tuple[cel.Type, Callable[[BrokerMessage], Any]]]] = {
    "topic": (cel.Type.STRING, lambda message: message.topic),
    "levels": (cel.Type.List(cel.Type.STRING), lambda message: message.topic.split("/")),
    "content_type": (cel.Type.STRING, lambda message: message.content_type),
    "payload": (cel.Type.BYTES, lambda message: message.payload),
    "json": (cel.Type.DYN, json_of),
    "headers": (cel.Type.Map(cel.Type.STRING, cel.Type.STRING), lambda message: message.headers),
    "qos": (cel.Type.INT, lambda message: message.qos),
    "retain": (cel.Type.BOOL, lambda message: message.retain),
}
OF_BROKERS: Final = Variables(_OF_BROKERS)
