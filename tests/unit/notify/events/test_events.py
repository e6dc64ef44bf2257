"""Events at a gateway whose store is elsewhere: those that name queues, and those that got lost."""

import pytest

from gateway.mqtt.packets import Disconnect
from gateway.mqtt.reason_codes import ReasonCode
from notify.events.lookup import Broadcast
from notify.events.mirrors import EVERY_S
from notify.local import members
from notify.local.store import LocalStore
from notify.server import peers
from store.wire.messages import Grew, GrewNamed, Pushed
from tests.support.mqtt_bench import Bench
from tests.support.stores import batch_of, publish


@pytest.fixture
def apart() -> bool:
    return True


def say(bench: Bench, topic: str, payload: bytes) -> None:
    """Somebody else publishes."""
    publish(bench.store, topic, payload)
    bench.hub.tell_changes()
    bench.run()


def events(bench: Bench) -> tuple[int, int, int]:
    counts = bench.broker.store.queues.events
    return counts["followed"], counts["other"], counts["missed"]


@pytest.mark.parametrize("topic_filter", ["a/1", "a/#", "+/1"])
def test_a_broadcast_is_for_those_who_follow_the_queue(topic_filter: str, bench: Bench) -> None:
    bench.hub.lookup = Broadcast()
    other = LocalStore.join(bench.hub, "other")
    other.queues.follow("b/2", -1, False, False, lambda _: None)
    client = bench.connect("c")
    client.subscribe(topic_filter)
    say(bench, "a/1", b"1")
    say(bench, "b/2", b"2")
    assert client.payloads() == [b"1"]
    assert events(bench) == (1, 1, 0)
    client.send(client.subscribe_packet("b/2"))
    client.received()
    say(bench, "b/2", b"3")
    assert client.payloads() == [b"3"], "one that began after the first event"
    client.disconnect()
    say(bench, "b/2", b"4")
    assert events(bench) == (2, 2, 0)


@pytest.mark.parametrize("lost", [Grew, GrewNamed])
def test_an_event_that_got_lost_costs_time_and_no_message(lost: type[Grew] | type[GrewNamed], bench: Bench) -> None:
    assert bench.wire is not None
    bench.hub.lookup = Broadcast() if lost is GrewNamed else None
    client = bench.durable("c")
    client.subscribe("a/#", "+/1", qos=1)
    bench.wire.loses = (lost,)
    for i in range(3):
        say(bench, "a/1", b"%d" % i)
    assert client.received() == []
    bench.pass_time(int(EVERY_S))
    assert client.take() == [b"0", b"1", b"2"]
    assert events(bench) == (0, 0, 2)
    bench.wire.loses = ()
    bench.pass_time(int(EVERY_S))
    say(bench, "a/1", b"4")
    assert client.take() == [b"4"]
    assert events(bench) == (2, 0, 2)


def overflow(bench: Bench, *topics: str) -> None:
    """Somebody else publishes, at QoS 1, more than is told by name."""
    for topic in topics:
        bench.store.append(batch_of(topic.encode(), topic=topic.encode(), flags=1))
    bench.hub.tell_changes()


def test_with_too_many_events_at_a_time_all_queues_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MOST_NAMED", 1)
    bench.hub.lookup = Broadcast()
    client = bench.connect("c")
    client.subscribe("a/1", "a/2")
    overflow(bench, "a/1", "a/2")
    bench.run()
    assert sorted(client.payloads()) == [b"a/1", b"a/2"], "without waiting for a pass over all queues"
    bench.pass_time(int(EVERY_S))
    assert client.payloads() == []
    assert events(bench) == (2, 0, 0)


def test_no_session_passes_what_was_too_much_to_tell_by_name(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its position is stored when it ends, and a gateway that was restarted goes on from there."""
    monkeypatch.setattr(members, "MOST_NAMED", 1)
    bench.hub.lookup = Broadcast()
    client = bench.durable("c")
    client.subscribe("a/1", "a/2", qos=1)
    overflow(bench, "a/1", "a/2")
    bench.run()
    client.disconnect()
    bench.restart()
    assert sorted(bench.durable("c").take()) == [b"a/1", b"a/2"]


@pytest.mark.parametrize("qos", [0, 1])
def test_message_read_ahead_of_its_event_comes_once(qos: int, bench: Bench) -> None:
    assert bench.wire is not None
    bench.hub.lookup = Broadcast()
    client = bench.connect("c")
    client.subscribe("+/+", qos=qos)
    queue = bench.broker.registry.sessions["c"].readers["+/+"].queue
    publish(bench.store, "a/1", b"1")
    bench.hub.tell_changes()
    while not queue.next_offset:  # until it is told of one message
        bench.loop.turn()
    bench.wire.loses = (Grew, GrewNamed, Pushed)
    say(bench, "a/1", b"2")
    assert queue.next_offset == 1
    assert client.take() == [b"1", b"2"]
    bench.wire.loses = ()
    say(bench, "a/1", b"3")
    bench.pass_time(int(EVERY_S))
    assert client.take() == [b"3"]


def test_a_store_that_follows_no_more_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bench.durable("c")
    assert client.subscribe("a/1").reason_codes == (0,)
    other = bench.durable("d")
    other.subscribe("a/2")
    other.disconnect()
    monkeypatch.setattr(peers, "MOST_FOLLOWED", 1)
    refused = client.subscribe("b/1", qos=1)
    assert refused.reason_codes == (ReasonCode.QUOTA_EXCEEDED,)
    assert refused.properties.reason_string == "b/1: the store follows no more queues"
    assert "b/1" not in bench.store.sessions.get("c").subscriptions  # type: ignore[union-attr]
    say(bench, "a/1", b"1")
    say(bench, "b/1", b"2")
    assert client.payloads() == [b"1"]
    assert bench.durable("d").one(Disconnect).reason_code == ReasonCode.QUOTA_EXCEEDED
