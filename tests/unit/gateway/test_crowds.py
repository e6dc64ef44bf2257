"""What goes to many readers: it counts as what it costs, and nobody else waits until all of them were sent it."""

from __future__ import annotations

import itertools
import socket
import time
from functools import partial

import pytest

from gateway.mqtt._mqtt import HAS_EPOLL, Sockets
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, PingReq, PingResp, Publish
from gateway.sessions.connection import Connection, Entrance
from tests.support.mqtt_bench import Bench, Client, FakeTransport

READ_BYTES = 4_096
READERS = 300
MESSAGES = 1_000
MORE = 8  # turns than few


class Counting(FakeTransport):
    """Says how often it was written to."""

    writes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        super().write(data)


class Slow(FakeTransport):
    """Takes so long for each write that a turn has time for one."""

    def write(self, data: bytes) -> None:
        super().write(data)
        until_s = time.perf_counter() + 0.004
        while time.perf_counter() < until_s:
            pass


def crowd(bench: Bench, transport: type[FakeTransport], topic_filter: str, count: int, qos: int = 0) -> list[Client]:
    readers = [bench.connect(f"{topic_filter} {number}") for number in range(count)]
    for reader in readers:
        reader.subscribe(topic_filter, qos=qos)
        reader.received()
        reader.transport = reader.connection.transport = transport()
        reader._taken = 0
    return readers


def turns_for(bench: Bench, publisher: Client, data: bytes) -> int:
    before = bench.broker.turns
    publisher.feed(data)
    bench.run()
    return bench.broker.turns - before


def publishes(publisher: Client, topic: str, count: int, qos: int = 0, **fields: int) -> bytes:
    return b"".join(encode(publisher.publish_packet(topic, b"%d" % i, qos, **fields), 5) for i in range(count))


def is_crowded(bench: Bench) -> bool:
    return bench.broker.turn.crowded


def turns_until_crowded(bench: Bench) -> None:
    bench.broker.end_turn()
    while not is_crowded(bench):  # the store is apart: its answer comes in a later turn
        bench.loop.turn()


def test_readers_that_share_cost_a_send_each_and_not_a_price_for_each_message(bench: Bench) -> None:
    """With 300 of them a turn ended after 14 messages, so each was sent 15 at a time."""
    publisher = bench.connect("p")
    readers = crowd(bench, Counting, "a/+", READERS)
    turns = turns_for(bench, publisher, publishes(publisher, "a/b", MESSAGES))
    assert turns < 2 * MORE
    for reader in readers:
        assert isinstance(reader.transport, Counting)
        assert reader.transport.writes <= MORE
        assert [int(each) for each in reader.payloads()] == list(range(MESSAGES))


@pytest.mark.parametrize(("qos", "properties"), [(1, {}), (0, {"message_expiry_interval": 60})])
def test_readers_that_do_not_share_cost_something_for_each_message(
    bench: Bench, qos: int, properties: dict[str, int]
) -> None:
    publisher = bench.connect("p")
    readers = crowd(bench, Counting, "a/+", READERS, qos)
    turns = turns_for(bench, publisher, publishes(publisher, "a/b", MESSAGES, qos, **properties))
    assert turns > MORE or bench.broker.store.queues.weigh is None
    for reader in readers:
        assert [int(each) for each in reader.payloads()] == list(range(MESSAGES))


def test_crowd_does_not_delay_other_clients(bench: Bench) -> None:
    """Sockets were not looked at before that: with 5,000 readers a PINGREQ waited for 35 to 54 ms."""
    publisher, other = bench.connect("p"), bench.connect("o")
    readers = crowd(bench, Slow, "a/+", 40)
    publisher.feed(publishes(publisher, "a/b", 1))
    turns_until_crowded(bench)
    assert not bench.broker.turn.unsent
    other.feed(encode(PingReq(), 5))
    bench.broker.end_turn()
    assert other.one(PingResp) == PingResp()
    assert is_crowded(bench)
    bench.run()
    assert not is_crowded(bench)
    for reader in readers:
        assert reader.payloads() == [b"0"]


def test_a_reader_of_a_crowd_has_its_answers_in_order_and_does_not_wait_for_the_others(bench: Bench) -> None:
    publisher = bench.connect("p")
    readers = crowd(bench, Slow, "a/+", 40)
    publisher.feed(publishes(publisher, "a/b", 1))
    turns_until_crowded(bench)
    readers[-1].feed(encode(PingReq(), 5))
    bench.broker.end_turn()
    assert [type(each).__name__ for each in readers[-1].received()] == ["Publish", "PingResp"]
    assert is_crowded(bench)
    bench.run()
    assert readers[-1].received() == []


