"""A Kafka topic as a flow reads it: its description, where its partitions begin, and its records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError
from penstock.flows.kafka_place import kafka_place, refusal
from penstock.flows.sources.records import KafkaRecord
from penstock.kafka_place import KafkaPlace
from penstock.sdk.errors import BadPosition
from penstock.sdk.positions import moment
from store.moments import ago_ms

MOST_READ: Final = 1_000  # at a time
FETCHED_KB: Final = 16_384  # that the library holds besides
BACKOFF_MS: Final = 20  # once it holds enough, until it fetches again; by itself it waits for a second
TIMEOUT_S: Final = 10.0
WAIT_S: Final = 0.2  # for records, before it is looked at what else is to do
NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"  # of a topic, where brokers give none
T = TypeVar("T")


class KafkaTopic(NamedTuple):
    """A topic as its cluster describes it."""

    cluster_id: str
    topic_id: str
    name: str
    partitions: frozenset[int]


class KafkaReader:
    """Owner of a consumer, which belongs to one thread."""

    def __init__(self, place: KafkaPlace) -> None:
        self._topic = place.topic
        self._errors: list[KafkaError] = []
        self._admin = AdminClient(place.config | {"error_cb": self._errors.append})
        ours = {
            "group.id": place.config["client.id"],  # the library wants one; nothing is committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "queued.min.messages": 10_000,
            "queued.max.messages.kbytes": FETCHED_KB,
            "fetch.queue.backoff.ms": BACKOFF_MS,
            "max.poll.interval.ms": 86_400_000,
            "error_cb": self._errors.append,
        }
        self._consumer = Consumer(place.config | ours)

    def refused(self) -> KafkaError | None:
        """The error by which brokers do not let it in, or by which it does not trust them."""
        self._admin.poll(0)
        found = next(filter(refusal, self._errors), None)
        self._errors.clear()
        return found

    def describe(self) -> KafkaTopic:
        """Raises KafkaException, TimeoutError."""
        described = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=TIMEOUT_S)
        found = described[self._topic].result(2 * TIMEOUT_S)
        cluster_id = self._admin.list_topics(self._topic, timeout=TIMEOUT_S).cluster_id
        topic_id = str(found.topic_id)
        partitions = frozenset(each.id for each in found.partitions)
        return KafkaTopic(str(cluster_id), self._topic if topic_id == NO_ID else topic_id, self._topic, partitions)

    def bounds(self, partition: int) -> tuple[int, int]:
        """The first offset, and the one after the last record. Raises KafkaException."""
        found = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=TIMEOUT_S)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    def known_ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """After the last record of each, as it was when records came last; those of which that is known."""
        ends = {}
        for partition in partitions:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
            if end >= 0:
                ends[partition] = end
        return ends

    def offset_at(self, partition: int, time_ms: int) -> int:
        """Of the first record that is not older; after the last one if there is none. Raises KafkaException."""
        asked = [TopicPartition(self._topic, partition, time_ms)]
        (found,) = self._consumer.offsets_for_times(asked, timeout=TIMEOUT_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return found.offset if found.offset >= 0 else self.bounds(partition)[1]

    def assign(self, places: dict[int, int]) -> None:
        """Read these partitions, from these offsets on."""
        self._consumer.assign([TopicPartition(self._topic, *place) for place in places.items()])

    def read(self) -> tuple[list[Message], list[KafkaError]]:
        """What there is, after WAIT_S at the latest, and what troubles the library."""
        first = self._consumer.poll(WAIT_S)
        errors = self._errors[:]
        self._errors.clear()
        return [first, *self._consumer.consume(MOST_READ - 1, 0)] if first is not None else [], errors

    def close(self) -> None:
        self._consumer.close()


class ReaderThread:
    """Owner of the thread that a reader belongs to."""

    def __init__(self, place: KafkaPlace) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafka")
        self._place = place
        self._reader: KafkaReader | None = None

    async def do(self, call: Callable[[KafkaReader], T]) -> T:
        """Raises what the call raises; in place of a KafkaException or a TimeoutError the refusal that is the cause."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._done, call)

    def _done(self, call: Callable[[KafkaReader], T]) -> T:
        reader = self._made()
        try:
            return call(reader)
        except (KafkaException, TimeoutError):
            if (refused := reader.refused()) is not None:
                raise KafkaException(refused) from None
            raise

    def _made(self) -> KafkaReader:
        if self._reader is None:
            self._reader = KafkaReader(self._place)
        return self._reader

    async def close(self) -> None:
        """Once the call under way has ended."""
        if self._reader is not None:
            await self.do(KafkaReader.close)
        self._thread.shutdown(wait=False)


class PartitionStart:
    """Where partitions begin that the store does not know."""

    def __init__(self, flow: Flow) -> None:
        """Raises FlowError."""
        said = flow.said.start or "earliest"
        try:
            self._said = moment(said)
        except BadPosition as error:
            raise FlowError(flow.name, "start", str(error), "say earliest, now, -1h or a time") from None

    def of(self, reader: KafkaReader, partition: int, is_begun: bool) -> int:
        """`is_begun`: the flow has been there before, so the partition is new. Raises KafkaException."""
        if is_begun:
            return 0
        match self._said:
            case "earliest":
                return reader.bounds(partition)[0]
            case "now":
                return reader.bounds(partition)[1]
        return reader.offset_at(partition, self._time_ms())

    def _time_ms(self) -> int:
        ago = ago_ms(self._said)
        return ago if ago is not None else int(datetime.fromisoformat(self._said).timestamp() * 1000)


def topic_place(flow: Flow) -> KafkaPlace:
    """The topic that a flow comes from. Raises FlowError."""
    place = kafka_place(flow, "from", flow.said.from_)
    if not place.topic:
        raise FlowError(flow.name, "from", "it names no topic", "say kafka://HOST:9092/TOPIC")
    return place


def record_of(message: Message) -> KafkaRecord:
    _, time_ms = message.timestamp()
    headers = message.headers()
    return KafkaRecord(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.key(),
        message.value(),
        list(headers.items()) if isinstance(headers, dict) else headers,
        max(time_ms, 0),
    )


def said_by_kafka(error: Exception) -> str:
    """What an error says, in a line."""
    first = error.args[0] if error.args else None
    return told(first) if isinstance(first, KafkaError) else str(error) or type(error).__name__


def told(error: KafkaError) -> str:
    remedy = refusal(error)
    return f"{error.str()}; {remedy}" if remedy else error.str()


def newest(reader: KafkaReader, partitions: Iterable[int], count: int) -> list[KafkaRecord]:
    """The newest records of all partitions, the oldest of them first. Raises KafkaException."""
    bounds = {partition: reader.bounds(partition) for partition in partitions}
    missing = {partition: max(low, high - count) for partition, (low, high) in bounds.items() if high > low}
    reader.assign(missing)
    found: list[KafkaRecord] = []
    patience_s = time.monotonic() + TIMEOUT_S
    while missing and time.monotonic() < patience_s:
        messages, _ = reader.read()
        for message in messages:
            partition, offset = message.partition() or 0, message.offset() or 0
            if message.error() is None:
                found.append(record_of(message))
            if offset + 1 >= bounds[partition][1]:
                missing.pop(partition, None)
    found.sort(key=lambda record: (record.time_ms, record.partition, record.offset))
    return found[-count:]
