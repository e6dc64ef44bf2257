"""A session whose subscriptions overlap, and a store elsewhere: a message is in several queues, and comes once."""

import random

import pytest

from notify.requests import reads
from notify.server import incoming
from store.records._records import RecordBatch
from store.records.records import RecordType
from tests.support.mqtt_bench import Bench
from tests.unit.conftest import StartBench

FILTERS = ("load/+", "load/b", "load/#")
MESSAGES = 30


@pytest.fixture
def apart() -> bool:
    return True


def publish_elsewhere(bench: Bench, payload: bytes) -> None:
    """A client of another gateway does: this one is told of it, sooner or later."""
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, payload, topic=b"load/b", flags=2)
    bench.store.append(batch)
    bench.hub.tell_changes()


@pytest.mark.mqtt("MQTT-4.3.3-2", "MQTT-3.3.4-2")
@pytest.mark.parametrize(("answer_bytes", "seed"), [(100, 3), (100, 5), (100, 19), (300, 1), (300, 9), (300, 11)])
def test_no_queue_is_ahead_of_the_others(
    answer_bytes: int, seed: int, start_bench: StartBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short answers, a store that deals with one request at a time, and frames that come one by one: what is read of a
    queue comes in other turns than what is told of the others. Two of them alone would give QoS 1."""
    monkeypatch.setattr(incoming, "WORK_S", 0.0)
    monkeypatch.setattr(reads, "ANSWER_BYTES", answer_bytes)
    chosen = random.Random(seed)
    bench = start_bench()
    assert bench.wire is not None
    client = bench.durable("a")
    strong = chosen.choice(FILTERS)
    for topic_filter in FILTERS:
        client.subscribe(topic_filter, qos=2 if topic_filter == strong else 1)
    bench.wire.is_slow = True
    came: list[bytes] = []
    for number in range(MESSAGES):
        publish_elsewhere(bench, b"%d" % number)
        for _ in range(chosen.randrange(4)):
            bench.loop.turn()
        if chosen.random() < 0.2:
            came += client.take()
    bench.run()
    came += client.take()
    assert came == [b"%d" % number for number in range(MESSAGES)]
