"""The partition on real brokers: what is written comes back in order, and what is not known is said to be so."""

import queue
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.cluster.answers import (
    FetchPlace,
    FetchUnanswered,
    FrameRefused,
    FrameStands,
    FrameUnanswered,
    KafkaAnswer,
    PartitionForeign,
    PartitionLeft,
    RecordsFetched,
)
from penstock.cluster.fetching import FrameFetcher
from penstock.cluster.producing import FrameProducer
from penstock.cluster.topic import TopicAdmin
from penstock.kafka_place import KafkaLogin, KafkaPlace, named_place
from store.replication.frames import FrameKind, LogFrame, decode_frame
from store.replication.judging import NOTHING_ACCEPTED, ReplicaMark
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_cluster import kafka_cluster as kafka_cluster

PATIENCE_S = 60
UNANSWERED_S = 15.0  # the first frame of a new topic takes more than a second on a busy machine


class Partition:
    """Both ends of a topic of its own, whose answers are waited for."""

    def __init__(self, place: KafkaPlace, topic_id: str) -> None:
        self.answers: queue.Queue[KafkaAnswer] = queue.Queue()
        self.fetched: queue.Queue[KafkaAnswer] = queue.Queue()
        self.producer = FrameProducer(place, UNANSWERED_S, self.answers.put)
        self.fetcher = FrameFetcher(place, topic_id, self.fetched.put)

    def send(self, number: int, data: bytes = b"") -> KafkaAnswer:
        frame = LogFrame(FrameKind.DATA, 1, 0, number, data)
        self.producer.send(frame, frame.encode())
        return self.answers.get(timeout=PATIENCE_S)

    def stands(self, number: int, data: bytes = b"") -> int:
        answer = self.send(number, data)
        assert isinstance(answer, FrameStands), answer
        return answer.offset

    def fetch(self, position: int, mark: ReplicaMark = NOTHING_ACCEPTED) -> KafkaAnswer:
        self.fetcher.fetch(FetchPlace(position, mark))
        return self.fetched.get(timeout=PATIENCE_S)

    def numbers(self, position: int = 0, mark: ReplicaMark = NOTHING_ACCEPTED) -> list[int]:
        """Of all frames from there to the end."""
        found: list[int] = []
        while True:
            answer = self.fetch(position, mark)
            assert isinstance(answer, RecordsFetched), answer
            if answer.is_end:
                return found
            found += [decode_frame(value).frame.number for _, value in answer.records]
            position = answer.records[-1][0] + 1 if answer.records else position


@contextmanager
def partition(cluster: KafkaCluster, topic_id: str = "", **made: object) -> Iterator[Partition]:
    topic = f"log-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, **made)  # type: ignore[arg-type]
    place = named_place(cluster.url(topic), KafkaLogin(), "test", "tests.kafka")
    described = TopicAdmin(place).describe()
    assert described is not None
    both = Partition(place, topic_id or described.id)
    try:
        yield both
    finally:
        both.fetcher.close()
        both.producer.close(1.0)


def test_frames_come_back_and_the_mark_is_checked(kafka_cluster: KafkaCluster) -> None:
    with partition(kafka_cluster) as both:
        empty = both.fetch(0)
        assert empty == RecordsFetched([], is_end=True)
        assert [both.stands(number, b"x" * 100) for number in range(1, 6)] == [0, 1, 2, 3, 4]
        assert both.numbers() == [1, 2, 3, 4, 5]
        checksum = decode_frame(LogFrame(FrameKind.DATA, 1, 0, 3, b"x" * 100).encode()).checksum
        mark = NOTHING_ACCEPTED._replace(offset=2, checksum=checksum)
        both.fetcher._is_known = False  # as after a fault
        assert both.numbers(3, mark) == [4, 5]
        for wrong in (mark._replace(checksum=checksum ^ 1), mark._replace(offset=5)):
            both.fetcher._is_known = False
            assert isinstance(both.fetch(3, wrong), PartitionForeign)


def test_topic_with_another_id_is_refused(kafka_cluster: KafkaCluster) -> None:
    with partition(kafka_cluster, topic_id="another") as both:
        answer = both.fetch(0)
        assert isinstance(answer, PartitionForeign)
        assert "its id is" in answer.reason


def test_a_frame_that_is_too_large_is_refused_for_certain(kafka_cluster: KafkaCluster) -> None:
    with partition(kafka_cluster, max__message__bytes=10_000) as both:
        assert isinstance(both.send(1, bytes(20_000)), FrameRefused)
        assert both.stands(2) == 0


def test_records_deleted_before_the_mark_are_told(kafka_cluster: KafkaCluster) -> None:
    with partition(kafka_cluster) as both:
        for number in range(1, 4):
            both.stands(number)
        both.fetcher._admin.delete_before(3)
        assert both.fetch(1) == PartitionLeft(1, 3)


@pytest.mark.nightly
def test_brokers_that_answer_nothing(kafka_cluster: KafkaCluster) -> None:
    with partition(kafka_cluster) as both:
        both.stands(1)
        for broker in kafka_cluster.brokers:
            broker.stop()
        try:
            assert isinstance(both.send(2), FrameUnanswered)
            assert isinstance(both.fetch(1), FetchUnanswered)
        finally:
            for broker in kafka_cluster.brokers:
                broker.cont()
        while not isinstance(both.send(3), FrameStands):
            pass
        assert both.numbers()[-1] == 3
