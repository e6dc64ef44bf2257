"""A gateway that stops: its clients have their answers first, are told at a bounded rate, and lose nothing."""

import pytest

from gateway.clients.draining import ACK_GRACE_S, LAST_S
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import ConnAck, Connect, Disconnect, PubAck, Publish, PubRec, QoS
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, Client, SlowDisk
from tests.unit.conftest import StartBench

SHUTTING_DOWN, ELSEWHERE = ReasonCode.SERVER_SHUTTING_DOWN, ReasonCode.USE_ANOTHER_SERVER


def go_on(bench: Bench, seconds: float = 0) -> bool:
    """Let time pass. True once it is over."""
    bench.loop.now_s += seconds
    over = bench.broker.drained()
    bench.run()
    return over


def told(*clients: Client) -> list[Client]:
    return [client for client in clients if client.transport.ended]


def leave(*clients: Client) -> None:
    """Do as told."""
    for client in clients:
        client.lose()


def test_all_are_told_and_it_is_over_once_they_are_gone(bench: Bench) -> None:
    v5, v4, silent = bench.connect("a"), bench.connect("b", 4), bench.client()
    v5.feed(encode(Publish("a", b"last"), 5))
    bench.broker.drain(SHUTTING_DOWN)
    assert not go_on(bench)
    assert v5.one(Disconnect).reason_code is SHUTTING_DOWN
    assert v4.received() == []
    assert told(v5, v4) == [v5, v4]
    assert not go_on(bench)
    leave(v5, v4)
    assert go_on(bench)
    assert silent.is_closed
    assert bench.broker.quiet
    assert [record.payload for record in bench.stored()] == [b"last"]
    assert bench.client().is_closed


def test_the_rate_is_bounded(bench: Bench) -> None:
    clients = [bench.connect(f"c{i}", 4 + i % 2) for i in range(20)]
    bench.broker.drain(ELSEWHERE, 5)
    for seconds in range(3):
        assert len(told(*clients)) <= 1 + 5 * seconds
        for _ in range(100):
            assert not go_on(bench, 0.01)
        assert len(told(*clients)) >= 5 * seconds
        leave(*told(*clients))
    while not go_on(bench, 0.01):
        leave(*told(*clients))
    assert told(*clients) == clients


def test_time_is_shared_out_if_the_rate_would_not_do(start_bench: StartBench) -> None:
    bench = start_bench(drain_timeout_s=6)
    clients = [bench.connect(f"c{i}") for i in range(40)]
    bench.broker.drain(ELSEWHERE, 1)
    for _ in range(200):
        go_on(bench, 0.01)
    assert 15 <= len(told(*clients)) <= 25
    for _ in range(210):
        go_on(bench, 0.01)
    assert told(*clients) == clients
    assert go_on(bench, LAST_S)
    assert not any(client.is_closed for client in clients)
    bench.broker.end_draining()
    assert all(client.is_closed for client in clients)


def test_without_time_nobody_is_waited_for(start_bench: StartBench) -> None:
    bench = start_bench(drain_timeout_s=0)
    client = bench.connect("a")
    bench.broker.drain(ELSEWHERE, 1)
    assert go_on(bench)
    bench.broker.end_draining()
    assert client.is_closed
    assert client.one(Disconnect).reason_code is ELSEWHERE


@pytest.mark.parametrize("qos", [1, 2])
def test_draining_waits_for_acknowledgements_of_in_flight_messages(bench: Bench, qos: int) -> None:
    subscriber, publisher = bench.durable("s", receive_maximum=2), bench.connect("p")
    subscriber.subscribe("t", qos=qos)
    publisher.publish_whole("t", b"1", qos)
    bench.broker.drain(ELSEWHERE)
    assert not go_on(bench)
    leave(publisher)
    assert told(subscriber, publisher) == [publisher]
    assert subscriber.take() == [b"1"]
    assert not go_on(bench)
    assert subscriber.one(Disconnect).reason_code is ELSEWHERE
    leave(subscriber)
    assert go_on(bench)
    bench.restart()
    assert bench.durable("s").take() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_draining_begins_no_new_delivery_and_loses_nothing(bench: Bench, qos: int) -> None:
    subscriber, others, publisher = bench.durable("s"), [bench.connect(f"c{i}") for i in range(3)], bench.connect("p")
    subscriber.subscribe("t", qos=qos)
    publisher.publish_whole("t", b"1", qos)
    bench.broker.drain(ELSEWHERE, 1)  # the subscriber is the first to go, the publisher the last
    assert not go_on(bench)
    publisher.publish_whole("t", b"2", qos)
    (begun,) = subscriber.messages()
    assert (begun.payload, begun.dup) == (b"1", False)
    assert not go_on(bench, ACK_GRACE_S)
    assert subscriber.one(Disconnect).reason_code is ELSEWHERE
    leave(subscriber, publisher, *others)
    assert go_on(bench)
    bench.restart()
    again = bench.durable("s")
    assert [(message.payload, message.dup) for message in again.messages()] == [(b"1", True), (b"2", False)]


@pytest.mark.parametrize("qos", [1, 2])
def test_draining_answers_published_messages_before_the_disconnect(
    start_bench: StartBench, disk: SlowDisk, qos: int
) -> None:
    bench = start_bench("sync")
    disk.finish()
    publisher = bench.connect("p")
    bench.wait_safe()
    disk.stall()
    publisher.send(Publish("t", b"1", QoS(qos), packet_id=7))
    bench.broker.drain(SHUTTING_DOWN)
    assert not go_on(bench)
    publisher.send(Publish("t", b"late", QoS(qos), packet_id=8))
    assert publisher.received() == []
    disk.finish()
    bench.wait_safe()
    assert not go_on(bench)
    answer, goodbye = publisher.received()
    assert answer == (PubAck(7) if qos == 1 else PubRec(7))
    assert isinstance(goodbye, Disconnect)
    assert [record.payload for record in bench.stored()] == [b"1"]


def test_draining_cuts_off_clients_that_do_not_read_the_disconnect(bench: Bench) -> None:
    client = bench.connect("a")
    bench.broker.drain(ELSEWHERE)
    go_on(bench)
    assert not client.is_closed
    bench.pass_time(6)
    assert client.transport.aborted


def test_where_to_go_on(start_bench: StartBench) -> None:
    bench = start_bench(server_reference="other.example:1883")
    client, narrow = bench.connect("a"), bench.connect("b", maximum_packet_size=10)
    opening = bench.client()
    opening.feed(encode(Connect("c", 5), 5))
    bench.broker.drain(ELSEWHERE)
    go_on(bench)
    assert client.one(Disconnect).properties.server_reference == "other.example:1883"
    assert narrow.one(Disconnect).properties.server_reference is None
    *_, goodbye = opening.received()  # it may have had its CONNACK by then
    assert isinstance(goodbye, ConnAck | Disconnect)
    assert (goodbye.reason_code, goodbye.properties.server_reference) == (ELSEWHERE, "other.example:1883")


def test_draining_does_not_wait_for_clients_that_left(bench: Bench) -> None:
    clients = [bench.connect(f"c{i}") for i in range(3)]
    bench.broker.drain(ELSEWHERE, 1)
    leave(*clients)
    assert go_on(bench)
