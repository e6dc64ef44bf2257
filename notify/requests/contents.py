"""Checks a peer's records: what could not be applied or passed on must not get into the log. And codes of refusals."""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable
from typing import Any

import msgspec

from notify.errors import LeaseLost, NotFollowed
from notify.local.user_quotas import QuotaExceeded
from store.errors import RecordTooLarge, StoreError, StoreFull
from store.records._records import RecordBatch, flagged_in, places_of
from store.records.records import (
    RECORD_HEADER_BYTES,
    Attribute,
    Record,
    RecordFlag,
    RecordType,
    decode_attributes,
    read_records,
)
from store.state import changes
from store.state.changes import Change, Sent, WillState, decode_change, encode_change
from store.topics import MOST_TOPIC_LEVELS
from store.wire.messages import FailureCode, Role

TYPES = {
    Role.CLIENT: bytes((RecordType.MESSAGE,)),
    Role.OPERATOR: b"",
    Role.GATEWAY: bytes(
        (
            RecordType.MESSAGE,
            RecordType.SESSION_OPENED,
            RecordType.SESSION_CLOSED,
            RecordType.SUBSCRIBED,
            RecordType.UNSUBSCRIBED,
            RecordType.PROGRESS,
            RecordType.WILL_FIRED,
            RecordType.GROUP_ADVANCED,
        )
    ),
}
"""Types of records that a peer may append."""
_OF_HOLDERS = bytes((RecordType.SESSION_OPENED, RecordType.SESSION_CLOSED))
MOST_TEXT_BYTES = 65_535
MOST_LOG_OFFSET = (1 << 63) - 1
MOST_PACKET_ID = 65_535
MOST_INTERVAL_S = 0xFFFFFFFF
INFLIGHT_BYTES = 10
_SIZES = struct.Struct("<26xHHH")  # in a record's header: of topic, client_id and attributes
MOST_TAKEN = 65_536


class Fenced(StoreError):
    """A refusal: another member of the hub has the session."""

    def __init__(self, client_id: str) -> None:
        super().__init__(f"the session of client {client_id} is not this gateway's any more; claim it first")


def failure_code(error: Exception) -> FailureCode:
    """The code of the wire for an error."""
    match error:
        case StoreFull():
            return FailureCode.STORE_FULL
        case RecordTooLarge():
            return FailureCode.RECORD_TOO_LARGE
        case Fenced() | LeaseLost():
            return FailureCode.FENCED
        case NotFollowed():
            return FailureCode.NOT_PERMITTED
        case QuotaExceeded():
            return FailureCode.NOT_ALLOWED
        case ValueError():
            return FailureCode.BAD_REQUEST
    return FailureCode.UNAVAILABLE


class BadContents(ValueError):
    """A record that must not get into the log; the message says why."""


class ContentLimits(msgspec.Struct, frozen=True):
    """Limits of a peer's appends: bytes of its records, latest due time of a delayed message, payload bytes before
    compression.

    `may_count`: the peer may say how messages count for users (the attribute COUNTED).
    """

    size_bytes: int
    latest_due_ms: int
    plain_bytes: int
    may_count: bool = False


def add_records(batch: RecordBatch, records: memoryview, role: Role, limits: ContentLimits) -> list[Change]:
    """Add a peer's records to a batch. Returns the state changes among them. Raises ValueError; then none was added."""
    others = batch.extend_checked(
        records, TYPES[role], limits.size_bytes, limits.latest_due_ms, limits.plain_bytes, limits.may_count
    )
    return [_checked(Record._make(each)) for each in others] if others else []


def add_held_by(batch: RecordBatch, records: memoryview, holder: str, without_ends_of: Container[str]) -> None:
    """Add a gateway's checked records: `holder` in each SESSION_OPENED, no SESSION_CLOSED of some clients.

    What is between those is copied as it is.
    """
    copied = 0
    for place in places_of(records, _OF_HOLDERS):
        end = place + int.from_bytes(records[place : place + 4], "little")
        (record,) = read_records(records[place:end])
        change = decode_change(record.type, record.payload)
        if isinstance(change, changes.SessionClosed) and change.client_id not in without_ends_of:
            continue
        _copy(batch, records[copied:place])
        copied = end
        if isinstance(change, changes.SessionOpened):
            batch.append(*encode_change(msgspec.structs.replace(change, holder=holder)))
    _copy(batch, records[copied:])


def _copy(batch: RecordBatch, records: memoryview) -> None:
    if records:
        batch.extend_checked(records, TYPES[Role.GATEWAY], len(records), may_count=True)


def left_fault(records: memoryview, left_by: bytes) -> str:
    """Why a client may not append these checked records (empty: it may): its delayed messages must name their user, and
    no MQTT client, by whose rules they would be judged when they are due.
    """
    for at in flagged_in(records, RecordFlag.DELAYED) if left_by else ():
        topic_bytes, client_id_bytes, attributes_bytes = _SIZES.unpack_from(records, at)
        attributes_at = at + RECORD_HEADER_BYTES + topic_bytes + client_id_bytes
        attributes = decode_attributes(bytes(records[attributes_at : attributes_at + attributes_bytes]))
        if client_id_bytes:
            return "a delayed message that names an MQTT client"
        if attributes.get(Attribute.LEFT_BY) != left_by:
            return "a delayed message that does not say who left it, as Welcome has it (upgrade the client)"
    return ""


def topic_fault(topic: str) -> str:
    """The reason why a topic cannot be published to; empty if it can."""
    if "+" in topic or "#" in topic:
        return "has a wildcard"
    return _text_fault(topic)


