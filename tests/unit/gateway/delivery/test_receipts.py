"""Receipts: a publisher that asks is told where its message is stored."""

from functools import partial
from pathlib import Path

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel, QoS
from gateway.mqtt.reason_codes import ReasonCode
from lightqueue.reading.replay import queue_offset_of
from store.errors import StoreFull
from tests.support.mqtt_bench import Bench, Client, SlowDisk
from tests.unit.conftest import StartBench

WANTED = (("penstock-receipt", "1"),)
QOS = pytest.mark.parametrize("qos", [1, 2])


def publish_for_receipt(client: Client, topic_name: str, payload: bytes, qos: int) -> dict[str, str]:
    client.publish(topic_name, payload, qos, user_properties=WANTED)
    ack = client.one(PubAck if qos == 1 else PubRec)
    assert isinstance(ack, PubAck | PubRec)
    assert ack.reason_code is ReasonCode.SUCCESS
    if qos == 2:
        client.send(PubRel(ack.packet_id))
        client.one(PubComp)
    return dict(ack.properties.user_properties)


@QOS
def test_receipt_says_where_the_message_is(bench: Bench, qos: int) -> None:
    for client in (bench.connect("a"), bench.durable("b")):
        for topic in ("t/x", "t/y", "t/x"):
            bench.connect("other").publish(topic, b"other", qos=1)
            receipt = publish_for_receipt(client, topic, b"mine", qos)
            (record,) = [each for each in bench.stored() if str(each.log_offset) == receipt["penstock-log-offset"]]
            assert (record.topic, record.payload, record.client_id) == (
                topic.encode(),
                b"mine",
                client.connection.client_id.encode(),
            )
            assert receipt["penstock-queue"] == topic
            assert receipt["penstock-queue-offset"] == str(queue_offset_of(bench.store, topic, record.log_offset))


def test_many_in_one_turn_beside_others_and_changes(bench: Bench) -> None:
    client, durable = bench.connect("a"), bench.durable("d")
    durable.feed(encode(Publish("t", b"d", QoS.EXACTLY_ONCE, packet_id=1), 5))
    durable.feed(encode(PubRel(1), 5))
    for packet_id in range(1, 21):
        packet = Publish("t", b"%d" % packet_id, QoS.AT_LEAST_ONCE, packet_id=packet_id)
        if packet_id % 3:
            packet.properties.user_properties = WANTED
        client.feed(encode(packet, 5))
    bench.run()
    acks = {ack.packet_id: ack for ack in client.received() if isinstance(ack, PubAck)}
    assert sorted(acks) == list(range(1, 21))
    stored = {record.payload: record.log_offset for record in bench.stored()}
    for packet_id, ack in acks.items():
        receipt = dict(ack.properties.user_properties)
        if packet_id % 3:
            assert receipt["penstock-log-offset"] == str(stored[b"%d" % packet_id])
            assert receipt["penstock-queue-offset"] == str(packet_id)  # one of another client's is before them
        else:
            assert receipt == {}


def test_the_property_goes_on_to_subscribers(bench: Bench) -> None:
    """All user properties do [MQTT-3.3.2-17]."""
    sub, client = bench.connect("s"), bench.connect("a")
    sub.subscribe("t")
    publish_for_receipt(client, "t", b"1", 1)
    assert sub.one(Publish).properties.user_properties == WANTED


def test_receipt_is_not_sent_unless_requested(bench: Bench) -> None:
    client = bench.connect("a")
    client.publish("t", qos=1, user_properties=(("penstock-receipt", "0"),))
    assert client.one(PubAck) == PubAck(1)
    client.publish("t", qos=0, user_properties=WANTED)
    assert client.received() == []


@pytest.mark.mqtt("MQTT-3.1.2-29", "MQTT-3.4.2-3", "MQTT-3.5.2-3")
@QOS
def test_receipt_is_left_out_if_the_client_does_not_accept_it(bench: Bench, qos: int) -> None:
    quiet = bench.connect("a", request_problem_information=False)
    small = bench.connect("b", maximum_packet_size=40)
    for client in (quiet, small):
        assert publish_for_receipt(client, "t", b"1", qos) == {}


def test_a_delayed_message_has_no_queue_yet(bench: Bench) -> None:
    receipt = publish_for_receipt(bench.connect("a"), "$delayed/60/t", b"1", 1)
    assert list(receipt) == ["penstock-log-offset"]


@QOS
def test_receipt_comes_once_the_message_is_safe_and_counts_as_outstanding(
    start_bench: StartBench, disk: SlowDisk, qos: int
) -> None:
    bench = start_bench("sync", receive_maximum=2)
    client = bench.connect("a")
    for _ in range(2):
        client.publish("t", b"1", qos, user_properties=WANTED)
    assert client.received() == []
    disk.finish()
    bench.wait_safe()
    assert len(client.received()) == 2
    assert client.connection.unsafe_acks == 0


@QOS
def test_a_message_that_is_refused_has_none(bench: Bench, monkeypatch: pytest.MonkeyPatch, qos: int) -> None:
    def refuse(*_: object) -> None:
        raise StoreFull(Path("here"))

    client = bench.durable("a")
    with monkeypatch.context() as context:
        for way_in in ("append", "append_in_steps"):
            context.setattr(bench.store, way_in, refuse)
        for _ in range(3):
            client.publish("t", b"1", qos, packet_id=7, user_properties=WANTED)
            refused = partial(PubAck if qos == 1 else PubRec, 7)
            assert client.one(PubAck if qos == 1 else PubRec) == refused(ReasonCode.QUOTA_EXCEEDED)
        bench.pass_time(1)
    assert client.connection.unsafe_acks == 0
    assert publish_for_receipt(client, "t", b"2", qos)["penstock-queue-offset"] == "0"


@QOS
def test_receipts_can_be_off(start_bench: StartBench, qos: int) -> None:
    assert publish_for_receipt(start_bench(receipts="off").connect("a"), "t", b"x", qos) == {}
