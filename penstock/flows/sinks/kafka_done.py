"""Which messages of a flow's group are in Kafka, as a compacted topic says in the transactions that bring them there.

The store's own position is behind that by what was not acknowledged yet, so this is a few thousand messages at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from penstock.flows.errors import SinkAway
from penstock.flows.events import FlowEvent
from penstock.sdk.subscription import GroupPosition
from store.state.offset_ranges import as_ranges, in_ranges

MOST: Final = 50_000
"""Messages that are done while one before them is not."""
LOOKED_BACK: Final = 100  # offsets, for the newest record; ten times as many each time
TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(16 << 20),
}


class DoneRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The value of a record. `log`, `began`: as in GroupPosition; `ranges`: as as_ranges() makes them."""

    log: str
    began: int
    ranges: tuple[int, ...]
    newest_ms: int
    """When the newest of all messages so far was stored: one stored later is none of them."""


_decode = msgspec.json.Decoder(DoneRecord).decode
_encode = msgspec.json.Encoder().encode


class DoneMessages:
    """What is done of a group, as far as the store may hand it out again."""

    def __init__(self, record: DoneRecord | None) -> None:
        self._log = record.log if record is not None else ""
        self._began = record.began if record is not None else 0
        self._newest_ms = record.newest_ms if record is not None else 0
        self._offsets = frozenset(in_ranges(record.ranges) if record is not None else ())
        self._acked = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def place(self, position: GroupPosition) -> None:
        """The group is there now. Where it was reset, or made anew, or the log is another one, all is to be sent."""
        if (position.log, position.began) != (self._log, self._began):
            self._log, self._began = position.log, position.began
            self._offsets, self._newest_ms = frozenset(), 0
        self._acked = position.acked_offset
        self._offsets = frozenset(offset for offset in self._offsets if offset >= self._acked)

    def missing(self, events: Iterable[FlowEvent]) -> dict[int, int]:
        """The group_offset of each message that is not done, and when it was stored (Unix time in ms).

        A log that lost its end in a power cut counts on from there. So a message that was stored later than all that
        are done is another one, and so are those after it.
        """
        found: dict[int, int] = {}
        for event in sorted(events, key=lambda event: event.group_offset):
            offset = event.group_offset
            if offset in self._offsets and event.stored_ms > self._newest_ms:
                self._offsets = frozenset(each for each in self._offsets if each < offset)
            if offset >= self._acked and offset not in self._offsets:
                found[offset] = event.stored_ms
        return found

    def with_messages(self, new: Mapping[int, int]) -> Self:
        """After a transaction with those of missing(). Raises SinkAway where it would be too many."""
        then = type(self)(None)
        then._log, then._began, then._acked = self._log, self._began, self._acked
        then._offsets = self._offsets | new.keys()
        then._newest_ms = max(self._newest_ms, *new.values())
        if len(then) > MOST:
            raise SinkAway(
                f"{MOST} messages are done behind message {self._acked} of the group, which another consumer holds"
            )
        return then

    def encode(self) -> bytes:
        return _encode(DoneRecord(self._log, self._began, tuple(as_ranges(sorted(self._offsets))), self._newest_ms))


class DoneTopic:
    """The topic of one flow. Only the owner of its transactional.id writes to it, to partition 0."""

    def __init__(self, name: str, config: Mapping[str, Any], timeout_s: float) -> None:
        """`config`: how to connect."""
        self.name = name
        self.key = name.encode()
        self._config, self._timeout_s = config, timeout_s

    def make(self) -> None:
        """Make it if it is not there. Raises KafkaException, SinkAway (it is no compacted one)."""
        admin = AdminClient(dict(self._config))
        try:
            self._make(admin)
        finally:
            admin.poll(0)  # for what it says of its connections

    def _make(self, admin: AdminClient) -> None:
        if self.name not in admin.list_topics(timeout=self._timeout_s).topics:
            (made,) = admin.create_topics(
                [NewTopic(self.name, num_partitions=1, replication_factor=-1, config=TOPIC_CONFIG)],
                operation_timeout=self._timeout_s,
            ).values()
            try:
                made.result(self._timeout_s)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            return
        (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, self.name)]).values()
        if described.result(self._timeout_s)["cleanup.policy"].value != "compact":
            reason = "would delete what the flow relies on"
            raise SinkAway(f"Kafka: topic {self.name} {reason}; set its cleanup.policy to compact")

    def read(self) -> DoneMessages:
        """What the newest record says. Raises KafkaException, SinkAway."""
        consumer = Consumer(
            {
                **self._config,
                "group.id": self.name,  # librdkafka wants one; it is not used
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(self.name, 0), timeout=self._timeout_s)
            number = LOOKED_BACK
            while True:
                start = max(low, high - number)
                found = self._last(consumer, start) if high > low else None
                if found is not None or start <= low:
                    break
                number *= 10
        finally:
            consumer.close()
        return DoneMessages(found)

    def _last(self, consumer: Consumer, start: int) -> DoneRecord | None:
        """The last record from an offset on."""
        consumer.assign([TopicPartition(self.name, 0, start)])
        found: bytes | None = None
        while True:
            message = consumer.poll(self._timeout_s)
            if message is None:
                raise SinkAway(f"Kafka: topic {self.name} was not read to its end in {self._timeout_s:g} s")
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                break
            if error is not None:
                raise KafkaException(error)
            if message.key() == self.key:
                found = message.value()
        if found is None:
            return None
        try:
            return _decode(found)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            reason = f"another program has written there, or a later version: {error}"
            raise SinkAway(f"Kafka: topic {self.name}: {reason}; give the flow another kafka.id") from None
