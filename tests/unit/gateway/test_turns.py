"""One turn takes input for a millisecond or so, of any kind; the rest comes later."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable

import pytest

from gateway import ending
from gateway.delivery import exchange
from gateway.delivery.deliverer import MOST_MERGED, REPORTED_PER_STEP, ROUNDS_PER_TURN
from gateway.mqtt._mqtt import Reader, Sockets, Turn, next_at_qos2
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Publish, SubscriptionRequest
from gateway.mqtt.properties import Properties
from gateway.sessions.session import Session
from lightqueue.queues._queues import Queue
from lightqueue.queues.matching import FilterTrie
from store.records._records import Records
from tests.support.mqtt_bench import Bench, Client

COUNT = 4_000


def publishes(client: Client, topics: list[str]) -> bytes:
    return b"".join(encode(client.publish_packet(topic), 5) for topic in topics)


def messages_by_turn(bench: Bench, client: Client, data: bytes) -> list[int]:
    """How many messages each turn has taken."""
    taken: list[int] = []
    turn: Turn = bench.broker.turn

    def note() -> None:
        count = turn.counters()["received"][0] - before - sum(taken)
        if count:
            taken.append(count)

    before = turn.counters()["received"][0]
    client.feed(data)
    note()
    while client.connection.resting:
        bench.loop.turn()
        note()
    return taken


def test_new_topics_take_several_turns(bench: Bench) -> None:
    """The store looks for the queue of each: 20,000 in one segment held the loop for 87 ms."""
    client = bench.connect("c")
    topics = [f"t/{i}" for i in range(COUNT)]
    first = messages_by_turn(bench, client, publishes(client, topics))
    assert sum(first) == COUNT
    assert len(first) > 4
    bench.run()
    again = messages_by_turn(bench, client, publishes(client, topics))
    assert sum(again) == COUNT
    assert len(again) < len(first)  # it is known by now where they go


def test_a_topic_of_a_store_elsewhere_is_new_once(bench: Bench) -> None:
    """What it takes is not known here, and so does not change: it counted as new again in each second."""
    client = bench.connect("c")
    topics = [f"t/{i}" for i in range(COUNT)]
    first = messages_by_turn(bench, client, publishes(client, topics))
    bench.run()
    bench.pass_time(2)
    again = messages_by_turn(bench, client, publishes(client, topics))
    assert sum(again) == COUNT
    assert len(again) < len(first)


def test_messages_of_one_topic_take_few_turns(bench: Bench) -> None:
    client = bench.connect("c")
    assert len(messages_by_turn(bench, client, publishes(client, ["t"] * COUNT))) < 4


@pytest.mark.parametrize("properties", [{}, {"response_topic": "r", "user_properties": (("penstock-receipt-", "no"),)}])
@pytest.mark.parametrize("are_first", [True, False])
def test_messages_for_many_queues_take_more_turns(bench: Bench, properties: dict[str, object], are_first: bool) -> None:
    """Also where the filters came while the topic was known."""
    client, reader = bench.connect("c"), bench.connect("reader")
    if not are_first:
        client.publish("a/a/a/a/a/a/a/a/a")
    filters = ["/".join(each) for each in itertools.product("a+", repeat=9)]
    for at in range(0, len(filters), 64):
        reader.subscribe(*filters[at : at + 64])
    publish = encode(Publish("a/a/a/a/a/a/a/a/a", properties=Properties(**properties)), 5)  # type: ignore[arg-type]
    taken = messages_by_turn(bench, client, publish * 800)
    assert sum(taken) == 800
    assert len(taken) > 5 or bench.broker.store.queues.weigh is None
    bench.run()
    assert len(reader.messages()) == 800


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_thousands_of_overlapping_subscriptions_bring_each_message_once(bench: Bench, qos: int) -> None:
    """Each turn reads so much of each queue that all of them together are a bounded number of records."""
    client, reader = bench.connect("c"), bench.connect("reader", receive_maximum=1_000)
    filters = ["/".join(each) for each in itertools.product("a+", repeat=10)]
    for at in range(0, len(filters), 256):
        reader.subscribe(*filters[at : at + 256], qos=qos)
    reads: list[int] = []
    read_many: Callable[..., object] = bench.broker.store.queues.read_many

    def noted(queues: list[Queue], starts: list[int], most: int, max_bytes: int) -> object:
        reads.append(len(queues) * most)
        return read_many(queues, starts, most, max_bytes)

    bench.broker.store.queues.read_many = noted  # type: ignore[method-assign, assignment]
    for i in range(20):
        client.publish("/".join("a" * 10), b"%d" % i, min(qos, 1))
    bench.run()
    assert [message.payload for message in reader.messages()] == [b"%d" % i for i in range(20)]
    assert max(reads, default=0) <= 8_192


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_with_many_queues_reads_them_once_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    """However much time there is: those that have one message, and a few to find out which these are.

    What goes out at QoS 2 is found in one merge of what was read."""
    client, reader = bench.connect("c"), bench.connect("reader", receive_maximum=1_000)
    filters = ["/".join(each) for each in itertools.product("a+", repeat=9)]
    for at in range(0, len(filters), 256):
        reader.subscribe(*filters[at : at + 256], qos=qos)
    delivery = bench.broker.deliverer
    pull, ranges_of = delivery._pull, delivery._many_ranges_of
    reads, merges = [0], [0]  # of each pull

    def pulls(session: Session, _: float) -> bool:
        reads.append(0)
        merges.append(0)
        return pull(session, math.inf)

    def read(readers: list[Reader]) -> list[Records] | None:
        reads[-1] += len(readers)
        return ranges_of(readers)

    def merged(readers: list[Reader], ranges: list[Records], most: int, stop: int) -> object:
        merges[-1] += 1
        return next_at_qos2(readers, ranges, most, stop)

    monkeypatch.setattr(delivery, "_pull", pulls)
    monkeypatch.setattr(delivery, "_many_ranges_of", read)
    monkeypatch.setattr(exchange, "next_at_qos2", merged)
    for i in range(40):
        client.publish_whole("/".join("a" * 9), b"%d" % i, qos)
    bench.run()
    assert [message.payload for message in reader.messages()] == [b"%d" % i for i in range(40)]
    assert max(reads) <= len(filters) + ROUNDS_PER_TURN * MOST_MERGED
    assert max(merges) == (qos == 2)


def test_the_time_for_pulling_is_that_of_a_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of each time in it that something grew."""
    delivery = bench.broker.deliverer
    readers = [bench.connect(f"reader {i}") for i in range(4)]
    for reader in readers:
        reader.subscribe("a/+", "+/b")
    pulled: list[Session] = []
    pull = delivery._pull

    def pulls(session: Session, ends_s: float) -> bool:
        pulled.append(session)
        return pull(session, ends_s)

    monkeypatch.setattr(delivery, "_pull", pulls)
    monkeypatch.setattr("gateway.delivery.deliverer.CATCH_UP_S", 1e-9)
    delivery.room([reader.connection.session for reader in readers])
    for turns in range(1, len(readers) + 1):
        delivery.grew([])
        delivery.grew([])
        delivery.catch_up()
        assert len(pulled) == turns


