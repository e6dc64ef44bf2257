"""Rows for a sink, and the messages that a stock client makes of them."""

from __future__ import annotations

from typing import NamedTuple

import paho.mqtt.client as paho
import pyarrow as pa

from penstock.columns import PAIRS

COLUMNS = (
    "topic string, payload binary, qos int, key string, user_properties array<struct<key string, value string>>, "
    "content_type string, response_topic string, correlation_data binary"
)
TYPES = {
    "topic": pa.string(),
    "payload": pa.binary(),
    "qos": pa.int32(),
    "key": pa.string(),
    "user_properties": PAIRS,
    "content_type": pa.string(),
    "response_topic": pa.string(),
    "correlation_data": pa.binary(),
}


class Got(NamedTuple):
    """A message as a subscriber of QoS 2 gets it."""

    topic: str | None
    payload: bytes | None
    qos: int = 1
    user_properties: tuple[tuple[str, str | None], ...] = ()
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None

    @classmethod
    def of(cls, message: paho.MQTTMessage) -> Got:
        said = vars(message.properties) if message.properties is not None else {}
        return cls(
            message.topic,
            bytes(message.payload),
            message.qos,
            tuple(said.get("UserProperty", ())),
            said.get("ContentType"),
            said.get("ResponseTopic"),
            said.get("CorrelationData"),
        )

    def as_row(self, key: str | None = None) -> tuple[object, ...]:
        pairs = [{"key": name, "value": value} for name, value in self.user_properties]
        return (self.topic, self.payload, self.qos, key, pairs, *self[4:])


def batch_of_rows(rows: list[Got]) -> pa.RecordBatch:
    columns = zip(*(row.as_row() for row in rows), strict=True)
    arrays = [pa.array(list(column), type_) for column, type_ in zip(columns, TYPES.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(TYPES))
