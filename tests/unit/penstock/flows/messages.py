"""Messages as a flow's group hands them out, without a store."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.mqtt.properties import Properties, encode_properties
from penstock.sdk.message import Message
from penstock.sdk.message_id import StorePlace
from store.records.records import Attribute, RecordType

PLACE = StorePlace.of("127.0.0.1", 7700)
AT_MS = 1_700_000_000_123


def message(
    payload: bytes = b"",
    topic: str = "plant/7/temp",
    key: str = "",
    headers: Sequence[tuple[str, str]] = (),
    content_type: str | None = None,
) -> Message:
    attributes = bytes((Attribute.KEY,)) + len(key).to_bytes(2, "little") + key.encode() if key else b""
    properties = encode_properties(Properties(user_properties=tuple(headers), content_type=content_type))
    record = (4096, AT_MS, 0, int(RecordType.MESSAGE), 1, topic.encode(), b"dev-7", attributes, properties, payload)
    return Message(record, None, PLACE)