def test_deep_filters_are_granted_a_few_at_a_time(bench: Bench) -> None:
    """200 levels take more than one; all are granted, and answered in one SUBACK."""
    reader = bench.connect("reader")
    filters = ["/".join([f"{i}", *"+" * 199]) for i in range(64)]
    reader.feed(encode(reader.subscribe_packet(*(SubscriptionRequest(each) for each in filters)), 5))
    while not (granted := len(reader.connection.session.readers)):
        bench.loop.turn()
    assert granted <= 8
    bench.run()
    assert len(reader.connection.session.readers) == 64


def test_deep_filters_take_little_room() -> None:
    """One node for what all of them have alone, and one where they part: it was one for each level."""
    trie: FilterTrie[int] = FilterTrie()
    filters = ["/".join(["s", *"+" * 100, f"{i}", *"+" * 98]) for i in range(100)]
    for i, topic_filter in enumerate(filters):
        trie.set(topic_filter, i)
    nodes, count = [trie._root], 0
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        count += 1
    assert count <= 2 * len(filters)
    assert trie.match("/".join(["s", *"x" * 100, "7", *"y" * 98])) == [7]
    for topic_filter in filters:
        trie.remove(topic_filter)
    assert len(trie) == 0
    assert not trie._root.children


def test_however_often_it_is_asked_for_one_turn_is_ended(bench: Bench) -> None:
    """A look at the sockets ended the turn before that was asked for; three of them stood in one turn of the loop."""
    broker = bench.broker
    for _ in range(3):
        broker.turn.request()
        broker.end_turn()
    broker.turn.request()
    before = broker.turns
    bench.run()
    assert broker.turns == before + 1


