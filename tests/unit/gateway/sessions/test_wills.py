"""Wills: sent when a client did not say goodbye, once, after their delay; and never otherwise."""

import pytest

from gateway.mqtt.packets import Connect, Disconnect, Publish, QoS, Will
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, Client

VERSIONS = pytest.mark.parametrize("version", [4, 5])
WILL = Will("will/a", b"gone", QoS.AT_LEAST_ONCE)


def delayed(seconds: int) -> Will:
    return Will("will/a", b"gone", QoS.AT_LEAST_ONCE, properties=Properties(will_delay_interval=seconds))


@pytest.fixture
def heir(bench: Bench) -> Client:
    """Somebody who hears of wills."""
    heir = bench.connect("heir", keep_alive_s=0)
    heir.subscribe("will/#", qos=0)
    return heir


@pytest.mark.mqtt("MQTT-3.1.2-7", "MQTT-3.1.2-8", "MQTT-3.1.2-14")
@VERSIONS
def test_a_lost_connection_sends_the_will(bench: Bench, heir: Client, version: int) -> None:
    client = bench.connect("a", version, will=WILL)
    assert heir.received() == []
    client.lose()
    assert heir.received() == [Publish("will/a", b"gone")]
    (record,) = bench.stored()
    assert (record.qos, record.retain, record.client_id) == (1, False, b"a")


@pytest.mark.mqtt("MQTT-3.1.2-10", "MQTT-3.14.4-3", "3.1.1 MQTT-3.14.4-3")
@VERSIONS
def test_a_disconnect_sends_no_will(bench: Bench, heir: Client, version: int) -> None:
    bench.connect("a", version, will=WILL).disconnect()
    bench.durable("b", version, will=WILL).disconnect()
    bench.restart()
    assert bench.stored() == []


@pytest.mark.mqtt("MQTT-3.1.2-8")
@VERSIONS
def test_a_protocol_error_sends_the_will(bench: Bench, heir: Client, version: int) -> None:
    bench.connect("a", version, will=WILL).send_bytes(b"\0\0")
    assert heir.payloads() == [b"gone"]


@pytest.mark.mqtt("MQTT-3.1.2-8")
def test_silence_sends_the_will(bench: Bench, heir: Client) -> None:
    bench.connect("a", will=WILL, keep_alive_s=10)
    bench.pass_time(14)
    assert heir.payloads() == []
    bench.pass_time(2)
    assert heir.payloads() == [b"gone"]


def test_disconnect_with_will_sends_it(bench: Bench, heir: Client) -> None:
    client = bench.connect("a", will=WILL)
    client.send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE))
    assert heir.payloads() == [b"gone"]
    client = bench.connect("b")
    client.send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE))
    assert heir.payloads() == []


@VERSIONS
def test_take_over_sends_the_will_of_the_first(bench: Bench, heir: Client, version: int) -> None:
    bench.connect("a", version, will=WILL)
    second = bench.connect("a", version, will=Will("will/b", b"second"))
    assert heir.payloads() == [b"gone"]
    second.lose()
    assert heir.payloads() == [b"second"]


@pytest.mark.mqtt("MQTT-3.1.2-8", "MQTT-3.1.2-10")
def test_a_delayed_will_is_sent_after_its_delay(bench: Bench, heir: Client) -> None:
    client = bench.durable("a", will=delayed(30), session_expiry_interval=100)
    bench.pass_time(50)
    client.lose()
    bench.pass_time(29)
    assert heir.payloads() == []
    bench.pass_time(2)
    assert heir.payloads() == [b"gone"]
    bench.pass_time(1_000)
    assert heir.payloads() == []


@pytest.mark.mqtt("MQTT-3.1.3-9")
def test_a_delayed_will_is_not_sent_to_whom_came_back(bench: Bench, heir: Client) -> None:
    bench.durable("a", will=delayed(30)).lose()
    client = bench.durable("a")
    bench.pass_time(60)
    client.disconnect()
    bench.pass_time(60)
    assert bench.stored() == []


@pytest.mark.mqtt("MQTT-3.1.3-9")
def test_a_delayed_will_is_not_sent_at_take_over(bench: Bench, heir: Client) -> None:
    bench.durable("a", will=delayed(30))
    bench.durable("a", will=delayed(30))
    bench.pass_time(60)
    assert bench.stored() == []


def test_a_clean_start_ends_the_session_and_so_sends_its_will(bench: Bench, heir: Client) -> None:
    bench.durable("a", will=delayed(30)).lose()
    bench.connect("a", clean_start=True)
    assert heir.payloads() == [b"gone"]
    bench.durable("b", will=delayed(30))
    bench.connect("b", clean_start=True)
    assert heir.payloads() == [b"gone"]
    bench.pass_time(60)
    assert heir.payloads() == []


