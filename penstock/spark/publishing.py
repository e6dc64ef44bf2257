"""Publishes the records of rows as Appends that a store stores once, also if they are sent again.

An Append is stored as a whole or not at all, and has a number under a producer's name; the store's log has both. For a
stream the name is the query's, and the number contains the epoch. So an epoch that fits in one Append is published at
once, and once, whatever a second run of the epoch computes. A larger epoch is divided into Appends by its messages
alone, not by partitions or order of arrival, so a second run divides it alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightqueue.queues.matching import any_of
from penstock.columns import Messages
from penstock.spark.connection import StoreAccess
from penstock.spark.errors import BadSparkOption, RequestFailed, SparkSourceError
from store.records._columns import find_messages, gather
from store.records.records import KEPT_CHANGES, RECORD_HEADER_BYTES, TOPIC_UNIT_BYTES, RecordFlag
from store.wire.log_messages import Segments, SegmentsFound
from store.wire.messages import Append, Appended, FailureCode

HEAD_ROOM_BYTES = 8 << 10  # of a frame, for everything but records
FLAGS_AT = 25  # of a record
KEPT = int(RecordFlag.RETAIN | RecordFlag.DELAYED)
APPENDS_PER_EPOCH = 1 << 20
PAUSE_S = 0.5
PASSES = (FailureCode.UNAVAILABLE, FailureCode.STORE_FULL)  # these errors may pass

Bytes = NDArray[np.uint8]
Array = NDArray[np.int64]


class Most(NamedTuple):
    """Limits of one Append."""

    size_bytes: int
    changes: int

    def has_room(self, size_bytes: int, changes: int) -> bool:
        return size_bytes <= self.size_bytes and changes <= self.changes


class SparkPublisher:
    """Publishes under a name. Raises StoreUnreachable, StoreRefusesUs, RequestFailed, BadSparkOption."""

    def __init__(self, store: StoreAccess, name: str) -> None:
        """`name`: empty for a unique one."""
        self._connection = store.connect(name)
        self._patience_s = store.patience_s

    def publish(self, records: Bytes) -> None:
        """Publish records in order. If the process ends halfway, some are stored."""
        for number, part in enumerate(_in_order(self._ready(records), self._most), 1):
            self._append(number, part)

    def publish_epoch(self, epoch: int, records: Bytes) -> None:
        """Publish an epoch once, also if another process publishes the same epoch again."""
        messages = self._ready(records)
        parts = list(_parts(messages, self._most)) if len(messages) else []
        if len(parts) >= APPENDS_PER_EPOCH:
            raise BadSparkOption(f"epoch {epoch} has {len(records)} bytes of messages; lower maxOffsetsPerTrigger")
        first = epoch * APPENDS_PER_EPOCH + 1
        for number, part in enumerate(parts, first):
            is_last = number - first == len(parts) - 1
            self._append((epoch + 1) * APPENDS_PER_EPOCH if is_last else number, part)

    @property
    def _limit_bytes(self) -> int:
        return self._connection.welcome.max_frame_bytes - HEAD_ROOM_BYTES

    @property
    def _most(self) -> Most:
        return Most(self._limit_bytes, self._connection.welcome.max_changes or 2**62)  # an older store does not say

    def _ready(self, records: Bytes) -> Messages:
        """The messages, with live-only ones marked. Raises MessageTooLarge."""
        messages = _found(records)
        if not len(messages):
            return messages
        sizes = _sizes(messages)
        if int(sizes.max()) > self._limit_bytes:
            raise MessageTooLarge(
                _found(_together(messages, sizes, np.array([int(sizes.argmax())]))), self._limit_bytes
            )
        live_only = self._connection.welcome.live_only
        if live_only:
            matches = any_of(live_only)
            topics, numbers = messages.distinct_topics()
            live = np.fromiter(map(matches, topics), np.bool_, len(topics))[numbers]
            records[messages.positions[live] + FLAGS_AT] |= int(RecordFlag.LIVE_ONLY)
        return messages

    def _append(self, sequence: int, records: Bytes) -> None:
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                self._connection.call(Append(sequence), Appended, records.tobytes())
                return
            except RequestFailed as error:
                # A refused number can be sent again once the store knows that its refusal arrived. Another request
                # tells it.
                with suppress(RequestFailed):  # a refusal of this request is an answer, too
                    self._connection.call(Segments(2**63 - 1), SegmentsFound)
                if error.code not in PASSES or time.monotonic() > deadline_s:
                    raise
            time.sleep(PAUSE_S)

    def close(self, goodbye: str = "") -> None:
        """`goodbye`: the reason. The store remembers a producer's name all the same."""
        self._connection.close(goodbye)


