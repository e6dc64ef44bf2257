"""store.live_only: messages that are delivered to who is there, and kept in no queue."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.delivery.subscriptions import FROM_PROPERTY
from gateway.mqtt.packets import ConnAck, Publish, QoS, SubscriptionRequest, Unsubscribe, Will
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from store.records.records import RecordFlag
from tests.support.mqtt_bench import Bench, Client, connect_packet
from tests.unit.conftest import StartBench

LIVE_FILTERS = ("live/#", "+/position")
StartLive = Callable[..., Bench]


@pytest.fixture
def start_live(start_bench: StartBench) -> StartLive:
    def start(*filters: str, **settings: object) -> Bench:
        bench = start_bench(**settings)
        bench.store_settings = replace(bench.store_settings, live_only=filters)
        bench.restart()
        return bench

    return start


@pytest.fixture
def live_bench(start_live: StartLive) -> Bench:
    return start_live(*LIVE_FILTERS)


def live_topics(bench: Bench) -> dict[str, bool]:
    """Topics of the stored messages, and whether the newest to each is live-only."""
    return {record.topic.decode(): bool(record.flags & RecordFlag.LIVE_ONLY) for record in bench.stored()}


def come_back(bench: Bench, client_id: str) -> Client:
    """A durable session's client connects again; what waited for it is left for take()."""
    client = bench.client()
    client.send(connect_packet(client_id, clean_start=False, session_expiry_interval=3_600))
    assert client.first(ConnAck).session_present
    return client


# --- the flag


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_to_matching_topics_are_stored_with_the_flag(live_bench: Bench, version: int, qos: int) -> None:
    device = live_bench.connect("device", version)
    for topic in ("live/a", "a", "car/position", "live/a", "car/position/x", "a", "live"):
        device.publish_whole(topic, b"1", qos)
    expected = {"live/a": True, "a": False, "car/position": True, "car/position/x": False, "live": True}
    assert live_topics(live_bench) == expected


def test_without_the_setting_no_message_has_it(bench: Bench) -> None:
    bench.connect("device").publish("live/a", b"1")
    assert live_topics(bench) == {"live/a": False}


def test_live_only_flag_is_set_by_the_full_codec_too(live_bench: Bench) -> None:
    device = live_bench.connect("device")
    device.publish("live/a", b"1", topic_alias=1)
    device.publish("b", b"1", topic_alias=2)
    assert live_topics(live_bench) == {"live/a": True, "b": False}


def test_a_will_has_it(live_bench: Bench) -> None:
    live_bench.connect("device", will=Will("live/will", b"gone")).lose()
    assert live_topics(live_bench) == {"live/will": True}


def test_topics_longer_than_what_is_remembered(live_bench: Bench) -> None:
    long_live, long_kept = "live/" + "x" * 300, "kept/" + "x" * 300
    device = live_bench.connect("device")
    packets = [device.publish_packet(topic) for topic in ("a", long_live, "a", long_kept, "live/b", long_kept, "a")]
    device.send(*packets)
    assert live_topics(live_bench) == {"a": False, long_live: True, long_kept: False, "live/b": True}


def test_the_flag_outlives_the_setting(live_bench: Bench) -> None:
    live_bench.connect("device").publish("live/a", b"1")
    live_bench.store_settings = replace(live_bench.store_settings, live_only=())
    live_bench.restart()
    live_bench.connect("device").publish("live/b", b"1")
    assert live_topics(live_bench) == {"live/a": True, "live/b": False}


# --- who gets them


