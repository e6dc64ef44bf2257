"""How far each store of a cluster has the log on its disk, as offsets that stores commit in Kafka."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.cluster.errors import KafkaUnreachable
from penstock.cluster.topic import TIMEOUT_S, TopicAdmin, asked
from penstock.kafka_place import KafkaPlace
from store.ratelimit import RateLimitedLog
from store.replication.judging import ReplicaMark

log = logging.getLogger("penstock.cluster")

REPORT_S: Final = 5.0


class StoreReport(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What a store says of itself beside its offset."""

    address: str
    is_leading: bool
    epoch: int
    accepted: int  # log_offset up to which its log is on its disk, and accepted
    said_s: float = 0.0  # when it said so, by its clock; 0: an older version
    is_copying: bool = False
    copies_from: str = ""  # address of the store that it copies; empty: it knows of none yet
    copied_bytes: int = 0
    copies_bytes: int = 0  # in all


class LookedAt(NamedTuple):
    """The mark that this store keeps, and what to say of it. `keep_from`: offset that a store which copies it needs."""

    mark: ReplicaMark
    report: StoreReport
    keep_from: int | None


class StoreProgress(NamedTuple):
    """One store, as it said last. `offset`: of the frame at its mark; -1: it has said nothing, or Kafka forgot it."""

    name: str
    offset: int
    report: StoreReport | None


class ClusterProgress:
    """What all stores said. Its calls block, and raise KafkaUnreachable."""

    def __init__(self, place: KafkaPlace) -> None:
        self._place = place
        self._admin = AdminClient(dict(place.config))

    def group(self, name: str) -> str:
        """The group of Kafka in which a store commits."""
        return f"{self._place.topic}.store.{name}"

    def names(self) -> list[str]:
        """The stores that Kafka knows."""
        prefix = self.group("")
        asking = self._admin.list_consumer_groups
        found = asked(self._place.topic, lambda: asking(request_timeout=TIMEOUT_S).result(2 * TIMEOUT_S))
        ids = (each.group_id for each in found.valid)
        return sorted(each.removeprefix(prefix) for each in ids if each.startswith(prefix))

    def of(self, names: Sequence[str]) -> list[StoreProgress]:
        return [self._of(name) for name in names]

    def _of(self, name: str) -> StoreProgress:
        wanted = ConsumerGroupTopicPartitions(self.group(name), [TopicPartition(self._place.topic, 0)])

        def ask() -> TopicPartition:
            (answer,) = self._admin.list_consumer_group_offsets([wanted], request_timeout=TIMEOUT_S).values()
            found: TopicPartition
            (found,) = answer.result(2 * TIMEOUT_S).topic_partitions
            return found

        found = asked(self._place.topic, ask)
        if found.error is not None or found.offset < 0:
            return StoreProgress(name, -1, None)
        try:
            report = msgspec.json.decode(found.metadata or "", type=StoreReport)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            report = None
        return StoreProgress(name, found.offset, report)


class ProgressThread:
    """Commits how far this store is, and deletes what all stores have if it leads."""

    def __init__(
        self,
        place: KafkaPlace,
        name: str,
        stores: Sequence[str],
        look: Callable[[], LookedAt],
    ) -> None:
        """`look` is called by the thread."""
        self._topic, self._stores, self._look = place.topic, stores, look
        self._progress = ClusterProgress(place)
        self._admin = TopicAdmin(place)
        self._consumer = Consumer(
            {**place.config, "group.id": self._progress.group(name), "enable.auto.commit": False, "log_level": 0}
        )
        self._events = RateLimitedLog(log)
        self._deleted_to = 0
        self._is_closing = threading.Event()
        self._is_due = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-kafka-progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._is_due.wait(REPORT_S)
            self._is_due.clear()
            if self._is_closing.is_set():
                return
            try:
                self._step()
            except (KafkaException, KafkaUnreachable) as error:
                self._events.warning("progress", "Kafka was not told how far this store is: %s", error)

    def _step(self) -> None:
        mark, report, keep_from = self._look()
        if mark.offset < 0 and not report.is_copying:
            return
        said = msgspec.json.encode(report).decode()
        place = TopicPartition(self._topic, 0, max(0, mark.offset), metadata=said)
        self._consumer.commit(offsets=[place], asynchronous=False)
        if report.is_leading and self._stores:
            offsets = [each.offset for each in self._progress.of(self._stores)]
            self._delete(min(offsets if keep_from is None else [*offsets, keep_from]))

    def _delete(self, offset: int) -> None:
        """Delete what is in front of the frames at all marks, which stores read when they connect anew."""
        if offset > self._deleted_to:
            self._admin.delete_before(offset)
            self._deleted_to = offset

    def tell_now(self) -> None:
        """Do not wait until it is time to."""
        self._is_due.set()

    def close(self) -> None:
        self._is_closing.set()
        self._is_due.set()
        self._thread.join()
        self._consumer.close()
