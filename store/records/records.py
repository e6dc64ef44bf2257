"""Records of the log as Python objects. The bytes are described in docs/formats.md."""

from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import NamedTuple

from store.records.record_bytes import walk


class RecordType(IntEnum):
    """Kinds of record. From 16 on they are state changes with a msgpack payload (store.state.changes)."""

    MESSAGE = 1
    BATCH = 2
    GAP = 3
    SESSION_OPENED = 16
    SESSION_CLOSED = 17
    SESSION_ENDED = 18
    SUBSCRIBED = 19
    UNSUBSCRIBED = 20
    PROGRESS = 21
    WILL_FIRED = 22
    QUEUE_DROPPED = 23
    PEER_APPENDED = 24
    PEER_GONE = 25
    SESSION_ASSIGNED = 26
    GROUP_MADE = 32
    GROUP_ADVANCED = 33
    GROUP_RESET = 34
    GROUP_DROPPED = 35
    DELAYED_ENDED = 40
    TOPICS_GONE = 41
    BAN_SET = 48
    BAN_LIFTED = 49
    READER_ADVANCED = 56
    READER_FORGOTTEN = 57
    READER_LOST = 58
    SEGMENTS_DROPPED = 64


class RecordFlag(IntFlag):
    """Bits of a MESSAGE record's flags; the lowest two are its QoS."""

    QOS_MASK = 3
    RETAIN = 4
    EXPIRES = 8
    LIVE_ONLY = 16
    CARRIED = 32
    DELAYED = 64
    COMPRESSED = 128


RECORD_HEADER_BYTES = 40  # of each record (docs/formats.md)
KEPT_CHANGES, TOPIC_UNIT_BYTES = 6, 64  # how messages of one Publish are counted: docs/formats.md


def message_flags(qos: int, *, retain: bool, expires: bool, live_only: bool) -> int:
    """The flags of a MESSAGE record; `expires`: it has a message expiry interval."""
    flags = qos | (RecordFlag.RETAIN if retain else 0) | (RecordFlag.EXPIRES if expires else 0)
    return flags | (RecordFlag.LIVE_ONLY if live_only else 0)


MOST_TAG_BYTES = 255


class Attribute(IntEnum):
    """Tags of the attributes section: tag (1 byte), length (2, little-endian), value."""

    PACKET_ID = 1  # 2 bytes: the publisher's packet identifier of a QoS 2 message, for a session that outlives it
    STORED_MS = 2  # 8 bytes: when a carried message was first stored
    KEY = 3  # 1 to 1,024 bytes of text: looked up by, and dealt out in order by an ordered consumer group
    TAG = 4  # 1 to 255 bytes of text: distinguishes messages of one topic for clients
    COUNTED = (
        5  # 1 byte of bits and a user: how the message counts against quotas (store.state.usage); only gateways add it
    )
    LOST = 6  # 8 bytes: number of lost messages directly before this one in its queue; never in the log
    DUE_MS = 16  # 8 bytes: Unix time at which a delayed message is dispatched; the last attribute that a peer may add
    FIRST_OFFSET = 17  # 8 bytes: the log_offset at which a delayed message that stands here again was first stored
    LEFT_BY = 18  # 1 or more bytes: the user of a will or delayed message, to be authorized when due (left_by.py)
    LETTER_OF = 19  # 8 bytes: the log_offset of the message that a group gave up, whose dead letter this is


class Record(NamedTuple):
    """One record; `length` is its size in the log in bytes."""

    log_offset: int
    timestamp_ms: int
    length: int
    type: int
    flags: int
    topic: bytes
    client_id: bytes
    attributes: bytes
    properties: bytes
    payload: bytes

    @property
    def qos(self) -> int:
        return self.flags & RecordFlag.QOS_MASK

    @property
    def retain(self) -> bool:
        return bool(self.flags & RecordFlag.RETAIN)


def lost_of(record: Record) -> int:
    """Number of lost messages directly before this one in the queue that it was read from."""
    if not record.attributes:
        return 0
    return int.from_bytes(decode_attributes(record.attributes).get(Attribute.LOST, b""), "little")


def read_records(data: memoryview) -> Iterator[Record]:
    """The records of verified log bytes, in order; a batch record is opened into the records it holds."""
    return map(Record._make, walk(data))


def encode_attribute(tag: Attribute, value: bytes) -> bytes:
    return bytes((tag,)) + len(value).to_bytes(2, "little") + value


def decode_attributes(data: bytes) -> dict[int, bytes]:
    attributes = {}
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at + 1 : at + 3], "little")
        attributes[data[at]] = data[at + 3 : at + 3 + length]
        at += 3 + length
    return attributes