@pytest.mark.parametrize("topic_filter", ["live/a", "live/#", "live/+", "+/a", "#"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_live_only_messages_reach_connected_subscribers(live_bench: Bench, topic_filter: str, qos: int) -> None:
    reader = live_bench.connect("reader")
    reader.subscribe(topic_filter, qos=qos)
    live_bench.connect("device").publish_whole("live/a", b"1", qos)
    assert reader.take() == [b"1"]


def test_no_stored_queue_has_them(live_bench: Bench) -> None:
    live_bench.durable("reader").subscribe("+/a", qos=1)
    live_bench.connect("device").publish("live/a", b"1")
    queues = live_bench.store.queues
    for topic_filter in ("live/a", "live/#", "+/a"):
        queue = queues.stored(topic_filter)
        assert queue is not None
        assert queue.next_offset == 0


def test_a_session_whose_client_is_away_finds_only_the_others(live_bench: Bench) -> None:
    reader = live_bench.durable("reader")
    reader.subscribe("#", qos=1)
    reader.lose()
    device = live_bench.connect("device")
    device.publish("live/a", b"live", qos=1)
    device.publish("a", b"kept", qos=1)
    assert come_back(live_bench, "reader").take() == [b"kept"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_returning_session_gets_what_was_kept_and_then_both(live_bench: Bench, restart: bool) -> None:
    live_bench.durable("reader").subscribe("#", qos=1)
    live_bench.connect("device").publish("a", b"before", qos=1)
    if restart:
        live_bench.restart()
    device = live_bench.connect("device")
    reader = come_back(live_bench, "reader")
    device.publish("live/a", b"live", qos=1)
    device.publish("a", b"after", qos=1)
    assert reader.take() == [b"before", b"live", b"after"]
    assert reader.take() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_a_durable_subscription_delivers_each_message_once_and_in_order(live_bench: Bench, qos: int) -> None:
    reader = live_bench.durable("reader")
    reader.subscribe("+/a", qos=qos, subscription_identifiers=(7,))
    device = live_bench.connect("device")
    packets = [device.publish_packet(topic, b"%d" % i, 1) for i, topic in enumerate(("live/a", "x/a") * 20)]
    device.send(*packets)
    seen: list[Publish] = []
    while messages := [packet for packet in reader.received() if isinstance(packet, Publish)]:
        seen += messages
        reader.connection.session.inflight.window = 65_535
        live_bench.run()
    assert [message.payload for message in seen] == [b"%d" % i for i in range(40)]
    assert {message.properties.subscription_identifiers for message in seen} == {(7,)}


def test_a_slow_client_gets_all_of_them_while_it_is_there(start_live: StartLive) -> None:
    bench = start_live("live/#")
    bench.store_settings = replace(bench.store_settings, live_tail_entries=8)
    bench.restart()
    reader = bench.durable("reader", receive_maximum=2)
    reader.subscribe("#", qos=1)
    device = bench.connect("device")
    for i in range(100):
        device.publish("live/a" if i % 2 else "a", b"%d" % i, qos=1)
        if i % 10 == 0:
            bench.pass_time(1)
    assert reader.take() == [b"%d" % i for i in range(100)]


# --- what else a subscription is


def test_a_retained_one_is_kept_as_retained(live_bench: Bench) -> None:
    live_bench.connect("device").publish("live/a", b"1", retain=True)
    for _ in range(2):
        reader = live_bench.connect("reader")
        reader.subscribe("live/#", qos=1)
        (message,) = reader.messages()
        assert (message.payload, message.retain) == (b"1", True)
        live_bench.restart()


def test_replay_brings_the_others_and_goes_on_with_both(live_bench: Bench) -> None:
    device = live_bench.connect("device")
    device.publish("live/a", b"live")
    device.publish("car/door", b"kept")
    reader = live_bench.connect("reader")
    reader.subscribe("car/#", qos=0, user_properties=((FROM_PROPERTY, "earliest"),))
    device.publish("car/position", b"live")
    device.publish("car/door", b"kept too")
    assert reader.payloads() == [b"kept", b"live", b"kept too"]


def test_to_unsubscribe_ends_both_parts(live_bench: Bench) -> None:
    reader = live_bench.durable("reader")
    reader.subscribe("#", qos=1)
    reader.send(Unsubscribe(9, ("#",)))
    reader.received()
    device = live_bench.connect("device")
    device.publish("live/a", b"live", qos=1)
    device.publish("a", b"kept", qos=1)
    assert reader.take() == []
    assert live_bench.store.queues.counts()["live"] == 0


def test_to_subscribe_again_loses_and_repeats_nothing(live_bench: Bench) -> None:
    reader = live_bench.durable("reader", receive_maximum=1)
    reader.subscribe("#", qos=1)
    device = live_bench.connect("device")
    for i, topic in enumerate(("a", "live/a", "b", "live/b")):
        device.publish(topic, b"%d" % i, qos=1)
    reader.subscribe("#", qos=1)
    assert reader.take() == [b"0", b"1", b"2", b"3"]


def test_resent_live_only_message_names_the_subscription_once(live_bench: Bench) -> None:
    reader = live_bench.durable("reader")
    reader.subscribe("#", qos=1, subscription_identifiers=(7,))
    live_bench.connect("device").publish("live/a", b"1", qos=1)
    assert len(reader.messages()) == 1
    reader.lose()
    again = come_back(live_bench, "reader").messages()
    assert [(message.dup, message.payload, message.properties.subscription_identifiers) for message in again] == [
        (True, b"1", (7,))
    ]


def test_both_parts_count_as_one_subscription(start_live: StartLive) -> None:
    bench = start_live("live/#", max_subscriptions_per_session=2)
    reader = bench.durable("reader")
    requests = (SubscriptionRequest("#", QoS(1)), SubscriptionRequest("+/x", QoS(1)), SubscriptionRequest("c", QoS(1)))
    assert reader.subscribe(*requests).reason_codes == (1, 1, ReasonCode.QUOTA_EXCEEDED)
    assert bench.broker.status.subscription_count == 2
    assert reader.subscribe("d", qos=1).reason_codes == (ReasonCode.QUOTA_EXCEEDED,)


def test_two_subscriptions_that_overlap_deliver_once(live_bench: Bench) -> None:
    reader = live_bench.durable("reader")
    reader.subscribe("#", qos=1)
    reader.subscribe("live/a", qos=0)
    reader.subscribe("a", qos=1)
    device = live_bench.connect("device")
    device.publish("live/a", b"live", qos=1)
    device.publish("a", b"kept", qos=1)
    assert reader.take() == [b"live", b"kept"]


def test_expired_ones_are_not_delivered(live_bench: Bench) -> None:
    reader: Client = live_bench.durable("reader", receive_maximum=1)
    reader.subscribe("live/#", qos=1)
    device = live_bench.connect("device")
    for payload in (b"1", b"2"):
        device.send(Publish("live/a", payload, QoS(1), packet_id=1, properties=Properties(message_expiry_interval=5)))
    live_bench.pass_time(10)
    assert reader.take() == [b"1"]
