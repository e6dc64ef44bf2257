"""$SYS/broker/...: what it says, who gets it and when, and that clients cannot publish there."""

import math

import pytest

from gateway.delivery.subscriptions import FROM_PROPERTY
from gateway.delivery.sys_topics import AVERAGED_MIN, LOADS, PREFIX, SYS_TOPICS, LoadAverage
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import ConnAck, PubAck, PubRec, RetainHandling, SubAck, SubscriptionRequest, Unsubscribe, Will
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, Client, connect_packet
from tests.unit.conftest import StartBench

EVERY = {PREFIX + topic.name for topic in SYS_TOPICS} | {
    f"{PREFIX}load/{name}/{minutes}min" for name in LOADS for minutes in AVERAGED_MIN
}
MOSQUITTO = (
    "version uptime clients/connected clients/disconnected clients/total clients/maximum clients/expired "
    "messages/received messages/sent messages/stored messages/inflight publish/messages/received "
    "publish/messages/sent publish/messages/dropped publish/bytes/received publish/bytes/sent bytes/received "
    "bytes/sent subscriptions/count store/messages/count store/messages/bytes load/messages/received/1min "
    "load/messages/sent/5min load/publish/received/15min load/publish/sent/1min load/publish/dropped/1min "
    "load/bytes/received/1min load/bytes/sent/1min load/sockets/1min load/connections/1min"
)


@pytest.fixture
def apart() -> bool:
    """What is said here of the store is known where it is in the same process."""
    return False


def values(client: Client) -> dict[str, str]:
    """The $SYS messages that arrived, by the end of their topic."""
    return {message.topic_name.removeprefix(PREFIX): message.payload.decode() for message in client.messages()}


def current(bench: Bench) -> dict[str, str]:
    """What a new subscriber is told."""
    reader = bench.connect("asking")
    reader.subscribe("$SYS/#")
    found = values(reader)
    reader.disconnect()
    return found


# --- at once


@pytest.mark.parametrize("version", [4, 5])
def test_a_new_subscriber_gets_every_value_at_once_as_retained(bench: Bench, version: int) -> None:
    reader = bench.connect("reader", version)
    reader.subscribe("$SYS/#", qos=2)
    messages = reader.messages()
    assert {message.topic_name for message in messages} == EVERY
    assert {(message.retain, message.qos) for message in messages} == {(True, 0)}


def test_the_names_are_those_of_mosquitto() -> None:
    assert {PREFIX + name for name in [*MOSQUITTO.split(), "retained messages/count"]} <= EVERY


@pytest.mark.parametrize(
    ("topic_filter", "number"),
    [("$SYS/broker/version", 1), ("$SYS/broker/+", 2), ("$SYS/broker/load/+/+/1min", 7), ("$SYS/nothing", 0)],
)
def test_only_what_the_filter_matches(bench: Bench, topic_filter: str, number: int) -> None:
    reader = bench.connect("reader")
    reader.subscribe(topic_filter)
    assert len(reader.messages()) == number


@pytest.mark.parametrize("topic_filter", ["#", "+/broker/version", "+/#"])
def test_filters_that_begin_with_a_wildcard_do_not_match(bench: Bench, topic_filter: str) -> None:
    reader = bench.connect("reader")
    reader.subscribe(topic_filter)
    assert reader.messages() == []
    bench.pass_time(20)
    assert reader.messages() == []


def test_retain_handling_holds_here_too(bench: Bench) -> None:
    reader = bench.connect("reader")
    request = SubscriptionRequest("$SYS/broker/version", retain_handling=RetainHandling.SEND_IF_NEW_SUBSCRIPTION)
    for number in (1, 0):
        reader.subscribe(request)
        assert len(reader.messages()) == number
    reader.subscribe(SubscriptionRequest("$SYS/#", retain_handling=RetainHandling.DO_NOT_SEND))
    assert reader.messages() == []


def test_the_subscription_identifier_goes_with_them(bench: Bench) -> None:
    reader = bench.connect("reader")
    reader.subscribe("$SYS/broker/version", subscription_identifiers=(7,))
    assert [message.properties.subscription_identifiers for message in reader.messages()] == [(7,)]


def test_a_client_gets_none_that_is_too_large_for_it(bench: Bench) -> None:
    reader = bench.connect("reader", maximum_packet_size=40)
    reader.subscribe("$SYS/#")
    topics = {message.topic_name for message in reader.messages()}
    assert PREFIX + "uptime" in topics
    assert PREFIX + "publish/messages/received" not in topics


# --- every interval