def test_long_turns_do_not_follow_one_another(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long turn is followed by a look at the sockets in the loop's next turn, and then that comes first."""
    monkeypatch.setattr(ending, "LONG_S", 0.0)
    sockets = Sockets(bench.broker.turn, bench.broker.connections.read_buffer, lambda *_: None)
    turn = bench.broker.turn

    def flags() -> tuple[bool, bool]:
        return turn.was_long, turn.owes_look

    turn.request()
    bench.loop.turn()
    assert flags() == (True, False)
    sockets.look()
    assert flags() == (False, True)
    turn.request()
    before = bench.broker.turns
    bench.loop.turn()
    assert bench.broker.turns == before
    sockets.look()
    assert flags() == (False, False)
    bench.run()
    assert bench.broker.turns == before + 1


def test_a_long_turn_waits_for_no_look_that_does_not_come(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "LONG_S", 0.0)
    bench.broker.turn.owes_look = True
    bench.broker.turn.request()
    before = bench.broker.turns
    bench.run()
    assert bench.broker.turns == before + 1


def test_how_far_readers_have_come_is_told_in_steps(bench: Bench) -> None:
    """Of 2,048 queues that a message went to, or of one with thousands of readers."""
    subscriber, publisher = bench.connect("s"), bench.connect("p")
    filters = ["/".join(each) for each in itertools.product(("a", "+"), repeat=8)]
    subscriber.subscribe(*filters[:128])
    subscriber.subscribe(*filters[128:])
    publisher.publish("/".join("a" * 8))
    told: list[int] = []
    store = bench.broker.store
    needed_from = store.queues.needed_from

    def note(floors: Iterable[tuple[Queue, int]]) -> None:
        floors = list(floors)
        told.append(len(floors))
        needed_from(floors)

    store.queues.needed_from = note  # type: ignore[method-assign]
    bench.broker.deliverer.report_positions()
    bench.run()
    assert max(told) <= REPORTED_PER_STEP
    assert sum(told) >= 255  # the filter without wildcards has a stored queue


def test_retained_messages_count_as_what_they_take(bench: Bench) -> None:
    """Each changes more than queues: 8,192 in one turn held the loop for 41 ms."""
    client = bench.connect("c")
    data = b"".join(encode(client.publish_packet("r", b"x", retain=True), 5) for _ in range(2_000))
    taken = messages_by_turn(bench, client, data)
    assert sum(taken) == 2_000
    assert max(taken) <= 250


def test_gathered_output_is_sent_for_a_bounded_time_in_one_turn(bench: Bench) -> None:
    """Ten clients were sent 4 MB each in one turn; what is left goes out before sockets are looked at again."""
    links = [bench.connect(f"r{number}") for number in range(4)]
    turn = bench.broker.turn
    sent: list[str] = []

    class Slow:
        """Sends for longer than a turn may take."""

        fd = -1

        def __init__(self, name: str) -> None:
            self._name = name

        def write(self, _: bytes) -> None:
            sent.append(self._name)
            until_s = time.perf_counter() + 0.005
            while time.perf_counter() < until_s:
                pass

        def get_write_buffer_size(self) -> int:
            return 0

    for number, client in enumerate(links):
        connection = bench.broker.registry.sessions[f"r{number}"].connection
        connection.transport = Slow(client.client_id if hasattr(client, "client_id") else str(number))
        connection.write(b"\xd0\0")
    bench.broker.end_turn()
    assert len(sent) == 1
    assert turn.unsent
    bench.run()
    assert len(sent) == 4
    assert not turn.unsent


def test_closed_store_is_not_used_any_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep that goes on in the loop's next turn, what a connection's end leaves to be done, and a turn asked for."""
    client = bench.durable("a", session_expiry_interval=1)
    client.subscribe(*(f"t/{number}/+" for number in range(300)))
    monkeypatch.setattr("notify.steps.STEP_S", 0.0)
    monkeypatch.setattr(bench.store, "tick", lambda: True)
    bench.broker.tick()
    client.connection.connection_lost(None)
    assert bench.loop.calls
    bench.broker.close()
    bench.close()
    monkeypatch.undo()
    monkeypatch.setattr(bench, "close", lambda: None)  # it is
    for call in bench.loop.calls:
        call()
    bench.broker.tick()
    bench.broker.end_turn()
    bench.broker.store_batch()
    bench.broker.store_events.safe_advanced()
