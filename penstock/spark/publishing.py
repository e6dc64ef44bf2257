"""Records of rows become Appends that a store has once, whoever sends them again.

An Append is stored whole or not at all, and bears a number under a name; the store's log has both. Of a stream the
name is that of the query and the number says the epoch, so an epoch that one Append can hold is published at once, and
once, whatever the query computes when it is run again. A larger one is cut into Appends in a way that depends on its
messages alone, not on how they lie in partitions or came in, so that it is cut the same when it is run again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lightqueue.matching import any_of
from penstock.spark.columns import HEADER_BYTES, Messages
from penstock.spark.connection import Store
from penstock.spark.errors import BadOption, RequestFailed, SparkSourceError
from store._columns import find_messages, gather
from store.records import RecordFlag
from store.wire.log_messages import Segments, SegmentsFound
from store.wire.messages import Append, Appended, FailureCode

HEAD_ROOM_BYTES = 8 << 10  # of a frame, for what is not records
FLAGS_AT = 25  # of a record
APPENDS_PER_EPOCH = 1 << 20
PAUSE_S = 0.5
PASSES = (FailureCode.UNAVAILABLE, FailureCode.STORE_FULL)  # maybe

Bytes = NDArray[np.uint8]


class Publisher:
    """Publishes under a name. Raises StoreAway, StoreRefusesUs, RequestFailed, BadOption."""

    def __init__(self, store: Store, name: str) -> None:
        """`name`: empty for one that nobody else has."""
        self._connection = store.connect(name)
        self._patience_s = store.patience_s

    def publish(self, records: Bytes) -> None:
        """In their order. Should this process end amid it, some are stored."""
        for number, part in enumerate(_in_order(self._ready(records), self._limit_bytes), 1):
            self._append(number, part)

    def publish_epoch(self, epoch: int, records: Bytes) -> None:
        """Once, also if it is called again for the same epoch by another process."""
        messages = self._ready(records)
        if len(messages.data) <= self._limit_bytes:
            parts = [messages.data] if len(messages) else []
        else:
            parts = list(_by_topic(messages, self._limit_bytes))
        if len(parts) >= APPENDS_PER_EPOCH:
            raise BadOption(f"epoch {epoch} has {len(records)} bytes of messages; lower maxOffsetsPerTrigger")
        first = epoch * APPENDS_PER_EPOCH + 1
        for number, part in enumerate(parts, first):
            is_last = number - first == len(parts) - 1
            self._append((epoch + 1) * APPENDS_PER_EPOCH if is_last else number, part)

    @property
    def _limit_bytes(self) -> int:
        return self._connection.welcome.max_frame_bytes - HEAD_ROOM_BYTES

    def _ready(self, records: Bytes) -> Messages:
        """Marked where the store delivers live only. Raises MessageTooLarge."""
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
                # A refused number can be sent again once the store knows that its refusal came: it asks before it
                # answers anything else.
                self._connection.call(Segments(2**63 - 1), SegmentsFound)
                if error.code not in PASSES or time.monotonic() > deadline_s:
                    raise
            time.sleep(PAUSE_S)

    def close(self, goodbye: str = "") -> None:
        """`goodbye`: why. A producer's name is remembered all the same."""
        self._connection.close(goodbye)


class MessageTooLarge(SparkSourceError):
    """A message that is longer than what the store takes."""

    def __init__(self, message: Messages, limit_bytes: int) -> None:
        (topic,) = message.distinct_topics()[0]
        super().__init__(
            f"a message to {topic.decode()!r} takes {len(message.data)} bytes, and the store's frames have room for "
            f"{limit_bytes}; make it smaller, or raise wire.max_frame_bytes there"
        )


def _found(records: Bytes) -> Messages:
    """The messages among records that are nothing else."""
    positions = np.empty(len(records) // HEADER_BYTES + 1, np.int64)
    return Messages(records, 0, positions[: find_messages(records, positions, 0)])


def _sizes(messages: Messages) -> NDArray[np.int32]:
    """Bytes of each record, where nothing else stands between them."""
    return np.diff(messages.positions, append=len(messages.data)).astype(np.int32)


def _in_order(messages: Messages, limit_bytes: int) -> Iterator[Bytes]:
    """Runs of records, each of some bytes at most."""
    ends = np.append(messages.positions[1:], len(messages.data))
    start = 0
    while start < len(messages.data):
        end = int(ends[np.searchsorted(ends, start + limit_bytes, side="right") - 1])
        yield messages.data[start:end]
        start = end


def _by_topic(messages: Messages, limit_bytes: int) -> Iterator[Bytes]:
    """The same, cut alike however the rows of an epoch are ordered: by topic, those of one topic in their order.

    If one topic has more than fits, its messages are put in the order of their bytes.
    """
    topics, numbers = messages.distinct_topics()
    sizes = _sizes(messages)
    by_topic = np.argsort(numbers, kind="stable")
    firsts = np.searchsorted(numbers[by_topic], np.arange(len(topics) + 1))
    pack: list[NDArray[np.int64]] = []
    packed_bytes = 0
    for topic in sorted(range(len(topics)), key=topics.__getitem__):
        own = by_topic[firsts[topic] : firsts[topic + 1]]
        own_bytes = int(sizes[own].sum(dtype=np.int64))
        if pack and packed_bytes + own_bytes > limit_bytes:
            yield _together(messages, sizes, np.concatenate(pack))
            pack, packed_bytes = [], 0
        if own_bytes > limit_bytes:
            data = messages.data
            ordered = sorted(own.tolist(), key=lambda i: data[messages.positions[i] :][: sizes[i]].tobytes())
            together = _together(messages, sizes, np.array(ordered))
            yield from _in_order(_found(together), limit_bytes)
        else:
            pack.append(own)
            packed_bytes += own_bytes
    if pack:
        yield _together(messages, sizes, np.concatenate(pack))


def _together(messages: Messages, sizes: NDArray[np.int32], chosen: NDArray[np.int64]) -> Bytes:
    """These records, in this order."""
    lengths = sizes[chosen]
    data = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
    gather(messages.data, messages.positions[chosen], lengths, np.empty(len(chosen) + 1, np.int32), data)
    return data
