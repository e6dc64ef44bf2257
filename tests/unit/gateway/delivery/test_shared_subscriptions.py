"""Shared subscriptions: `$share/NAME/FILTER` as MQTT clients see it, with the store here and at the end of a wire."""

import pytest

from gateway.mqtt.packets import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from gateway.mqtt.reason_codes import ReasonCode
from store.state.group_settings import GroupSettings
from tests.support.mqtt_bench import Bench, Client
from tests.unit.conftest import StartBench

VERSIONS = pytest.mark.parametrize("version", [4, 5])


def numbered(start: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def publish(bench: Bench, topic: str, payloads: list[bytes], qos: int = 1) -> None:
    """All in one piece, by a client of its own, to the end of their handshakes."""
    client = bench.connect("publisher")
    client.send(*(client.publish_packet(topic, payload, qos) for payload in payloads))
    client.take()
    client.disconnect()


def members(bench: Bench, number: int, qos: int = 1, topic_filter: str = "$share/g/t/#") -> list[Client]:
    clients = [bench.connect(f"m{i}") for i in range(number)]
    for client in clients:
        assert client.subscribe(topic_filter, qos=qos).reason_codes == (qos,)
    return clients


@pytest.mark.mqtt("MQTT-4.8.2-3")
@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(bench: Bench, version: int, qos: int) -> None:
    clients = [bench.connect(f"m{i}", version) for i in range(3)]
    for client in clients:
        assert client.subscribe("$share/g/t/+", qos=qos).reason_codes == (qos,)
    alone = bench.connect("alone")
    alone.subscribe("t/+")
    publish(bench, "t/1", numbered(0, 30), qos=2)
    shares = [client.take() for client in clients]
    assert [len(share) for share in shares] == [10, 10, 10]
    assert sorted([*shares[0], *shares[1], *shares[2]], key=int) == numbered(0, 30)
    assert alone.payloads() == numbered(0, 30)
    publish(bench, "t/2", [b"last"])
    assert [client.take() for client in clients].count([b"last"]) == 1


@pytest.mark.mqtt("MQTT-3.3.4-5")
def test_each_group_gets_every_message(bench: Bench) -> None:
    one, two = bench.connect("one"), bench.connect("two")
    one.subscribe("$share/g/t", qos=1, subscription_identifiers=(7,))
    two.subscribe("$share/h/t", subscription_identifiers=(8,))
    two.subscribe("$share/g/+", subscription_identifiers=(9,))
    two.subscribe("t")
    publish(bench, "t", [b"1"])
    (message,) = one.messages()
    assert (message.payload, message.properties.subscription_identifiers) == (b"1", (7,))
    copies = two.messages()
    assert [copy.payload for copy in copies] == [b"1"] * 3
    assert sorted(copy.properties.subscription_identifiers for copy in copies) == [(), (8,), (9,)]


def test_the_backlog_waits_for_the_first_one_back(bench: Bench) -> None:
    clients = members(bench, 2)
    for client in clients:
        client.disconnect()
    publish(bench, "t/1", numbered(0, 700))
    back = bench.connect("somebody else")
    back.subscribe("$share/g/t/#", qos=1)
    assert back.take() == numbered(0, 700)


@pytest.mark.parametrize("is_durable", [False, True])
def test_unacknowledged_messages_of_a_leaving_member_go_to_others_at_once(bench: Bench, is_durable: bool) -> None:
    (other,) = members(bench, 1)
    leaving = bench.durable("leaving") if is_durable else bench.connect("leaving")
    leaving.subscribe("$share/g/t/#", qos=1)
    publish(bench, "t/1", numbered(0, 10))
    first = leaving.messages()
    assert len(first) == 5
    leaving.send(PubAck(first[0].packet_id or 0))
    assert len(other.take()) == 5
    leaving.lose()
    assert other.take() == [message.payload for message in first[1:]]


def test_a_window_bounds_what_a_member_has(bench: Bench) -> None:
    small = bench.connect("small", receive_maximum=2)
    small.subscribe("$share/g/t/#", qos=1)
    publish(bench, "t/1", numbered(0, 5))
    (one, two) = small.messages()
    small.send(PubAck(two.packet_id or 0))
    (three,) = small.messages()
    (other,) = members(bench, 1)
    assert other.take() == numbered(3, 2)
    small.send(PubAck(one.packet_id or 0), PubAck(three.packet_id or 0))
    assert small.received() == []


def test_a_session_that_comes_back_gets_what_it_had_again(bench: Bench) -> None:
    client = bench.durable("a")
    client.subscribe("$share/g/t", qos=1)
    publish(bench, "t", numbered(0, 3))
    first = client.messages()
    client.lose()
    client = bench.durable("a")
    again = client.messages()
    assert [(m.payload, m.packet_id, m.dup) for m in again] == [(m.payload, m.packet_id, True) for m in first]
    client.send(*(PubAck(message.packet_id or 0) for message in again))
    client.disconnect()
    client = bench.durable("a")
    publish(bench, "t", [b"new"])
    assert [(message.payload, message.dup) for message in client.messages()] == [(b"new", False)]


@pytest.mark.mqtt("MQTT-4.8.2-4")
def test_qos_2_stays_with_a_session_that_outlives_its_connection(bench: Bench) -> None:
    (other,) = members(bench, 1, qos=2)
    client = bench.durable("a")
    client.subscribe("$share/g/t/#", qos=2)
    publish(bench, "t/1", numbered(0, 4), qos=2)
    one, two = client.messages()
    client.send(PubRec(one.packet_id or 0))
    assert client.one(PubRel) == PubRel(one.packet_id or 0)
    client.lose()
    assert len(other.take()) == 2
    client = bench.durable("a")
    again = client.received()
    assert again == [
        PubRel(one.packet_id or 0),
        Publish("t/1", two.payload, QoS(2), packet_id=two.packet_id, dup=True),
    ]
    client.send(PubComp(one.packet_id or 0), PubRec(two.packet_id or 0), PubComp(two.packet_id or 0))
    client.disconnect()
    assert other.received() == []
    assert bench.durable("a").received() == []


@pytest.mark.mqtt("MQTT-4.8.2-5")
def test_qos_2_in_flight_ends_with_its_session(bench: Bench) -> None:
    (other,) = members(bench, 1, qos=2)
    client = bench.connect("a")
    client.subscribe("$share/g/t/#", qos=2)
    publish(bench, "t/1", numbered(0, 2), qos=2)
    assert len(client.messages()) == 1
    client.lose()
    assert len(other.take()) == 1
    assert other.received() == []


@pytest.mark.mqtt("MQTT-4.8.2-6")
def test_a_refused_message_is_sent_to_nobody_else(bench: Bench) -> None:
    (client,) = members(bench, 1, qos=2)
    publish(bench, "t/1", [b"1"], qos=1)
    publish(bench, "t/1", [b"2"], qos=2)
    one, two = client.messages()
    client.send(
        PubAck(one.packet_id or 0, ReasonCode.UNSPECIFIED_ERROR), PubRec(two.packet_id or 0, ReasonCode.QUOTA_EXCEEDED)
    )
    client.disconnect()
    (other,) = members(bench, 1, qos=2)
    assert other.received() == []


def test_unsubscribing(bench: Bench) -> None:
    client, other = members(bench, 2)
    publish(bench, "t/1", numbered(0, 4))
    mine = client.messages()
    client.send(Unsubscribe(9, ("$share/g/t/#", "$share/h/t/#")))
    assert client.one(UnsubAck).reason_codes == (ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED)
    publish(bench, "t/1", numbered(4, 4))
    assert len(other.take()) == 6
    client.send(*(PubAck(message.packet_id or 0) for message in mine))
    client.lose()
    assert other.received() == []
    assert not bench.broker.status.subscription_count - 1


def test_a_session_that_unsubscribed_is_no_member_any_more(bench: Bench) -> None:
    client = bench.durable("a")
    client.subscribe("$share/g/t", qos=1)
    client.send(Unsubscribe(9, ("$share/g/t",)))
    client.disconnect()
    client = bench.durable("a")
    publish(bench, "t", [b"1"])
    assert client.received() == []


def test_retained_messages_are_not_sent(bench: Bench) -> None:
    bench.connect("p").publish("t/1", b"retained", retain=True)
    (client,) = members(bench, 1)
    assert client.received() == []
    bench.connect("p").publish("t/1", b"live", retain=True)
    assert [(message.payload, message.retain) for message in client.messages()] == [(b"live", False)]
    client.subscribe(SubscriptionRequest("$share/g/t/#", QoS(1), retain_as_published=True))
    bench.connect("p").publish("t/1", b"as published", retain=True)
    assert [(message.payload, message.retain) for message in client.messages()] == [(b"as published", True)]


def test_expired_messages_and_those_too_large_for_a_member(bench: Bench) -> None:
    client = bench.connect("a", maximum_packet_size=100)
    client.subscribe("$share/g/t", qos=1)
    publish(bench, "t", [bytes(200), b"small"])
    assert client.take() == [b"small"]
    client.disconnect()
    bench.connect("p").publish("t", b"short", message_expiry_interval=10)
    bench.connect("p").publish("t", b"long", message_expiry_interval=1_000)
    bench.pass_time(20)
    (client,) = members(bench, 1, topic_filter="$share/g/t")
    assert [(m.payload, m.properties.message_expiry_interval) for m in client.messages()] == [(b"long", 980)]


def test_no_local_and_bad_names(bench: Bench) -> None:
    client = bench.connect("a")
    client.send_bytes(bytes.fromhex("8210 0001 00 000a") + b"$share/g/t" + b"\x04")
    assert client.is_closed
    bad = ("$share/g", "$share//t", "$share/+/t", "$share/g/", f"$share/{'g' * 256}/t")
    assert bench.connect("b", 4).subscribe("t", *bad).reason_codes == (0, *[0x80] * len(bad))


def test_subscribing_again_changes_the_subscription(bench: Bench) -> None:
    (client,) = members(bench, 1)
    assert client.subscribe("$share/g/t/#", qos=0, subscription_identifiers=(3,)).reason_codes == (0,)
    publish(bench, "t/1", [b"1"])
    (message,) = client.messages()
    assert (message.qos, message.properties.subscription_identifiers) == (0, (3,))


def test_slowly_acknowledged_messages_stay_with_their_client(bench: Bench) -> None:
    client, other = members(bench, 2)
    publish(bench, "t/1", numbered(0, 2))
    (message,) = client.messages()
    assert len(other.take()) == 1
    for _ in range(12):
        bench.pass_time(4)
    assert other.received() == []
    client.send(PubAck(message.packet_id or 0))
    client.lose()
    assert other.received() == []


def test_a_group_begins_where_its_first_member_wants(bench: Bench) -> None:
    bench.durable("keeps it").subscribe("t/+", qos=1)
    publish(bench, "t/1", numbered(0, 3))
    client = bench.connect("a")
    start = (("penstock-from", "earliest"),)
    assert client.subscribe("$share/g/t/+", qos=1, user_properties=start).reason_codes == (1,)
    assert client.take() == numbered(0, 3)


@pytest.mark.parametrize("strategy", ["least_in_flight", "sticky"])
def test_strategies(start_bench: StartBench, strategy: str) -> None:
    bench = start_bench(shared_strategies=(f"g={strategy}",))
    one, two = members(bench, 2)
    for number in range(20):
        publish(bench, f"t/{number % 5}", [b"%d" % number])
    shares = [[(m.topic_name, m.payload) for m in client.messages()] for client in (one, two)]
    if strategy == "least_in_flight":
        assert [len(share) for share in shares] == [10, 10]
        two.disconnect()
        bench.run()
        return
    for _ in range(20):
        for client, share in ((one, shares[0]), (two, shares[1])):
            for number in range(1, 100):
                client.send(PubAck(number))
            share += [(m.topic_name, m.payload) for m in client.messages()]
    assert not {topic for topic, _ in shares[0]} & {topic for topic, _ in shares[1]}
    together = sorted(shares[0] + shares[1], key=lambda each: int(each[1]))
    assert [payload for _, payload in together] == numbered(0, 20)
    for share in shares:
        for topic in {topic for topic, _ in share}:
            payloads = [int(payload) for its_topic, payload in share if its_topic == topic]
            assert payloads == sorted(payloads)


def in_flight(bench: Bench) -> int:
    (group,) = bench.store.groups
    return group.group.in_flight


def test_acknowledgements_that_nobody_waits_for_are_told_with_the_next_turn(bench: Bench) -> None:
    """A PUBACK asks for no turn of its own where it lets nobody have anything, so many are told at once."""
    client, _ = members(bench, 2)
    publish(bench, "t/1", numbered(0, 8))
    messages = client.messages()
    turns = bench.broker.turns
    for message in messages:
        client.send(PubAck(message.packet_id or 0))
    assert bench.broker.turns == turns
    assert bench.broker.turn.acknowledged >= len(messages)
    bench.pass_time()
    assert in_flight(bench) == 4
    client.lose()
    assert in_flight(bench) == 4


@pytest.mark.parametrize("start", ["publish", "lose"])
def test_acknowledgements_are_told_before_the_share_changes(bench: Bench, start: str) -> None:
    client, other = members(bench, 2)
    publish(bench, "t/1", numbered(0, 4))
    messages = client.messages()
    assert len(other.take()) == 2
    client.send(*(PubAck(message.packet_id or 0) for message in messages))
    if start == "publish":
        publish(bench, "t/1", numbered(4, 2))
        assert (len(client.take()), len(other.take())) == (1, 1)
        assert in_flight(bench) == 2
    client.lose()
    assert other.take() == []


def test_a_group_that_allows_few_in_flight_hears_of_each_at_once(bench: Bench) -> None:
    made = bench.store.groups.make(("g", "t/#"), GroupSettings(most_in_flight=2), lambda: 0)
    (client,) = members(bench, 1)
    publish(bench, "t/1", numbered(0, 6))
    taken: list[bytes] = []
    for _ in range(3):
        messages = client.messages()
        assert (len(messages), made.group.in_flight) == (2, 2)
        taken += [message.payload for message in messages]
        client.send(*(PubAck(message.packet_id or 0) for message in messages))
    assert taken == numbered(0, 6)


@pytest.mark.parametrize("size", [10, 100_000])
def test_messages_of_one_turn_are_dealt_at_once_whatever_their_size(bench: Bench, size: int) -> None:
    """More than an answer has room for is dealt in several goes."""
    clients = members(bench, 3)
    payloads = [bytes([number]) * size for number in range(30)]
    publish(bench, "t/1", payloads)
    shares = [client.take() for client in clients]
    assert sorted([*shares[0], *shares[1], *shares[2]]) == payloads
    assert [len(share) for share in shares] == [10, 10, 10]
    assert all(share == sorted(share) for share in shares)


def test_after_a_kill_nothing_is_lost_and_the_session_is_a_member_again(bench: Bench) -> None:
    client = bench.durable("a")
    client.subscribe("$share/g/t/+", qos=1)
    publish(bench, "t/1", numbered(0, 4))
    messages = client.messages()
    client.send(*(PubAck(message.packet_id or 0) for message in messages[:2]))
    bench.pass_time(1)
    bench.pass_time(1)
    bench.restart()
    client = bench.durable("a")
    assert client.take() == numbered(2, 2)
    publish(bench, "t/1", numbered(4, 1))
    assert client.take() == numbered(4, 1)
