"""Reads the partition: from an offset to its end, and on as it grows. Nothing resets the offset."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.cluster.answers import (
    FetcherFailed,
    FetchPlace,
    FetchUnanswered,
    KafkaAnswer,
    PartitionForeign,
    PartitionLeft,
    RecordsFetched,
)
from penstock.cluster.errors import KafkaUnreachable
from penstock.cluster.topic import TopicAdmin
from penstock.kafka_place import KafkaPlace
from store.errors import FrameDamaged
from store.replication.frames import decode_frame

MOST_RECORDS: Final = 500  # at a time
WAIT_S: Final = 0.1  # for records; then Kafka is asked where the partition ends
ANSWER_S: Final = 1.0
FETCHED_KB: Final = 65_536  # that librdkafka holds
NOT_READ_S: Final = 5.0  # after which Kafka does not have the frame of the mark


class _OtherPartition(Exception):
    """It is not the partition that the store has followed."""


class FrameFetcher:
    """Owner of the consumer and its thread, which has one answer under way at a time."""

    def __init__(self, place: KafkaPlace, topic_id: str, report: Callable[[KafkaAnswer], None]) -> None:
        """`report`: called by the thread; it reads on once fetch() is called after an answer."""
        self._place = place
        self._topic_id = topic_id
        self._admin = TopicAdmin(place)
        self._report = report
        self._consumer = Consumer(
            {
                **place.config,
                "group.id": place.config["client.id"],  # the library wants one; nothing is committed
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
                "fetch.wait.max.ms": 100,  # a question where the partition ends waits after it
                "fetch.message.max.bytes": 8 << 20,
                "fetch.error.backoff.ms": 100,
                "queued.max.messages.kbytes": FETCHED_KB,
                "socket.timeout.ms": 3_000,
                "reconnect.backoff.max.ms": 500,
                "max.poll.interval.ms": 86_400_000,
            }
        )
        self._partition = TopicPartition(place.topic, 0)
        self._wanted: FetchPlace | None = None
        self._changed = threading.Condition()
        self._at = -1  # where the consumer reads on; -1: nowhere
        self._is_known = False  # since the last fault, the frame of the mark was seen
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="penstock-kafka-fetch", daemon=True)
        self._thread.start()

    def fetch(self, place: FetchPlace) -> None:
        """Report what stands from there on, once there is something, and at the latest after about ANSWER_S."""
        with self._changed:
            self._wanted = place
            self._changed.notify()

    @property
    def is_asked(self) -> bool:
        """Whether an answer is under way."""
        return self._wanted is not None

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()
        self._consumer.close()

    # --- its thread

    def _run(self) -> None:
        while (place := self._next()) is not None:
            try:
                answer = self._answer(place)
            except Exception as error:
                self._report(FetcherFailed(error))
                raise
            if isinstance(answer, FetchUnanswered):
                self._is_known = False
            with self._changed:
                self._wanted = None
            self._report(answer)

    def _next(self) -> FetchPlace | None:
        with self._changed:
            if self._wanted is None and not self._is_closing and self._at >= 0:
                self._changed.wait(ANSWER_S)
            if self._wanted is None and self._at >= 0:  # a leader need not read
                self._consumer.unassign()
                self._at = -1
            while self._wanted is None and not self._is_closing:
                self._changed.wait()
            return None if self._is_closing else self._wanted

    def _answer(self, place: FetchPlace) -> KafkaAnswer:
        try:
            if not self._is_known:
                self._check(place)
            if self._at != place.position:
                self._assign(place.position)
            return self._read(place)
        except KafkaException as error:
            return FetchUnanswered(error.args[0].str())
        except KafkaUnreachable as error:
            return FetchUnanswered(str(error))
        except _OtherPartition as error:
            return PartitionForeign(str(error))

    def _assign(self, offset: int) -> None:
        self._consumer.assign([TopicPartition(self._place.topic, 0, offset)])
        self._at = offset

    def _read(self, place: FetchPlace) -> KafkaAnswer:
        """Raises KafkaException."""
        messages = self._consumer.consume(MOST_RECORDS, WAIT_S)
        records = [(message.offset() or 0, message.value() or b"") for message in messages if message.error() is None]
        fault = next((error for message in messages if (error := message.error()) is not None), None)
        if records:
            self._at = records[-1][0] + 1
            return RecordsFetched(records, is_end=False)
        first, end = self._bounds()
        if place.position < first:
            return PartitionLeft(place.position, first)
        if place.position > end:
            raise _OtherPartition(f"it ends at offset {end}, and this store has read it up to {place.position}")
        if fault is not None:
            raise KafkaException(fault)
        return RecordsFetched([], is_end=end <= place.position)

    def _bounds(self) -> tuple[int, int]:
        """The first offset, and the one after the last record, as the broker says now. Raises KafkaException."""
        found = self._consumer.get_watermark_offsets(self._partition, timeout=ANSWER_S)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    def _check(self, place: FetchPlace) -> None:
        """That it is the partition of the mark. Raises KafkaException, KafkaUnreachable, _OtherPartition.

        The frame of the mark tells it, and no controller of Kafka has to be there for that.
        """
        if place.mark.offset < 0:
            self._check_id()
        first, end = self._bounds()
        if place.mark.offset >= end:
            raise _OtherPartition(f"it ends at offset {end}, and this store has accepted offset {place.mark.offset}")
        if place.mark.offset >= first:
            self._check_frame(place)
        self._is_known = True

    def _check_id(self) -> None:
        found = self._admin.describe()
        if found is None:
            raise KafkaUnreachable(self._place.topic, "it is not there")
        if found.id != self._topic_id:
            raise _OtherPartition(f"its id is {found.id}, and this store has followed {self._topic_id}")

    def _check_frame(self, place: FetchPlace) -> None:
        offset = place.mark.offset
        self._assign(offset)
        message = self._first_message()
        self._at = -1
        try:
            is_same = (
                message.offset() == offset and decode_frame(message.value() or b"").checksum == place.mark.checksum
            )
        except FrameDamaged:
            is_same = False
        if not is_same:
            raise _OtherPartition(f"its record at offset {offset} is not the frame that this store has accepted there")

    def _first_message(self) -> Message:
        deadline_s = time.monotonic() + NOT_READ_S
        while time.monotonic() < deadline_s and not self._is_closing:
            message = self._consumer.poll(WAIT_S)
            if message is not None and (error := message.error()) is None:
                return message
            if message is not None and error is not None:
                raise KafkaException(error)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