def filter_fault(topic_filter: str) -> str:
    """The reason why a topic filter is not valid; empty if it is."""
    levels = topic_filter.split("/")
    if any(len(level) > 1 and ("+" in level or "#" in level) for level in levels) or "#" in levels[:-1]:
        return "has a wildcard where none may be"
    return _text_fault(topic_filter)


def _text_fault(topic: str) -> str:
    if not topic:
        return "is empty"
    if topic.count("/") >= MOST_TOPIC_LEVELS:
        return f"has more than {MOST_TOPIC_LEVELS} levels"
    return text_fault(topic)


def text_fault(text: str) -> str:
    """The reason why a text is not valid in MQTT; empty if it is."""
    if "\0" in text:
        return "has a U+0000"
    if len(text.encode()) > MOST_TEXT_BYTES:
        return f"is longer than {MOST_TEXT_BYTES} bytes"
    return ""


# --- state changes


def _checked(record: Record) -> Change:
    name = RecordType(record.type).name
    try:
        change = decode_change(record.type, record.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadContents(f"{name}: {error}") from None
    if record.flags or record.topic or record.client_id or record.attributes or record.properties:
        raise BadContents(f"{name}: more than a payload")
    fault = text_fault(change.client_id) if not isinstance(change, changes.GroupAdvanced) else ""  # type: ignore[attr-defined]
    fault = f"client_id {fault}" if fault else _CHECKS[type(change)](change)
    if fault:
        raise BadContents(f"{name}: {fault}")
    return change


def _opened(change: changes.SessionOpened) -> str:
    if not 0 <= change.session_expiry_interval <= MOST_INTERVAL_S:
        return f"session_expiry_interval {change.session_expiry_interval}"
    return _will_fault(change.will) if change.will is not None else ""


def _will_fault(will: WillState) -> str:
    fault = topic_fault(will.topic)
    if fault:
        return f"topic of the will {fault}"
    if will.qos not in (0, 1, 2) or not 0 <= will.delay_s <= MOST_INTERVAL_S:
        return f"will with QoS {will.qos} and a delay of {will.delay_s} s"
    if len(will.left_by) > MOST_TEXT_BYTES:
        return "will with a left_by that is too long"
    message = RecordBatch()
    message.append(RecordType.MESSAGE, b"", topic=b"t", properties=will.properties)
    try:
        RecordBatch().extend_checked(bytes(message), TYPES[Role.CLIENT], message.size)
    except ValueError as error:
        return f"will: {error}"
    return ""


def _closed(change: changes.SessionClosed) -> str:
    if not 0 <= change.session_expiry_interval <= MOST_INTERVAL_S:
        return f"session_expiry_interval {change.session_expiry_interval}"
    if not 0 <= change.will_grace_s <= MOST_INTERVAL_S:
        return f"will_grace_s {change.will_grace_s}"
    if not 0 <= change.frontier <= MOST_LOG_OFFSET or any(
        len(each) % INFLIGHT_BYTES for each in (change.inflight, change.shared)
    ):
        return "frontier or messages in flight that cannot be"
    return ""


def _subscribed(change: changes.Subscribed) -> str:
    for each in change.subscriptions:
        fault = filter_fault(each.topic_filter)
        if fault:
            return f"topic filter {fault}"
        if each.qos not in (0, 1, 2) or each.retain_handling not in (0, 1, 2):
            return f"QoS {each.qos}, retain handling {each.retain_handling}"
        if not 0 <= each.subscription_id < 1 << 28 or not 0 <= each.since <= MOST_LOG_OFFSET:
            return f"subscription_id {each.subscription_id}, since {each.since}"
    return ""


def _unsubscribed(change: changes.Unsubscribed) -> str:
    faults = (filter_fault(topic_filter) for topic_filter in change.topic_filters)
    return next((f"topic filter {fault}" for fault in faults if fault), "")


def _progress(change: changes.Progress) -> str:
    if not 0 <= change.acked <= MOST_LOG_OFFSET:
        return f"acked {change.acked}"
    ids = (change.released, change.completed, change.received_done)
    if not all(0 < packet_id <= MOST_PACKET_ID for each in ids for packet_id in each):
        return "packet identifier that cannot be"
    if not _all_sent(change.sent, 1) or not _all_sent(change.owed, 0):
        return "message sent or owed that cannot be"
    return ""


def _all_sent(sent: Iterable[Sent], first_id: int) -> bool:
    return all(
        first_id <= each.packet_id <= MOST_PACKET_ID
        and 0 <= each.log_offset <= MOST_LOG_OFFSET
        and each.qos in (0, 1, 2)
        and all(0 < number < 1 << 28 for number in each.subscription_ids)
        for each in sent
    )


def _taken(change: changes.GroupAdvanced) -> str:
    """A gateway may only note messages of a group as taken by a session, and so done with for the group."""
    if change != changes.GroupAdvanced(change.name, change.topic_filter, done=change.done):
        return "more than what is done with"
    if len(change.done) % 2 or not all(0 <= each <= MOST_LOG_OFFSET for each in change.done):
        return "ranges that cannot be"
    if sum(change.done[1::2]) > MOST_TAKEN:
        return f"more than {MOST_TAKEN} messages at a time"
    return ""


def _nothing_more(_: Change) -> str:
    return ""


_CHECKS: dict[type[Change], Callable[[Any], str]] = {
    changes.SessionOpened: _opened,
    changes.SessionClosed: _closed,
    changes.Subscribed: _subscribed,
    changes.Unsubscribed: _unsubscribed,
    changes.Progress: _progress,
    changes.WillFired: _nothing_more,
    changes.GroupAdvanced: _taken,
}
