"""The payload format indicator, checked where that is set (MQTT 5, 3.3.2.3.2)."""

import pytest

from gateway.mqtt.packets import ConnAck, PubAck, PubComp, Publish, PubRec, PubRel, QoS, Will
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, connect_packet
from tests.unit.conftest import StartBench

NOT_UTF8 = b"\xc3\x28"


def test_payload_format_is_not_checked_by_default(bench: Bench) -> None:
    client = bench.connect("a")
    client.publish_whole("t", NOT_UTF8, 1, payload_format_indicator=1)
    assert len(bench.stored()) == 1


def test_a_payload_that_is_not_what_it_says_is_refused(start_bench: StartBench) -> None:
    bench = start_bench(check_payload_format=True)
    client, sub = bench.connect("a"), bench.connect("b")
    sub.subscribe("t")
    for qos in (0, 1, 2):
        client.publish("t", NOT_UTF8, qos, payload_format_indicator=1)
    acks = client.received()
    assert [type(ack) for ack in acks] == [PubAck, PubRec]
    assert {ack.reason_code for ack in acks if isinstance(ack, PubAck | PubRec)} == {ReasonCode.PAYLOAD_FORMAT_INVALID}
    assert sub.received() == []
    assert bench.broker.connections.rules.refused[ReasonCode.PAYLOAD_FORMAT_INVALID] == 3
    for payload, indicator in ((NOT_UTF8, 0), (NOT_UTF8, None), ("é\0".encode(), 1), (b"", 1)):
        client.publish_whole("t", payload, 2, payload_format_indicator=indicator)
        assert sub.payloads() == [payload]


@pytest.mark.mqtt("MQTT-4.3.3-9")
def test_a_refused_identifier_is_free_for_another_message(start_bench: StartBench) -> None:
    bench = start_bench(check_payload_format=True)
    client = bench.connect("a")
    client.publish("t", NOT_UTF8, 2, packet_id=7, payload_format_indicator=1)
    client.one(PubRec)
    client.send(Publish("t", b"good", QoS.EXACTLY_ONCE, packet_id=7), PubRel(7))
    assert client.received() == [PubRec(7), PubComp(7)]
    assert [record.payload for record in bench.stored()] == [b"good"]


def test_a_will_is_checked_as_well(start_bench: StartBench) -> None:
    bench = start_bench(check_payload_format=True)
    will = Will("t", NOT_UTF8, properties=Properties(payload_format_indicator=1))
    client = bench.client()
    client.send(connect_packet("a", will=will))
    assert client.one(ConnAck).reason_code is ReasonCode.PAYLOAD_FORMAT_INVALID
    assert client.is_closed