def test_crowd_publisher_waits_until_the_crowd_was_sent_to(bench: Bench) -> None:
    publisher = bench.connect("p")
    readers = crowd(bench, Slow, "a/+", 40)
    publisher.feed(publishes(publisher, "a/b", 1))
    bench.broker.end_turn()
    knows_readers = bench.broker.store.queues.weigh is not None
    assert is_crowded(bench) == knows_readers
    assert publisher.transport.is_reading() == (not knows_readers)
    publisher.feed(encode(publisher.publish_packet("a/b", b"next"), 5) + encode(PingReq(), 5))
    bench.broker.end_turn()
    assert (publisher.received() == []) == knows_readers
    bench.run()
    assert publisher.transport.is_reading()
    assert not knows_readers or publisher.one(PingResp) == PingResp()
    for reader in readers:
        assert reader.payloads() == [b"0", b"next"]


def test_crowd_publisher_does_not_wait_for_later_messages_of_others(bench: Bench) -> None:
    first, second = bench.connect("first"), bench.connect("second")
    crowd(bench, Slow, "a/+", 40)
    crowd(bench, Slow, "b/+", 40)
    for publisher, topic in ((first, "a/x"), (second, "b/x")):
        publisher.feed(publishes(publisher, topic, 1))
        bench.broker.end_turn()
    if bench.broker.store.queues.weigh is not None:
        assert not first.transport.is_reading()
        while not first.transport.is_reading():
            bench.loop.turn()
        assert is_crowded(bench)
        assert not second.transport.is_reading()
    bench.run()
    assert second.transport.is_reading()


def test_crowd_publisher_that_left_is_not_read_from_again(bench: Bench) -> None:
    publisher = bench.connect("p")
    readers = crowd(bench, Slow, "a/+", 40)
    publisher.feed(publishes(publisher, "a/b", 1))
    bench.broker.end_turn()
    publisher.lose()
    readers[-1].lose()
    bench.run()
    assert not is_crowded(bench)
    assert readers[0].payloads() == [b"0"]


def test_queues_for_which_no_time_is_left_come_in_later_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message to 5,000 queues with a reader each held the loop for 20 ms."""
    monkeypatch.setattr("gateway.delivery.deliverer.FAN_OUT_S", 0.0)
    publisher = bench.connect("p")
    filters = ["/".join(each) for each in itertools.product("a+", repeat=6)]
    readers = [crowd(bench, Counting, each, 1)[0] for each in filters]
    for at in range(3):
        publisher.feed(publishes(publisher, "/".join("a" * 6), 2))
        if not at:
            bench.broker.end_turn()
            waiting = len(bench.broker.deliverer.pending)
            assert waiting or bench.broker.store.queues.weigh is None
    bench.run()
    for reader in readers:
        assert reader.payloads() == [b"0", b"1"] * 3


def test_a_turn_that_took_in_much_delivers_in_the_next_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding 5,000 filters that match a new topic takes some milliseconds; so do 5,000 queues. Only one turn waits."""
    monkeypatch.setattr("gateway.delivery.deliverer.MANY_QUEUES", 16)
    monkeypatch.setattr("gateway.delivery.deliverer.FAN_OUT_S", 60.0)
    publisher = bench.connect("p")
    filters = ["/".join(each) for each in itertools.product("a+", repeat=6)]
    readers = [crowd(bench, Counting, each, 1)[0] for each in filters]
    if bench.broker.store.queues.weigh is None:
        return  # which queues a message goes to is not known here
    for number in range(1, 5):
        publisher.feed(publishes(publisher, "/".join("a" * 6), 1))
        bench.broker.turn.add_work(3_000_000)
        bench.broker.end_turn()
        came = [] if number % 2 else [b"0", b"0"]  # never two turns in a row
        assert [reader.payloads() for reader in readers] == [came] * len(readers)


@pytest.mark.skipif(not HAS_EPOLL, reason="this system has no epoll")
def test_crowd_publisher_is_read_once_in_a_turn(bench: Bench) -> None:
    """Else sends are twice as large, and each byte costs more."""
    readers = crowd(bench, Counting, "a/+", 40)
    if bench.broker.store.queues.weigh is None:
        return  # how many readers there are is not known here
    turn = bench.broker.turn
    sockets = Sockets(turn, bytearray(READ_BYTES), lambda call, *error: bench.loop.call_soon(partial(call, *error)))
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as peer:
        accepted, address = listening.accept()
        accepted.setblocking(False)
        publisher = Connection(bench.broker.connections, Entrance(1))
        sockets.open(accepted.detach(), publisher, address)
        peer.sendall(encode(Connect("p"), 5))
        while publisher.session is None:
            sockets.look()
            bench.run()
        count = 5 * READ_BYTES // 100
        peer.sendall(encode(Publish("a/b", b"x" * 100), 5) * count)
        most = 0
        while turn.counters()["received"][0] < count:
            before = turn.bytes_in
            sockets.look()
            bench.run()
            most = max(most, turn.bytes_in - before)
        assert 0 < most <= READ_BYTES
        publisher.transport.abort()
        bench.run()
    assert len(readers[0].payloads()) == count
