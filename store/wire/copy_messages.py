"""Messages with which a store of a cluster copies the leader's log; see store.wire.messages.

The store that gives keeps nothing for the one that asks: what is accepted stays as it is, so each request stands alone.
"""

from typing import Annotated

from msgspec import Meta, Struct

from store.wire.base import Count, Items, LogOffset, Name, Positive, WireMessage

FileName = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")]
Sixteen = Annotated[bytes, Meta(min_length=16, max_length=16)]


class CopiedMark(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A store's position in the partition (store.replication.judging.ReplicaMark): the offset of its last
    accepted frame, that frame's checksum, the epoch, `accepted`, and the leader's address and process.
    """

    offset: Annotated[int, Meta(ge=-1, le=2**63 - 1)]
    checksum: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    epoch: Count
    accepted: LogOffset
    address: Annotated[str, Meta(max_length=255)]
    process: Sixteen


class AskCopy(WireMessage, frozen=True):
    """Ask what there is to copy, of segments whose bases are at or after `start`."""

    start: LogOffset


class CopyOffered(WireMessage, frozen=True):
    """The log of the topic with this id: `segments` by their bases, up to `mark.accepted`; `more`: others follow.

    `identity`: of the log. `base`: where it begins. If that is not 0, `checkpoint` is the name of the index as of then,
    and `files` are its files, each with its size in bytes.
    """

    topic_id: Name
    identity: Sixteen
    mark: CopiedMark
    base: LogOffset
    segments: Annotated[list[LogOffset], Items]
    more: bool
    checkpoint: Annotated[str, Meta(max_length=64)]
    files: Annotated[list[tuple[FileName, Count]], Items]


class CopySegment(WireMessage, frozen=True):
    """Bytes of the file of the segment with this base, from `at` on, as far as they are accepted."""

    base: LogOffset
    at: Count
    max_bytes: Positive


class CopyCheckpoint(WireMessage, frozen=True):
    """Bytes of a file of a checkpoint, from `at` on."""

    checkpoint: Annotated[str, Meta(max_length=64)]
    file: FileName
    at: Count
    max_bytes: Positive


class CopyPiece(WireMessage, frozen=True):
    """The bytes, none if the file ends there, and their CRC-32C."""

    data: bytes
    checksum: Annotated[int, Meta(ge=0, le=2**32 - 1)]
