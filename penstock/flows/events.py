"""What a message becomes in a flow, and how it is written: as a CloudEvent (CloudEvents 1.0), or as it is."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
from cloudevents.core.bindings.http import to_binary
from cloudevents.core.bindings.kafka import to_binary as to_kafka
from cloudevents.core.bindings.rabbitmq import to_binary as to_amqp
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from penstock.flows import ID_HEADER
from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError, Unfit
from penstock.sdk.message import Message

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
JSON, TEXT, BYTES = "application/json", "text/plain", "application/octet-stream"
_ATTRIBUTE = re.compile(r"[a-z0-9]{1,20}")
_RESERVED = {"id", "source", "type", "specversion", "subject", "time", "datacontenttype", "dataschema", "data"}
_json = JSONFormat()
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class FlowEvent(NamedTuple):
    """What a message became by `map`."""

    id: str
    log_offset: int
    stored_ms: int
    topic: str
    payload: bytes
    key: str
    content_type: str
    headers: dict[str, str]
    group_offset: int = -1  # its place in the queue of the flow's group
    message: Message | None = None  # which it was

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.stored_ms / 1000, UTC)


class Written(NamedTuple):
    """An event as bytes, and the HTTP headers that go with it."""

    headers: dict[str, str]
    body: bytes


def event_of(flow: Flow, message: Message, group_offset: int = -1) -> FlowEvent:
    """Raises Unfit."""
    headers = {header: template.text(message) for header, template in flow.mapped_headers.items()}
    return FlowEvent(
        message.message_id,
        message.log_offset,
        message.stored_ms,
        flow.topic.text(message) if flow.topic is not None else message.topic,
        flow.payload.made(message) if flow.payload is not None else message.payload,
        flow.key.text(message) if flow.key is not None else message.key or "",
        flow.content_type.text(message) if flow.content_type is not None else message.content_type or "",
        {**message.headers, **headers} if flow.is_to_function else headers,
        group_offset,
        message,
    )


class EventWriter:
    """Writes the events of one flow."""

    def __init__(self, flow: Flow, source: str) -> None:
        """`source`: of CloudEvents. Raises FlowError."""
        self._type, self._source, self._format = flow.said.type, source, flow.said.format
        self._is_cloudevent = self._format != "raw"
        for header in flow.mapped_headers if self._is_cloudevent else ():
            if not _ATTRIBUTE.fullmatch(header) or header in _RESERVED:
                reason = "is no name of an extension attribute of a CloudEvent"
                raise FlowError(
                    flow.name, f"map.headers.{header}", reason, "use 1 to 20 of a-z and 0-9, none of its own"
                )

    def http(self, events: Sequence[FlowEvent]) -> Written:
        """A request; of `cloudevents-batch` with all events, else with the only one. Raises Unfit."""
        if self._format == "cloudevents-batch":
            return Written({"Content-Type": BATCH}, b"[" + b",".join(map(self.line, events)) + b"]")
        (event,) = events
        if self._format == "raw":
            return Written({"Content-Type": event.content_type or BYTES, **event.headers}, event.payload)
        if self._format == "cloudevents":
            return Written({"Content-Type": STRUCTURED}, self.line(event))
        content_type = event.content_type or _content(event)[0]
        found = to_binary(CloudEvent(self._attributes(event, content_type), event.payload), _json)
        return Written(dict(found.headers), bytes(found.body))

    def kafka(self, event: FlowEvent) -> tuple[list[tuple[str, str | bytes | None]], bytes]:
        """Headers and value of a record (CloudEvents, Kafka Protocol Binding 1.0). Raises Unfit."""
        if self._format == "raw":
            headers: list[tuple[str, str | bytes | None]] = [(ID_HEADER, event.id)]
            if event.content_type:
                headers.append(("content-type", event.content_type))
            return [*headers, *event.headers.items()] if event.headers else headers, event.payload
        if self._format == "cloudevents":
            return [("content-type", STRUCTURED.encode())], self.line(event)
        content_type = event.content_type or _content(event)[0]
        found = to_kafka(CloudEvent(self._attributes(event, content_type), event.payload), _json)
        return list(found.headers.items()), found.value or b""

    def amqp(self, event: FlowEvent) -> tuple[Mapping[str, str], str, bytes]:
        """Headers, content type and body of a message of AMQP 0-9-1 (CloudEvents, RabbitMQ Protocol Binding).

        Raises Unfit.
        """
        if self._format == "raw":
            return event.headers, event.content_type, event.payload
        if self._format == "cloudevents":
            return {}, STRUCTURED, self.line(event)
        content_type = event.content_type or _content(event)[0]
        found = to_amqp(CloudEvent(self._attributes(event, content_type), event.payload), _json)
        return found.headers, content_type, found.body

    def mqtt(self, event: FlowEvent) -> tuple[list[tuple[str, str]], str, bytes]:
        """User properties, content type and payload of an MQTT message (CloudEvents, MQTT Protocol Binding 1.0).

        Of `raw`, the user properties that the message had go along. Raises Unfit.
        """
        if self._format == "cloudevents":
            return [], STRUCTURED, self.line(event)
        if self._format == "raw":
            had = event.message.user_properties if event.message is not None else []
            new = {**event.headers, ID_HEADER: event.id}
            return [*(pair for pair in had if pair[0] not in new), *new.items()], event.content_type, event.payload
        content_type = event.content_type or _content(event)[0]
        said = self._attributes(event, content_type) | {"time": _rfc3339(event.time)}
        return [pair for pair in said.items() if pair[0] != "datacontenttype"], content_type, event.payload

    def line(self, event: FlowEvent) -> bytes:
        """One line of JSON: a CloudEvent in structured mode, or what `raw` has. Raises Unfit."""
        content_type, data = _content(event)
        if self._is_cloudevent:
            return bytes(_json.write(CloudEvent(self._attributes(event, content_type), data)))
        line: dict[str, Any] = {"id": event.id, "topic": event.topic, "time": _rfc3339(event.time)}
        if event.key:
            line["key"] = event.key
        if event.headers:
            line["headers"] = event.headers
        if _is_json(content_type):
            line["json"] = data
        elif isinstance(data, bytes):
            line["payload_base64"] = b64encode(data).decode()
        else:
            line["payload"] = data
        return _encode(line)

    def _attributes(self, event: FlowEvent, content_type: str) -> dict[str, Any]:
        return {
            "id": event.id,
            "source": self._source,
            "type": self._type,
            "specversion": "1.0",
            "subject": event.topic,
            "time": event.time,
            "datacontenttype": content_type,
            **event.headers,
        }


def _content(event: FlowEvent) -> tuple[str, Any]:
    """The content type, as the publisher said or as the payload looks; and the data: what JSON says, a text, or bytes.

    Raises Unfit.
    """
    payload, content_type = event.payload, event.content_type
    if not content_type or _is_json(content_type):
        try:
            return content_type or JSON, _decode(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            if content_type:
                raise Unfit(f"the payload is said to be {content_type}, and is not: {error}") from None
    text = _text(payload) if not content_type or content_type.startswith("text/") else None
    return content_type or (BYTES if text is None else TEXT), payload if text is None else text


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _rfc3339(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
