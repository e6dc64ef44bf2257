"""CloudEvents 1.0 as HTTP brings them (its protocol binding 1.0.2), and the MQTT messages that they become.

An event becomes what the MQTT binding calls binary mode: its data is the payload, `datacontenttype` the content type,
and each other attribute a user property of the same name.

msgspec decodes them. The package `cloudevents` 2.2 does not keep what is promised here: it decodes data and encodes it
again (1.10 becomes 1.1), gives an event without `time` one of its own, takes `data_base64` that is none for empty
data and percent-encoded bytes that are no UTF-8 for U+FFFD, and has no batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, Meta, Raw

from penstock.console.errors import Problem
from penstock.console.store.publishing import MessageToPublish, decoded
from penstock.console.store.stored_once import IdentifiedMessage, key_of
from penstock.sdk.errors import BadMessage
from penstock.sdk.outgoing import outgoing

MOST_EVENTS = 1_000
"""Of a batch: the store is asked for each of them."""
MOST_ATTRIBUTES = 100
MOST_SAID = 300
"""Characters of what is wrong with an event: a batch has many of them."""
MOST_INTEGER = (1 << 31) - 1
REQUIRED = ("specversion", "id", "source", "type")
HEADER_PREFIX = b"ce-"
IN_HEADERS = frozenset(HEADER_PREFIX + name.encode() for name in REQUIRED)
DATA = ("data", "data_base64")
JSON = "application/json"
_NAME = re.compile("[a-z0-9]+")
_NONCHARACTERS = "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
_UNFIT = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]")
_JSON_TYPE = re.compile(r"[^/;]+/(?:[^/;]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')

_members = msgspec.json.Decoder(dict[str, Raw]).decode
_batch = msgspec.json.Decoder(list[Raw]).decode
_value = msgspec.json.Decoder(str | bool | int | None).decode
_text = msgspec.json.Decoder(str).decode
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def event_in_json(body: bytes | Raw, topic: str | None) -> IdentifiedMessage:
    """An event in the JSON format, for a topic or that of its subject. Raises Problem."""
    try:
        members = _members(body)
        kept = {name: bytes(members.pop(name)) for name in DATA if name in members}
        values = {name: _value(raw) for name, raw in members.items()}
        attributes = {name: _canonical(name, value) for name, value in values.items() if value is not None}
        payload, content_type = _data(kept, attributes.pop("datacontenttype", None))
    except NOT_JSON as error:
        raise _bad(f"no event in JSON: {error}") from None
    return _message(attributes, payload, content_type, topic)


def events_in_batch(body: bytes, topic: str | None) -> list[IdentifiedMessage | Problem]:
    """The events of a batch in the JSON format, or what is wrong with each. Raises Problem."""
    try:
        batch = _batch(body)
    except NOT_JSON as error:
        raise _bad(f"no batch of events: {error}") from None
    if len(batch) > MOST_EVENTS:
        raise _bad(f"a batch of {len(batch)} events", f"send up to {MOST_EVENTS} at a time")
    return [_one_of_batch(each, topic) for each in batch]


def _one_of_batch(event: Raw, topic: str | None) -> IdentifiedMessage | Problem:
    try:
        return event_in_json(event, topic)
    except Problem as problem:
        return problem


def event_in_headers(
    headers: Iterable[tuple[bytes, bytes]], body: bytes, content_type: str | None, topic: str | None
) -> IdentifiedMessage:
    """An event in binary mode; `headers` with names in lower case. Raises Problem."""
    attributes: dict[str, str] = {}
    for header, value in headers:
        if header.startswith(HEADER_PREFIX):
            name = header.removeprefix(HEADER_PREFIX).decode("latin-1")
            if name in attributes:
                raise _bad(f"two headers ce-{name}")
            if name == "datacontenttype":
                raise _bad("a header ce-datacontenttype", "send it as Content-Type")
            attributes[name] = _from_header(name, value)
    return _message(attributes, body, content_type, topic)


def _from_header(name: str, value: bytes) -> str:
    """The text of a header: without quotation marks, then percent-decoded. Raises Problem."""
    try:
        text = value.decode()
        quoted = _QUOTED.fullmatch(text)
        if quoted is not None:
            text = re.sub(r"\\(.)", r"\1", quoted[1])
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise _bad(f"ce-{name} is no UTF-8") from None


def _canonical(name: str, value: str | bool | int) -> str:
    """A value as the CloudEvents types have it in text. Raises Problem."""
    if isinstance(value, str):
        return value
    if name in (*REQUIRED, "datacontenttype", "dataschema", "subject", "time"):
        raise _bad(f"{name} is no string")
    if isinstance(value, bool):
        return "true" if value else "false"
    if not -MOST_INTEGER - 1 <= value <= MOST_INTEGER:
        raise _bad(f"{name} is no integer of 32 bits", "send it as a string")
    return str(value)


def _data(members: dict[str, bytes], content_type: str | None) -> tuple[bytes, str | None]:
    """The payload of an event in JSON, and what it is. Raises Problem, or an error of NOT_JSON."""
    given = {name: value for name, value in members.items() if value != b"null"}
    if len(given) == 2:
        raise _bad("both data and data_base64", "send one of them")
    if "data_base64" in given:
        try:
            return decoded(_text(given["data_base64"]), "data_base64"), content_type
        except BadMessage as error:
            raise _bad(str(error)) from None
    data = given.get("data")
    if data is None:
        return b"", content_type
    if content_type is None or _JSON_TYPE.fullmatch(content_type):
        return data, content_type or JSON
    return (_text(data).encode() if data.startswith(b'"') else data), content_type


def _message(
    attributes: dict[str, str], payload: bytes, content_type: str | None, topic: str | None
) -> IdentifiedMessage:
    """Raises Problem."""
    missing = [name for name in REQUIRED if not attributes.get(name)]
    if missing:
        raise _bad(f"no {' and no '.join(missing)}")
    if attributes["specversion"] != "1.0":
        raise _bad(f"specversion {attributes['specversion'][:100]!r}", "send CloudEvents 1.0")
    if len(attributes) > MOST_ATTRIBUTES:
        raise _bad(f"{len(attributes)} attributes", f"send up to {MOST_ATTRIBUTES}")
    for name, value in attributes.items():
        _check(name, value)
    if "time" in attributes:
        _check_time(attributes["time"])
    if topic is None:
        topic = _topic_of(attributes.get("subject"))
    marks = ("source", attributes["source"]), ("id", attributes["id"])
    key = key_of("event", *(value for _, value in marks))
    return IdentifiedMessage(message_of(topic, payload, list(attributes.items()), content_type, key), marks)


def message_of(
    topic: str, payload: bytes, properties: list[tuple[str, str]], content_type: str | None, key: str | None
) -> MessageToPublish:
    """A message that publish_all() takes, also among others. Raises Problem."""
    try:
        outgoing(topic, b"", False, headers=properties, content_type=content_type)
    except BadMessage as error:
        raise _bad(str(error)[:MOST_SAID]) from None
    body = Raw(payload) if payload else UNSET  # its bytes are taken as they are, JSON or not
    return MessageToPublish(topic, json=body, headers=properties, content_type=content_type, key=key)


def _check(name: str, value: str) -> None:
    """Raises Problem."""
    if not _NAME.fullmatch(name) or name in DATA:
        raise _bad(f"an attribute {name[:100]!r}", "name attributes by a to z and 0 to 9")
    if not value:
        raise _bad(f"{name} is empty", "leave it out")
    if _UNFIT.search(value):
        raise _bad(f"{name} has a character that CloudEvents do not allow", "leave control characters out")


def _check_time(text: str) -> None:
    """Raises Problem."""
    try:
        msgspec.convert(text, Annotated[datetime, Meta(tz=True)])
    except msgspec.ValidationError:
        raise _bad(f"time {text[:100]!r}", "send a time of RFC 3339, such as 2026-01-31T12:00:00Z") from None


def _topic_of(subject: str | None) -> str:
    """The topic that a subject names. Raises Problem."""
    if subject is None:
        raise no_topic("the event has no subject")
    fault = topic_fault(subject)
    if fault:
        raise no_topic(f"the subject is no topic: {fault}")
    return subject


def topic_fault(topic: str) -> str:
    """Why no event may be published to a topic; empty: a user with the right may."""
    if topic.startswith("$"):
        return f"topic {topic[:100]!r} begins with $, which is the server's"
    try:
        outgoing(topic, b"", False)
    except BadMessage as error:
        return str(error)[:MOST_SAID]
    return ""


def no_topic(detail: str) -> Problem:
    return Problem(400, "no-topic", detail, "name a topic: POST /api/v1/events?topic=line/7")


def _bad(detail: str, remedy: str = "see POST /api/v1/events in /api/docs") -> Problem:
    return Problem(400, "bad-event", detail, remedy)