@pytest.mark.mqtt("MQTT-3.1.2-8")
@pytest.mark.parametrize(("expiry_s", "delay_s"), [(0, 30), (10, 30)])
def test_the_end_of_the_session_sends_the_will_at_the_latest(
    bench: Bench, heir: Client, expiry_s: int, delay_s: int
) -> None:
    bench.connect("a", will=delayed(delay_s), session_expiry_interval=expiry_s).lose()
    bench.pass_time(expiry_s + 1 if expiry_s else 0)
    assert heir.payloads() == [b"gone"]
    bench.pass_time(100)
    assert heir.payloads() == []


@pytest.mark.mqtt("MQTT-3.1.2-7")
def test_a_will_outlives_the_process(bench: Bench) -> None:
    """Its client could not say goodbye, so it is sent; after its delay if it has one."""
    bench.connect("now", will=WILL)
    bench.durable("later", will=delayed(30))
    bench.durable("left", will=delayed(30)).disconnect()
    bench.restart()
    assert [record.client_id for record in bench.stored()] == [b"now"]
    bench.pass_time(31)
    assert [record.client_id for record in bench.stored()] == [b"now", b"later"]
    bench.restart()
    bench.pass_time(100)
    assert len(bench.stored()) == 2


def test_a_will_whose_time_came_while_the_process_was_down(bench: Bench) -> None:
    bench.durable("a", will=delayed(30)).lose()
    bench.pass_time(10)
    bench.restart()
    bench.pass_time(25)
    assert len(bench.stored()) == 1


def test_a_sent_will_is_not_sent_again_after_a_restart(bench: Bench) -> None:
    bench.durable("a", will=WILL).lose()
    bench.connect("b", will=WILL).lose()
    assert len(bench.stored()) == 2
    bench.restart()
    bench.pass_time(10)
    assert len(bench.stored()) == 2


@pytest.mark.mqtt("MQTT-3.1.2-15")
@VERSIONS
def test_a_retained_will_stays(bench: Bench, version: int) -> None:
    bench.connect("a", version, will=Will("will/a", b"gone", QoS.AT_LEAST_ONCE, retain=True)).lose()
    late = bench.connect("late", version)
    late.subscribe("will/+", qos=0)
    assert late.received() == [Publish("will/a", b"gone", retain=True)]
    bench.connect("a", version, will=Will("will/a", b"", retain=True)).lose()
    assert late.received() == [Publish("will/a", b"")]
    later = bench.connect("later", version)
    later.subscribe("will/+")
    assert later.received() == []


@pytest.mark.mqtt("MQTT-3.1.3-10")
def test_the_properties_of_a_will_are_those_of_a_message(bench: Bench, heir: Client) -> None:
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=60,
        content_type="text",
        response_topic="answers",
        correlation_data=b"\2\2",
        user_properties=(("k", "1"), ("k", "2")),
        will_delay_interval=5,
    )
    bench.durable("a", will=Will("will/a", b"", properties=properties)).lose()
    bench.pass_time(6)
    (message,) = heir.messages()
    properties.will_delay_interval = None
    assert message.properties == properties


def test_an_expired_will_is_not_delivered(bench: Bench) -> None:
    client = bench.durable("heir")
    client.subscribe("will/#", qos=1)
    client.lose()
    properties = Properties(message_expiry_interval=10)
    bench.connect("a", will=Will("will/a", b"", QoS.AT_LEAST_ONCE, properties=properties)).lose()
    bench.pass_time(11)
    assert bench.durable("heir").received() == []


def test_a_will_without_expiry_that_contains_a_byte_2_does_not_expire(bench: Bench, heir: Client) -> None:
    properties = Properties(content_type="\2", user_properties=(("\2", "\2\2\2\2\2"),))
    bench.connect("a", will=Will("will/a", b"1", properties=properties)).lose()
    (message,) = heir.messages()
    assert message.properties == properties


def test_a_second_will_takes_the_place_of_the_first(bench: Bench, heir: Client) -> None:
    bench.durable("a", will=delayed(30)).lose()
    bench.durable("a", will=Will("will/b", b"second")).lose()
    assert heir.payloads() == [b"second"]
    bench.pass_time(60)
    assert heir.payloads() == []


def test_a_refused_connect_sends_no_will(bench: Bench) -> None:
    client = bench.client()
    client.send(Connect("a", will=WILL, properties=Properties(authentication_method="x")))
    assert client.is_closed
    client.lose()
    assert bench.stored() == []
