"""A session with more lagging queues than are read at a time: few are read for a message, and all arrive in order."""

import random

import pytest

from gateway.mqtt._mqtt import Reader, nearest
from gateway.mqtt.packets import QoS
from lightqueue.queues._queues import LIVE, Queue
from tests.support.mqtt_bench import Bench, Client

QUEUES = 300
READS_PER_MESSAGE = 4


def left_for(bench: Bench, topics: list[str], filters: list[str], qos: int) -> Client:
    """A client whose session is back after a restart, with messages in the topics that were left for it."""
    reader = bench.durable("reader")
    for at in range(0, len(filters), 100):
        reader.subscribe(*filters[at : at + 100], qos=qos)
    reader.lose()
    publisher = bench.connect("publisher")
    for i, topic in enumerate(topics):
        publisher.publish_whole(topic, b"%d" % i, 2)
    bench.restart()  # so that no queue has the messages in its tail
    return bench.durable("reader", receive_maximum=20)


@pytest.mark.parametrize("qos", [QoS.AT_LEAST_ONCE, QoS.EXACTLY_ONCE])
def test_few_queues_are_read_for_a_message(bench: Bench, qos: int) -> None:
    """All were: 5,000 queues with 20 messages each took 49 ms of CPU for a message."""
    choice = random.Random(f"seed-{qos}")
    topics = [f"t/{choice.randrange(QUEUES)}" for _ in range(QUEUES * 5)]
    reader = left_for(bench, topics, [f"t/{i}" for i in range(QUEUES)], qos)
    before = bench.broker.deliverer.store_reads
    assert reader.take() == [b"%d" % i for i in range(len(topics))]
    assert bench.broker.deliverer.store_reads - before <= QUEUES + READS_PER_MESSAGE * len(topics)


def test_a_message_of_many_subscriptions_is_one(bench: Bench) -> None:
    """More of them than are read at a time stand at one message."""
    filters = [f"a/{'/'.join(each)}" for each in ("+" * n + "b" * (7 - n) for n in range(8))]
    filters += ["/".join("+a"[i >> k & 1] if k == 0 else "+b"[i >> k & 1] for k in range(8)) for i in range(256)]
    filters = list(dict.fromkeys(filters))
    topics = ["a/b/b/b/b/b/b/b", "a/c/c/c/c/c/c/c"] * 10
    reader = left_for(bench, topics, filters, 1)
    assert reader.take() == [b"%d" % i for i in range(len(topics))]


@pytest.mark.parametrize("most", [1, 2, 7, 64])
def test_nearest(most: int) -> None:
    """None of the others has come less far, and all that stand at one message come together."""
    choice = random.Random(most)
    for _ in range(200):
        readers = [Reader(Queue(b"t", LIVE), None, "t") for _ in range(choice.randrange(1, 100))]
        for reader in readers:
            reader.reached = choice.randrange(choice.choice([1, 20, 1_000]))
        found, stop = nearest(readers, most)
        rest = [reader for reader in readers if reader not in found]
        assert len(found) == len(set(found)) == min(most, len(readers))  # that they are at one message is not known
        assert stop == min((reader.reached for reader in rest), default=(1 << 64) - 1)
        assert max(reader.reached for reader in found) <= stop
