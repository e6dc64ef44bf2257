"""What flows rely on in Kafka, asked of a real broker."""

import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.kafka_broker import KafkaBroker

TIMEOUT_S = 60


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    name = f"promises-{uuid.uuid4().hex}"
    kafka.create_topic(name)
    return name


def transactional(kafka: KafkaBroker, name: str) -> Producer:
    """Begins with init_transactions, which fences those before it."""
    producer = Producer({"bootstrap.servers": kafka.url, "transactional.id": name, "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: Producer, topic: str, *values: bytes) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def committed(kafka: KafkaBroker, topic: str) -> list[bytes]:
    """All that can be read now; an open transaction ends it."""
    return list(_read_committed(kafka, topic))


def _read_committed(kafka: KafkaBroker, topic: str) -> Iterator[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.url,
            "group.id": "not used",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            error = message and message.error()
            if error and error.code() == KafkaError._PARTITION_EOF:
                return
            if message and not error:
                yield message.value() or b""
    finally:
        consumer.close()
    raise AssertionError("the end was not reached")


def test_only_what_is_committed_is_read(kafka: KafkaBroker, topic: str) -> None:
    producer = transactional(kafka, topic)
    write(producer, topic, b"aborted")
    producer.abort_transaction(TIMEOUT_S)
    write(producer, topic, b"committed")
    producer.commit_transaction(TIMEOUT_S)
    write(producer, topic, b"open")
    assert committed(kafka, topic) == [b"committed"]


def test_a_later_producer_of_that_name_fences_the_one_before(kafka: KafkaBroker, topic: str) -> None:
    before = transactional(kafka, topic)
    write(before, topic, b"of the one before")
    after = transactional(kafka, topic)
    with pytest.raises(KafkaException) as refused:
        before.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    write(after, topic, b"of the later one")
    after.commit_transaction(TIMEOUT_S)
    assert committed(kafka, topic) == [b"of the later one"]


def test_committed_records_survive_a_kill_of_kafka(kafka: KafkaBroker, topic: str) -> None:
    producer = transactional(kafka, topic)
    write(producer, topic, b"committed")
    producer.commit_transaction(TIMEOUT_S)
    write(producer, topic, b"open")
    kafka.kill()
    kafka.start()
    later = transactional(kafka, topic)
    write(later, topic, b"after")
    later.commit_transaction(TIMEOUT_S)
    assert committed(kafka, topic) == [b"committed", b"after"]


def test_a_stopped_broker_answers_when_it_goes_on(kafka: KafkaBroker, topic: str) -> None:
    producer = transactional(kafka, topic)
    kafka.stop()
    with pytest.raises(KafkaException):
        kafka.admin().list_topics(timeout=0.5)
    kafka.cont()
    write(producer, topic, b"later")
    producer.commit_transaction(TIMEOUT_S)
    assert committed(kafka, topic) == [b"later"]
