"""Positions of sessions at a gateway whose store is elsewhere: none is past what the gateway does not know of."""

import pytest

from gateway.mqtt.packets import PubAck
from notify.events.mirrors import Mirrors
from notify.server import incoming
from store.records._records import RecordBatch
from store.records.records import RecordType
from tests.support.mqtt_bench import Bench
from tests.unit.conftest import StartBench


@pytest.fixture
def apart() -> bool:
    return True


def say(bench: Bench, topic: str) -> int:
    """A client of another gateway publishes at QoS 1; this one is told in later turns. The log_offset."""
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, topic.encode(), topic=topic.encode(), flags=1)
    log_offset = bench.store.append(batch)
    bench.hub.tell_changes()
    return log_offset


def position(bench: Bench) -> int:
    """Of the session, as the store keeps it."""
    state = bench.store.sessions.get("c")
    assert state is not None
    return state.acked


def mirrors(bench: Bench) -> Mirrors:
    assert bench.wire is not None
    return bench.wire.gateway.queues._mirrors


@pytest.mark.parametrize("is_cut", [False, True], ids=["one connection", "cut"])
def test_session_position_waits_for_queues_not_followed_again_yet(
    is_cut: bool, start_bench: StartBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was restarted. Where its log ends, as it says with one queue, counts once all are followed again."""
    monkeypatch.setattr(incoming, "WORK_S", 0.0)  # one request at a time
    bench = start_bench()
    assert bench.wire is not None
    bench.connect("other").subscribe("a/1")
    client = bench.durable("c")
    client.subscribe("a/2", qos=1)
    bench.restart_store()
    bench.wire.is_slow = True
    unknown = say(bench, "a/2")
    bench.wire.connect()
    while not mirrors(bench).refs:
        bench.loop.turn()
    before = bench.wire.gateway.queues.events["followed"]
    if is_cut:
        bench.wire.cut()
        bench.wire.connect()
    say(bench, "a/1")
    while bench.wire.gateway.queues.events["followed"] == before:
        bench.loop.turn()
    assert len(mirrors(bench).refs) == 1
    client.lose()
    assert position(bench) <= unknown
    assert bench.durable("c").take() == [b"a/2"]


def test_a_position_goes_on_once_all_queues_are_followed_again(bench: Bench) -> None:
    bench.connect("other").subscribe("a/1")
    client = bench.durable("c")
    client.subscribe("a/2", qos=1)
    bench.restart_store()
    say(bench, "a/1")
    assert bench.wire is not None
    bench.wire.connect()
    bench.run()
    end = bench.store.end
    client.lose()
    assert position(bench) == end


def test_a_slow_clean_session_reads_the_rest_from_the_log(bench: Bench) -> None:
    """What its queue had was in the old store's memory; it has looked at some of that, and goes on behind it."""
    client = bench.connect("c", receive_maximum=2)
    client.subscribe("+/x", qos=1)
    topics = [f"{number}/x" for number in range(6)]
    for topic in topics:
        say(bench, topic)
    bench.run()
    first = client.messages()
    assert [message.payload.decode() for message in first] == topics[:2]
    bench.restart_store()
    assert bench.wire is not None
    bench.wire.connect()
    bench.run()
    for message in first:
        client.send(PubAck(message.packet_id or 0))
    assert [payload.decode() for payload in client.take()] == topics[2:]
