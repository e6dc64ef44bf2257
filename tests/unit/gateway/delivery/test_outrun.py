"""Publishers wait for subscribers of QoS 0 that are far behind and read fast, and for no others."""

import pytest

from gateway.delivery.outrun import FAST_PER_S, HELD_S, MEASURED_S, Outrun
from gateway.mqtt._mqtt import Reader
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Publish, QoS
from tests.support.mqtt_bench import Bench, Client
from tests.unit.conftest import StartBench

MOST_LAG = 2_000
AT_ONCE = 100
MESSAGES = MOST_LAG + 10 * AT_ONCE
MESSAGE = encode(Publish("t", b"x", QoS.AT_MOST_ONCE), 5)


def reader_behind(bench: Bench, messages: int = MESSAGES, qos: int = 0) -> tuple[Client, Reader]:
    """Of a client that takes nothing while so many messages are published."""
    publisher, client = bench.connect("p"), bench.connect("slow")
    client.subscribe("t", qos=qos)
    client.connection.pause_writing()
    for _ in range(messages // AT_ONCE):
        publisher.send_bytes(MESSAGE * AT_ONCE)
    (reader,) = client.connection.session.readers.values()
    return client, reader


@pytest.fixture
def outrun() -> Outrun:
    return Outrun()


def goes_on(outrun: Outrun, reader: Reader, now_s: float) -> bool:
    outrun.goes_on(reader.session, [reader], MOST_LAG, now_s)
    return outrun.is_any(now_s)


def test_publishers_stop_waiting_for_a_subscriber_that_stops_reading(bench: Bench, outrun: Outrun) -> None:
    _, reader = reader_behind(bench)
    assert goes_on(outrun, reader, 100)
    assert outrun.is_any(100 + 0.9 * HELD_S)
    assert not outrun.is_any(100 + 1.1 * HELD_S)


@pytest.mark.parametrize(("per_s", "is_waited_for"), [(1.5 * FAST_PER_S, True), (FAST_PER_S / 2, False), (0, False)])
def test_publishers_wait_for_subscribers_that_read_fast(
    bench: Bench, outrun: Outrun, per_s: float, is_waited_for: bool
) -> None:
    _, reader = reader_behind(bench)
    assert goes_on(outrun, reader, 100)
    reader.position += int(per_s * 2 * MEASURED_S)
    assert goes_on(outrun, reader, 100 + 2 * MEASURED_S) == is_waited_for


def test_bursts_into_a_socket_do_not_make_a_client_fast(bench: Bench, outrun: Outrun) -> None:
    """It takes a thousand messages within a millisecond, again and again, and nothing for a second in between."""
    _, reader = reader_behind(bench, 3 * MESSAGES)
    goes_on(outrun, reader, 100)
    for number in range(1, 5):
        for piece in range(10):
            assert not goes_on(outrun, reader, 100 + number + piece / 10_000)
            reader.position += 100


def test_publishers_do_not_wait_for_subscribers_that_caught_up(bench: Bench, outrun: Outrun) -> None:
    _, reader = reader_behind(bench)
    assert goes_on(outrun, reader, 100)
    reader.position += MOST_LAG + 1
    assert not goes_on(outrun, reader, 100)
    reader.position -= MOST_LAG + 1
    assert goes_on(outrun, reader, 100)
    outrun.is_through(reader.session)
    assert not outrun.is_any(100)


def test_messages_of_qos_1_do_not_count(bench: Bench, outrun: Outrun) -> None:
    _, reader = reader_behind(bench, qos=1)
    assert not goes_on(outrun, reader, 100)


def test_reading_paces_of_caught_up_or_ended_sessions_are_deleted(start_bench: StartBench) -> None:
    bench = start_bench(write_buffer_bytes=2_048)
    client, _ = reader_behind(bench)
    outrun = bench.broker.deliverer._outrun
    client.connection.resume_writing()
    bench.run()
    assert len(client.payloads()) == MESSAGES
    assert not outrun._paces
    assert not bench.broker.deliverer.is_behind
    client, _ = reader_behind(bench)
    bench.broker.deliverer._outrun.goes_on(
        client.connection.session, client.connection.session.readers.values(), 1, 100
    )
    assert outrun._paces
    client.connection.connection_lost(None)
    bench.run()
    assert not outrun._paces


def test_queue_is_not_read_for_a_client_that_stopped_reading(bench: Bench) -> None:
    """It is so far behind that more is asked for ahead than a gateway keeps: it would be asked for again and again."""
    publisher, slow = bench.connect("p"), bench.connect("slow")
    slow.subscribe("t", qos=0)
    slow.connection.pause_writing()
    for _ in range(100):
        publisher.send_bytes(MESSAGE * 300)  # it runs until nobody has anything to do
    slow.connection.resume_writing()
    bench.run()
    assert len(slow.payloads()) == 30_000