class MessageTooLarge(SparkSourceError):
    """A message is larger than the store accepts."""

    def __init__(self, message: Messages, limit_bytes: int) -> None:
        (topic,) = message.distinct_topics()[0]
        super().__init__(
            f"a message to {topic.decode()!r} takes {len(message.data)} bytes, and the store's frames have room for "
            f"{limit_bytes}; make it smaller, or raise wire.max_frame_bytes there"
        )


def _found(records: Bytes) -> Messages:
    """The messages among records, which are all messages."""
    positions = np.empty(len(records) // RECORD_HEADER_BYTES + 1, np.int64)
    return Messages(records, 0, positions[: find_messages(records, positions, 0)[0]])


def _sizes(messages: Messages) -> NDArray[np.int32]:
    """Bytes of each record; the records are adjacent."""
    return np.diff(messages.positions, append=len(messages.data)).astype(np.int32)


def _counts(messages: Messages) -> tuple[Array, Array]:
    """As changes_in(): how each message counts after one of the same topic, and after one of another topic."""
    is_kept = (messages.data[messages.positions + FLAGS_AT] & KEPT) != 0
    of_topic = messages.topic.lengths.astype(np.int64) // TOPIC_UNIT_BYTES
    return np.where(is_kept, KEPT_CHANGES + of_topic, 0), np.where(is_kept, KEPT_CHANGES, 1) + of_topic


def _changes(messages: Messages) -> Array:
    """How each message counts after the one before it."""
    kept, behind_others = _counts(messages)
    _, numbers = messages.distinct_topics()
    is_same = np.append([False], numbers[1:] == numbers[:-1])
    return np.where(is_same, kept, behind_others)


def _parts(messages: Messages, most: Most) -> Iterator[Bytes]:
    """One part for each Append of an epoch. Their number does not depend on the order of rows."""
    kept, _ = _counts(messages)
    _, numbers = messages.distinct_topics()
    firsts = np.unique(numbers, return_index=True)[1]
    changes = int(kept.sum() + (1 + messages.topic.lengths[firsts] // TOPIC_UNIT_BYTES).sum())
    if not most.has_room(len(messages.data), changes):
        yield from _by_topic(messages, most)
    elif int(_changes(messages).sum()) <= most.changes:
        yield messages.data
    else:  # the topics change too often: group by topic, in order within each
        yield _together(messages, _sizes(messages), np.argsort(numbers, kind="stable"))


def _in_order(messages: Messages, most: Most) -> Iterator[Bytes]:
    """Runs of records within the limits; at least one record each."""
    if not len(messages):
        return
    starts = np.append(messages.positions, len(messages.data))
    _, counts = _counts(messages)
    changes = np.cumsum(_changes(messages))
    first = 0
    while first < len(messages):
        fits = int(np.searchsorted(starts, starts[first] + most.size_bytes, side="right")) - 1
        known = changes[first] - counts[first]  # the first of a run counts, wherever the run began
        end = max(first + 1, min(fits, int(np.searchsorted(changes, known + most.changes, side="right"))))
        yield messages.data[starts[first] : starts[end]]
        first = end


def _by_topic(messages: Messages, most: Most) -> Iterator[Bytes]:
    """Parts that do not depend on the order of an epoch's rows: by topic, the messages of a topic in order.

    If one topic has more than fits, its messages are sorted by their bytes.
    """
    topics, numbers = messages.distinct_topics()
    sizes = _sizes(messages)
    kept, _ = _counts(messages)
    by_topic = np.argsort(numbers, kind="stable")
    firsts = np.searchsorted(numbers[by_topic], np.arange(len(topics) + 1))
    pack: list[NDArray[np.int64]] = []
    packed_bytes = packed_changes = 0
    for topic in sorted(range(len(topics)), key=topics.__getitem__):
        own = by_topic[firsts[topic] : firsts[topic + 1]]
        own_bytes = int(sizes[own].sum(dtype=np.int64))
        own_changes = int(kept[own].sum()) + 1 + len(topics[topic]) // TOPIC_UNIT_BYTES
        if pack and not most.has_room(packed_bytes + own_bytes, packed_changes + own_changes):
            yield _together(messages, sizes, np.concatenate(pack))
            pack, packed_bytes, packed_changes = [], 0, 0
        if most.has_room(own_bytes, own_changes):
            pack.append(own)
            packed_bytes += own_bytes
            packed_changes += own_changes
        else:
            data = messages.data
            ordered = sorted(own.tolist(), key=lambda i: data[messages.positions[i] :][: sizes[i]].tobytes())
            together = _together(messages, sizes, np.array(ordered))
            yield from _in_order(_found(together), most)
    if pack:
        yield _together(messages, sizes, np.concatenate(pack))


def _together(messages: Messages, sizes: NDArray[np.int32], chosen: NDArray[np.int64]) -> Bytes:
    """These records, in this order."""
    lengths = sizes[chosen]
    data = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
    gather(messages.data, messages.positions[chosen], lengths, np.empty(len(chosen) + 1, np.int32), data)
    return data
