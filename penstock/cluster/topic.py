"""The topic of the replicated log: what it must be so that nothing acknowledged is lost, and how it is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from penstock.cluster.errors import KafkaUnreachable, TopicUnfit
from penstock.kafka_place import KafkaPlace
from penstock.kafka_refusal import KafkaRefusal, refusal_of

TIMEOUT_S: Final = 10.0
LOOK_AGAIN_S: Final = 0.05
CREATE: Final = "`penstock cluster create` makes one that is right"
LEAST_REPLICAS: Final = 3
LEAST_IN_SYNC: Final = 2
MOST_RECORD_BYTES: Final = 1 << 20
AROUND_A_VALUE_BYTES: Final = 512  # what Kafka puts around the value of a record, and more
_LOG = "store.replicated_log"
_WANTED: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
}
REMEDIES: Final[dict[KafkaRefusal | None, str]] = {
    "login": "cluster.kafka_password_file: correct it, or cluster.kafka_user or cluster.kafka_mechanism",
    "certificate": "cluster.kafka_ca_file: give the authority that signed the brokers' certificates, and in "
    "store.replicated_log the names that these are for",
}
T = TypeVar("T")


class ReplicatedTopic(NamedTuple):
    """A topic as Kafka describes it."""

    id: str
    partitions: int
    replicas: int
    config: dict[str, str]

    @property
    def record_bytes(self) -> int:
        """The largest value that a record may have."""
        return min(int(self.config["max.message.bytes"]) - AROUND_A_VALUE_BYTES, MOST_RECORD_BYTES)


def asked(topic: str, ask: Callable[[], T]) -> T:
    """What Kafka answers. Raises KafkaUnreachable."""
    try:
        return ask()
    except KafkaException as error:
        raise KafkaUnreachable(topic, error.args[0].str()) from None
    except TimeoutError:
        raise KafkaUnreachable(topic, f"no answer within {TIMEOUT_S:g} s") from None


class PartitionReader:
    """Reads single records of the partition, for a command. Its calls block, and raise KafkaUnreachable."""

    def __init__(self, place: KafkaPlace) -> None:
        self._topic = place.topic
        self._consumer = Consumer({**place.config, "group.id": place.config["client.id"], "enable.auto.commit": False})

    def close(self) -> None:
        self._consumer.close()

    def bounds(self) -> tuple[int, int]:
        """The first offset, and the one after the last record."""
        partition = TopicPartition(self._topic, 0)
        found = asked(self._topic, lambda: self._consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S))
        if found is None:
            raise KafkaUnreachable(self._topic, f"no answer within {TIMEOUT_S:g} s")
        return found

    def record(self, offset: int) -> Message | None:
        """None: it cannot be read."""

        def read() -> Message | None:
            self._consumer.assign([TopicPartition(self._topic, 0, offset)])
            return self._consumer.poll(TIMEOUT_S)

        message = asked(self._topic, read)
        return None if message is None or message.error() is not None else message


class TopicAdmin:
    """What a store asks Kafka of its topic. Its calls block, and raise KafkaUnreachable."""

    def __init__(self, place: KafkaPlace) -> None:
        self._place = place
        self._refusals: list[KafkaError] = []
        self._admin = AdminClient(place.config | {"error_cb": self._noted, "log_level": 0})  # an error says it

    def _noted(self, error: KafkaError) -> None:
        if refusal_of(error) is not None and len(self._refusals) <= self._place.brokers:
            self._refusals.append(error)

    def _asked(self, ask: Callable[[], T]) -> T:
        self._admin.poll(0)
        self._refusals.clear()  # from before
        try:
            return asked(self._place.topic, ask)
        except KafkaUnreachable:
            if self._refusals:
                error = self._refusals[0]
                raise KafkaUnreachable(self._place.topic, error.str(), REMEDIES[refusal_of(error)]) from None
            raise

    def _result(self, future: Future[T]) -> T:
        """What brokers answer, unless one after the other lets nobody in. Raises KafkaException, TimeoutError."""
        deadline_s = time.monotonic() + 2 * TIMEOUT_S
        while not future.done() and time.monotonic() < deadline_s and len(self._refusals) <= self._place.brokers:
            wait([future], LOOK_AGAIN_S)
            self._admin.poll(0)
        return future.result(0)

    def describe(self) -> ReplicatedTopic | None:
        """The topic; None: there is none."""
        return self._asked(self._describe)

    def _describe(self) -> ReplicatedTopic | None:
        topic = self._place.topic
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            topics = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_S)
            found = self._result(topics[topic])
            (described,) = self._admin.describe_configs([resource], request_timeout=TIMEOUT_S).values()
            config = {name: str(entry.value) for name, entry in self._result(described).items()}
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        replicas = min((len(each.replicas) for each in found.partitions), default=0)
        return ReplicatedTopic(str(found.topic_id), len(found.partitions), replicas, config)

    def create(self, replicas: int) -> ReplicatedTopic:
        """Make the topic, so that check() takes it, and wait until brokers know of it."""
        in_sync = max(1, min(LEAST_IN_SYNC, replicas - 1))
        config = {**_WANTED, "min.insync.replicas": str(in_sync), "max.message.bytes": str(2 * MOST_RECORD_BYTES)}
        new = NewTopic(self._place.topic, num_partitions=1, replication_factor=replicas, config=config)

        def ask() -> None:
            (made,) = self._admin.create_topics([new], operation_timeout=TIMEOUT_S).values()
            self._result(made)

        self._asked(ask)
        deadline_s = time.monotonic() + TIMEOUT_S
        while (found := self.describe()) is None:
            if time.monotonic() > deadline_s:
                raise KafkaUnreachable(self._place.topic, f"it was made, and is not there after {TIMEOUT_S:g} s")
            time.sleep(LOOK_AGAIN_S)
        return found

    def delete_before(self, offset: int) -> None:
        """Have Kafka delete the records in front of an offset."""
        wanted = TopicPartition(self._place.topic, 0, offset)

        def ask() -> None:
            (done,) = self._admin.delete_records([wanted], operation_timeout=TIMEOUT_S).values()
            self._result(done)

        self._asked(ask)


def check(topic: ReplicatedTopic | None, name: str, accepts_two: bool) -> ReplicatedTopic:
    """The topic, if a log may lie in it. Raises TopicUnfit, which names the setting."""
    if topic is None:
        raise TopicUnfit(_LOG, name, "is not there", CREATE)
    if topic.partitions != 1:
        raise TopicUnfit(_LOG, name, f"has {topic.partitions} partitions, and a log lies in one", CREATE)
    _check_replicas(topic, name, accepts_two)
    for setting, value in _WANTED.items():
        found = topic.config[setting]
        if found != value:
            raise TopicUnfit(_LOG, name, f"has {setting}={found}", f"set {setting}={value}, else it loses messages")
    return topic


def _check_replicas(topic: ReplicatedTopic, name: str, accepts_two: bool) -> None:
    if topic.replicas == 2 and accepts_two:
        return
    if topic.replicas < LEAST_REPLICAS:
        reason = f"has a replication factor of {topic.replicas}, and {LEAST_REPLICAS} are wanted"
        if topic.replicas == 2:
            raise TopicUnfit("store.accept_two_replicas", name, reason, "set it if you take what it risks")
        raise TopicUnfit(_LOG, name, reason, CREATE)
    in_sync = topic.config["min.insync.replicas"]
    if int(in_sync) < LEAST_IN_SYNC:
        reason = f"has min.insync.replicas={in_sync}"
        raise TopicUnfit(_LOG, name, reason, f"set min.insync.replicas={LEAST_IN_SYNC}, else it loses messages")