def test_sys_topics_that_changed_are_published_every_interval(bench: Bench) -> None:
    reader = bench.connect("reader")
    reader.subscribe("$SYS/broker/uptime", "$SYS/broker/version")
    assert values(reader)["uptime"] == "0 seconds"
    bench.pass_time(9)
    assert reader.messages() == []
    bench.pass_time(1)
    first = reader.messages()
    assert {message.topic_name: message.payload for message in first} == {
        PREFIX + "uptime": b"10 seconds",
        PREFIX + "version": current(bench)["version"].encode(),
    }
    assert {(message.retain, message.qos) for message in first} == {(False, 0)}
    bench.pass_time(10)
    assert values(reader) == {"uptime": "20 seconds"}


def test_sys_topics_are_not_stored(bench: Bench) -> None:
    reader = bench.connect("reader")
    reader.subscribe("$SYS/broker/uptime")
    reader.received()
    bench.pass_time(20)
    assert len(reader.messages()) == 1
    reader.send(Unsubscribe(9, ("$SYS/broker/uptime",)))
    reader.received()
    bench.pass_time(20)
    assert reader.messages() == []
    assert bench.stored() == []


def test_an_interval_of_zero_means_never(start_bench: StartBench) -> None:
    bench = start_bench(sys_interval_s=0)
    reader = bench.connect("reader")
    assert reader.subscribe("$SYS/#") == SubAck(1, (ReasonCode.SUCCESS,))
    bench.pass_time(60)
    assert reader.messages() == []


# --- live only


def test_a_session_whose_client_is_away_keeps_none(bench: Bench) -> None:
    bench.durable("away").subscribe("$SYS/broker/#", "$SYS/#", qos=1)
    other = bench.connect("other")
    other.subscribe("$SYS/#")
    bench.client().connect("nobody")
    away = bench.durable("away")
    away.received()
    away.lose()
    bench.pass_time(20)
    back = bench.client()
    back.send(connect_packet("away", clean_start=False, session_expiry_interval=60))
    assert back.first(ConnAck).session_present
    assert back.messages() == []
    bench.pass_time(20)
    assert "uptime" in values(back)


def test_sys_topics_cannot_be_replayed(bench: Bench) -> None:
    watching = bench.connect("watching")
    watching.subscribe("$SYS/#")
    bench.pass_time(20)
    reader = bench.connect("reader")
    reader.subscribe(
        SubscriptionRequest("$SYS/#", retain_handling=RetainHandling.DO_NOT_SEND),
        user_properties=((FROM_PROPERTY, "earliest"),),
    )
    assert reader.messages() == []
    bench.pass_time(20)
    assert "uptime" in values(reader)


# --- the values


def test_counts_of_clients_and_subscriptions(bench: Bench) -> None:
    for name in ("one", "two"):
        bench.durable(name).subscribe("a", "b", qos=1)
    bench.connect("three").subscribe("c")
    bench.durable("gone", session_expiry_interval=5).lose()
    away = bench.durable("away")
    away.subscribe("d", qos=1)
    away.lose()
    bench.pass_time(6)
    found = current(bench)
    assert found["clients/connected"] == "4"
    assert found["clients/disconnected"] == "1"
    assert found["clients/total"] == "5"
    assert found["clients/maximum"] == "4"
    assert found["clients/expired"] == "1"
    assert found["subscriptions/count"] == "7"


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_counts_of_messages(bench: Bench, version: int, qos: int) -> None:
    reader = bench.connect("reader", version)
    reader.subscribe("a", qos=qos)
    reader.connection.session.inflight.window = 1_000
    device = bench.connect("device", version)
    for _ in range(3):
        device.publish_whole("a", b"12345", qos)
    bench.pass_time(1)
    found = current(bench)
    assert found["publish/messages/received"] == found["publish/messages/sent"] == "3"
    assert found["publish/bytes/received"] == found["publish/bytes/sent"] == "15"
    assert found["messages/stored"] == found["store/messages/count"] == "3"
    assert found["messages/inflight"] == str(3 if qos else 0)
    # CONNECT three times, SUBSCRIBE twice, and the PUBLISH and PUBREL packets
    assert found["messages/received"] == str(5 + 3 * (2 if qos == 2 else 1))
    # CONNACK three times, SUBACK twice, the deliveries, what answers PUBLISH and PUBREL
    assert found["messages/sent"] == str(5 + 3 + 3 * qos)


def test_bytes_are_those_on_the_network(bench: Bench) -> None:
    client = bench.client()
    packets = (connect_packet("device"), client.publish_packet("a", b"x" * 1_000, 1))
    client.send(*packets)
    counts = bench.broker.turn.counters()
    assert counts["bytes_in"] == sum(len(encode(packet, 5)) for packet in packets)
    assert counts["sent_bytes"] == len(client.received_bytes())


