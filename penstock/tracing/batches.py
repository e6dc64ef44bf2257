"""Messages with a trace in bytes in log format (docs/formats.md), and such bytes with other properties. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence, Set
from typing import NamedTuple

from notify.api import Placed
from store.records._records import RecordBatch, places_with
from store.records.records import RECORD_HEADER_BYTES, RecordType
from store.records.trace_context import NEEDLE, TraceContext, find_context, with_context

_HEADER = struct.Struct("<IIQQBBHHHII")
_ALL_TYPES = bytes(map(int, RecordType))
_MESSAGE = int(RecordType.MESSAGE)


class FoundMessage(NamedTuple):
    """A message in bytes in log format: where it stands, and what a span says of it."""

    start: int
    length: int
    number: int
    """The messages in front of it."""
    log_offset: int
    flags: int
    topic: bytes
    client_id: bytes
    attributes: bytes
    properties: bytes
    payload_bytes: int
    context: TraceContext | None


def find_traced(
    data: bytes, take: Callable[[], bool] = lambda: True, chosen: Set[int] = frozenset()
) -> Iterator[FoundMessage]:
    """The messages with a sampled context, and those without a `traceparent` whose number is in `chosen`.

    `data`: whole records. `take` is asked before each message that is looked into; the search ends where it says no.
    """
    for number, at, has_traceparent in places_with(data, NEEDLE, chosen):
        if not take():
            return
        length, _, log_offset, _, _, flags, *sizes = _HEADER.unpack_from(data, at)
        topic_at = at + RECORD_HEADER_BYTES
        properties_at = topic_at + sum(sizes[:3])
        properties = data[properties_at : properties_at + sizes[3]]
        context = find_context(properties)
        if context.is_sampled if context is not None else not has_traceparent:
            parts = _parts(data, topic_at, sizes[:3])
            yield FoundMessage(at, length, number, log_offset, flags, *parts, properties, sizes[4], context)


def _parts(data: bytes, at: int, sizes: Sequence[int]) -> tuple[bytes, bytes, bytes]:
    topic_end, client_end = at + sizes[0], at + sizes[0] + sizes[1]
    return data[at:topic_end], data[topic_end:client_end], data[client_end : client_end + sizes[2]]


class MovedRun(NamedTuple):
    """Records that stayed the same, or one that did not: where they were in the old batch, and are in the new one."""

    old: int
    old_bytes: int
    new: int
    new_bytes: int


class ChangedBatch(NamedTuple):
    """A batch in which some messages have another context, and where its records stood before."""

    batch: RecordBatch
    moved: list[MovedRun]

    def placed(self, told: Placed) -> Placed:
        """A callback for this batch that tells `told` of the places in the old one."""

        def place(first: int, size: int, log_offset: int) -> None:
            for old, old_bytes, new, new_bytes in self.moved:
                begin, end = max(new, first), min(new + new_bytes, first + size)
                if begin < end:
                    length = end - begin if new_bytes == old_bytes else old_bytes
                    told(old + begin - new, length, log_offset + begin - first if log_offset >= 0 else -1)

        return place


def changed(data: bytes, contexts: Sequence[tuple[FoundMessage, TraceContext]]) -> ChangedBatch:
    """The batch with these contexts in its messages, which are in their order."""
    parts: list[bytes] = []
    moved: list[MovedRun] = []
    old = new = 0

    def keep(length: int, part: bytes) -> None:
        nonlocal old, new
        if length:
            parts.append(part)
            moved.append(MovedRun(old, length, new, len(part)))
            old, new = old + length, new + len(part)

    for found, context in contexts:
        keep(found.start - old, data[old : found.start])
        keep(found.length, _with_context(data, found, context))
    keep(len(data) - old, data[old:])
    return ChangedBatch(RecordBatch.adopt(b"".join(parts), _ALL_TYPES), moved)


def _with_context(data: bytes, found: FoundMessage, context: TraceContext) -> bytes:
    payload_at = (
        found.start
        + RECORD_HEADER_BYTES
        + sum(map(len, (found.topic, found.client_id, found.attributes, found.properties)))
    )
    batch = RecordBatch()
    batch.append(
        _MESSAGE,
        data[payload_at : payload_at + found.payload_bytes],
        topic=found.topic,
        client_id=found.client_id,
        attributes=found.attributes,
        properties=with_context(found.properties, context),
        flags=found.flags,
    )
    return bytes(batch)
