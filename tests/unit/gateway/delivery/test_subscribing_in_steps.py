"""Many subscriptions at once: granted, resumed, ended a few in a turn, so that others have theirs in between."""

from __future__ import annotations

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Packet, PubAck, Publish, SubAck, Subscribe, SubscriptionRequest, UnsubAck, Unsubscribe
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, Client, connect_packet
from tests.unit.conftest import StartBench

MANY = 500
QUOTA_EXCEEDED = ReasonCode.QUOTA_EXCEEDED


def subscribe_to(filters: list[str], qos: int = 0) -> Subscribe:
    return Subscribe(1, tuple(SubscriptionRequest(each, qos) for each in filters))  # type: ignore[arg-type]


def test_a_large_subscribe_is_granted_in_steps_and_answered_in_order(start_bench: StartBench) -> None:
    bench = start_bench(max_subscriptions_per_session=MANY)
    client = bench.connect("c")
    filters = [f"a/{i}/+" for i in range(MANY - 10)] + ["a/0/+"] * 5 + [f"b/{i}" for i in range(15)]
    answers = client.subscribe(*filters).reason_codes
    assert list(answers) == [0] * (MANY + 5) + [QUOTA_EXCEEDED] * 5
    for i in (0, 7, MANY - 11):
        client.publish(f"a/{i}/x", b"%d" % i)
        assert client.payloads() == [b"%d" % i]
    assert client.subscribe("b/0").reason_codes == (0,)  # it has that one
    assert client.subscribe("b/100").reason_codes == (QUOTA_EXCEEDED,)


def test_large_subscribe_does_not_delay_answers_to_other_clients(bench: Bench) -> None:
    client, other = bench.connect("c"), bench.connect("other")
    client.feed(_encoded(subscribe_to([f"a/{i}/+" for i in range(MANY)])))
    bench.broker.end_turn()
    other.feed(b"\xc0\0")
    bench.broker.end_turn()
    assert other.received_bytes() == b"\xd0\0"
    assert client.received() == []
    bench.run()
    assert len(client.one(SubAck).reason_codes) == MANY


def test_a_client_that_leaves_while_its_subscriptions_are_granted(bench: Bench) -> None:
    for client_id in ("c", "d"):
        client = bench.durable(client_id)
        client.feed(_encoded(subscribe_to([f"a/{i}/+" for i in range(MANY)], 1)))
        bench.broker.end_turn()
        client.lose()
    bench.run()
    again = bench.durable("c")
    again.subscribe("a/1/+", qos=1)
    again.publish("a/1/x", b"x", 0)
    assert again.payloads() == [b"x"]


def _encoded(packet: Packet) -> bytes:
    return encode(packet, 5)


def durable_with_many(bench: Bench, client_id: str = "c") -> Client:
    client = bench.durable(client_id)
    filters = [f"a/{i}/+" for i in range(MANY)] + [f"t/{i}" for i in range(MANY)]
    for at in range(0, len(filters), MANY):
        assert set(client.subscribe(*filters[at : at + MANY], qos=1).reason_codes) == {1}
    return client


def test_a_session_with_many_subscriptions_comes_back(bench: Bench) -> None:
    durable_with_many(bench).lose()
    publisher = bench.connect("p")
    topics = ["a/0/x", "a/499/x", "t/3", "t/499"]
    for topic in topics:
        publisher.publish(topic, topic.encode(), 1)
    back = bench.durable("c")
    assert sorted(back.take()) == sorted(topic.encode() for topic in topics)
    publisher.publish("t/4", b"live", 1)
    publisher.publish("a/4/x", b"live", 1)
    assert back.take() == [b"live"] * 2
    back.disconnect()
    assert bench.broker.deliverer.durable == 0
    bench.connect("c", clean_start=True).lose()


def test_a_session_that_leaves_and_comes_back_in_the_midst_of_it(bench: Bench) -> None:
    durable_with_many(bench).lose()
    bench.connect("p").publish("a/7/x", b"x", 1)
    for _ in range(3):
        client = bench.client()
        client.feed(_encoded_connect("c"))
        bench.broker.end_turn()
        client.lose()
    back = bench.durable("c")
    assert back.take() == [b"x"]
    back.lose()
    bench.run()
    assert bench.broker.deliverer.durable == 0


def _encoded_connect(client_id: str) -> bytes:
    return _encoded(connect_packet(client_id, clean_start=False, session_expiry_interval=1_000))


def test_a_large_unsubscribe_is_answered_in_order(bench: Bench) -> None:
    client = durable_with_many(bench)
    filters = [f"a/{i}/+" if i % 3 else f"none/{i}" for i in range(MANY)]
    client.send(Unsubscribe(9, tuple(filters)), Publish("a/0/x", b"kept", packet_id=2, qos=1))  # type: ignore[arg-type]
    unsuback, *rest = client.received()
    assert isinstance(unsuback, UnsubAck)
    assert list(unsuback.reason_codes) == [0 if i % 3 else 0x11 for i in range(MANY)]
    assert {type(packet) for packet in rest} <= {PubAck, Publish}
    client.publish("a/1/x", b"gone", 0)
    assert all(not isinstance(packet, Publish) or packet.payload != b"gone" for packet in client.received())


def test_a_message_that_matches_very_many_subscriptions_of_one_client_comes_once(bench: Bench) -> None:
    client = bench.connect("c", receive_maximum=10)
    filters = ["/".join("+" if number >> bit & 1 else "a" for bit in range(9)) for number in range(512)]
    client.subscribe(*filters, qos=1)
    client.publish("/".join("a" * 9), b"x", 0)
    assert client.payloads() == [b"x"]


def test_many_shares_of_one_client(bench: Bench) -> None:
    client = bench.connect("c")
    filters = [f"$share/g{i}/a/#" for i in range(200)]
    assert set(client.subscribe(*filters).reason_codes) == {0}
    client.send(Unsubscribe(9, tuple(filters)))
    assert set(client.first(UnsubAck).reason_codes) == {0}