def test_dropped_are_expired_too_large_and_behind(start_bench: StartBench) -> None:
    bench = start_bench(qos0_lag_messages=2)
    bench.connect("small", maximum_packet_size=50).subscribe("a")
    slow = bench.connect("slow")
    slow.subscribe("b")
    device = bench.connect("device")
    device.publish("a", b"x" * 100)
    slow.connection.pause_writing()
    for _ in range(5):
        device.publish("b", b"1")
    slow.connection.resume_writing()
    bench.run()
    behind = 5 - len(slow.messages())
    assert behind > 1
    assert current(bench)["publish/messages/dropped"] == str(behind + 1)


def test_retained_messages_are_counted(bench: Bench) -> None:
    device = bench.connect("device")
    for topic in ("a", "b", "a", "c"):
        device.publish(topic, b"1", retain=True)
    device.publish("b", b"", retain=True)
    device.publish("never", b"", retain=True)
    bench.store.tick()
    bench.restart()
    assert current(bench)["retained messages/count"] == "2"
    bench.connect("device").publish("c", b"", retain=True)
    bench.restart()
    assert current(bench)["retained messages/count"] == "1"


def test_a_load_is_the_growth_per_minute() -> None:
    load = LoadAverage()
    for i in range(1, 31):
        load.count(i * 50, 10)
    assert load.per_minute[1] == pytest.approx(300, rel=0.01)
    assert load.per_minute[5] == pytest.approx(300 * (1 - math.exp(-1)), rel=0.01)
    assert load.per_minute[15] == pytest.approx(300 * (1 - math.exp(-1 / 3)), rel=0.01)


def test_loads_are_published(bench: Bench) -> None:
    device = bench.connect("device")
    for _ in range(100):
        device.publish("a", b"1")
    bench.pass_time(10)
    found = current(bench)
    assert found["load/publish/received/1min"] == f"{600 * (1 - math.exp(-10 / 60)):.2f}"
    assert found["load/sockets/1min"] == f"{6 * (1 - math.exp(-10 / 60)):.2f}"


# --- clients do not publish there


@pytest.mark.parametrize("topic", ["$SYS/broker/version", "$SYS", "$share/g/a", "$dead/g/a", "$ns:a/b", "$delayed"])
def test_an_mqtt_5_publisher_is_told(bench: Bench, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    device = bench.connect("device")
    reason = f"what starts with {topic.partition('/')[0]} is the server's"
    why = Properties(reason_string=reason)
    device.publish(topic, b"1", qos=1)
    assert device.one(PubAck) == PubAck(1, ReasonCode.NOT_AUTHORIZED, why)
    device.publish(topic, b"1", qos=2)
    assert device.one(PubRec) == PubRec(2, ReasonCode.NOT_AUTHORIZED, why)
    device.publish(topic, b"1", qos=0)
    assert device.received() == []
    assert not device.is_closed
    assert bench.stored() == []
    lines = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert lines == [f"client device: publish to {topic} ignored: {reason}"] * 3
    assert bench.broker.connections.rules.refused == {ReasonCode.NOT_AUTHORIZED: 3}


def test_an_mqtt_3_publisher_is_acknowledged_and_ignored(bench: Bench) -> None:
    device = bench.connect("device", 4)
    for qos in (0, 1, 2):
        device.publish_whole("$SYS/broker/version", b"1", qos)
    assert not device.is_closed
    assert bench.stored() == []


def test_a_topic_alias_does_not_help(bench: Bench) -> None:
    device = bench.connect("device")
    device.send(
        device.publish_packet("$SYS/x", b"1", 1, topic_alias=1), device.publish_packet("", b"2", 1, topic_alias=1)
    )
    acks = device.received()
    assert [(ack.packet_id, ack.reason_code) for ack in acks if isinstance(ack, PubAck)] == [
        (n, ReasonCode.NOT_AUTHORIZED) for n in (1, 2)
    ]


def test_acknowledgements_stay_in_order(bench: Bench) -> None:
    device = bench.connect("device")
    device.send(*[device.publish_packet(topic, b"1", 1) for topic in ("a", "$SYS/x", "b")])
    assert [packet.packet_id for packet in device.received() if isinstance(packet, PubAck)] == [1, 2, 3]


@pytest.mark.parametrize("version", [4, 5])
def test_a_will_there_is_refused(bench: Bench, version: int) -> None:
    client = bench.client(version)
    client.send(connect_packet("device", version, will=Will("$SYS/x", b"1")))
    refusal = client.one(ConnAck)
    assert refusal.reason_code is ReasonCode.NOT_AUTHORIZED
    assert (refusal.properties.reason_string is not None) == (version == 5)
    assert client.is_closed


def test_a_publish_after_a_refused_one(bench: Bench) -> None:
    device = bench.connect("device")
    device.publish("$SYS/x", b"1", qos=2)
    assert device.one(PubRec).reason_code is ReasonCode.NOT_AUTHORIZED
    device.publish_whole("a", b"1", 2)
    assert len(bench.stored()) == 1
