"""Who is who: session present, take-over, expiry, and what a session finds when it comes back."""

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import (
    ConnAck,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    UnsubAck,
    Unsubscribe,
    Will,
)
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from notify.local.store import LocalStore
from tests.support.mqtt_bench import Bench, Client, SlowDisk, acknowledgement, connect_packet
from tests.unit.conftest import StartBench

VERSIONS = pytest.mark.parametrize("version", [4, 5])


def resumed(bench: Bench, client_id: str, version: int = 5, **fields: object) -> tuple[Client, bool]:
    client = bench.client(version)
    if version == 5:
        fields.setdefault("session_expiry_interval", 3_600)
    client.send(connect_packet(client_id, version, **{"clean_start": False, **fields}))
    return client, client.first(ConnAck).session_present


# --- is there a session


@pytest.mark.mqtt("MQTT-3.1.2-4", "MQTT-3.1.2-5", "MQTT-3.1.2-6", "MQTT-3.1.4-4", "MQTT-3.2.2-2", "MQTT-3.2.2-3")
@VERSIONS
def test_session_present(bench: Bench, version: int) -> None:
    client, present = resumed(bench, "a", version)
    assert not present
    client.disconnect()
    client, present = resumed(bench, "a", version)
    assert present
    client.lose()
    client, present = resumed(bench, "a", version, clean_start=True)
    assert not present


@pytest.mark.mqtt("3.1.1 MQTT-3.1.2-6")
def test_a_session_of_mqtt_3_1_1_outlives_its_connection_without_clean_session_only(bench: Bench) -> None:
    bench.connect("a", 4, clean_start=True).disconnect()
    assert not resumed(bench, "a", 4)[1]
    bench.connect("a", 4, clean_start=True).disconnect()
    assert not resumed(bench, "a", 4)[1]


@pytest.mark.mqtt("MQTT-4.1.0-2")
def test_a_session_of_mqtt_5_without_expiry_ends_with_its_connection(bench: Bench) -> None:
    bench.connect("a", clean_start=False).lose()
    assert not resumed(bench, "a")[1]


@pytest.mark.mqtt("MQTT-3.1.2-23", "MQTT-4.1.0-1", "MQTT-4.1.0-2")
def test_a_session_ends_after_its_expiry_interval(bench: Bench) -> None:
    client, _ = resumed(bench, "a", session_expiry_interval=100)
    bench.pass_time(1_000)
    client.lose()
    bench.pass_time(98)
    client, present = resumed(bench, "a", session_expiry_interval=100)
    assert present
    client.lose()
    bench.pass_time(101)
    assert not resumed(bench, "a")[1]
    assert bench.store.absent.expired == 1


@pytest.mark.mqtt("MQTT-4.1.0-2")
def test_a_session_ends_after_its_expiry_interval_across_restarts(bench: Bench) -> None:
    client, _ = resumed(bench, "a", session_expiry_interval=100)
    client.disconnect()
    bench.pass_time(60)
    bench.restart()
    bench.pass_time(30)
    client, present = resumed(bench, "a", session_expiry_interval=100)
    assert present
    client.disconnect()
    bench.pass_time(60)
    bench.restart()
    bench.pass_time(50)
    assert not resumed(bench, "a")[1]


def test_disconnect_may_change_the_expiry(bench: Bench) -> None:
    client, _ = resumed(bench, "a", session_expiry_interval=100)
    client.disconnect(session_expiry_interval=0)
    client, present = resumed(bench, "a", session_expiry_interval=100)
    assert not present
    client.disconnect(session_expiry_interval=1_000)
    bench.pass_time(900)
    assert resumed(bench, "a")[1]


def test_the_server_bounds_the_expiry(start_bench: StartBench) -> None:
    bench = start_bench(max_session_expiry_s=100)
    for version in (4, 5):
        client, _ = resumed(bench, "a", version, **({"session_expiry_interval": 0xFFFFFFFF} if version == 5 else {}))
        client.disconnect()
        bench.pass_time(101)
        assert not resumed(bench, "a", version, clean_start=False)[1]
        bench.connect("a", clean_start=True).disconnect()


def test_a_resumed_session_without_expiry_is_still_resumed(bench: Bench) -> None:
    """CONNECT without an expiry interval takes the session up, and ends it with the connection."""
    client, _ = resumed(bench, "a")
    client.subscribe("t", qos=1)
    client.lose()
    bench.connect("b").publish("t", b"1", qos=1)
    client, present = resumed(bench, "a", session_expiry_interval=None)
    assert present
    bench.connect("b").publish("t", b"2", qos=1)
    assert client.take() == [b"1", b"2"]
    client.lose()
    assert not resumed(bench, "a")[1]


@pytest.mark.mqtt("MQTT-3.1.2-4")
def test_a_clean_start_is_forgotten_after_a_restart_too(bench: Bench) -> None:
    """Otherwise the old subscriptions come back from the log."""
    client, _ = resumed(bench, "a")
    client.subscribe("t", qos=1)
    client.disconnect()
    bench.connect("a", clean_start=True).disconnect()
    bench.restart()
    client, present = resumed(bench, "a")
    assert not present
    bench.connect("b").publish("t", b"1", qos=1)
    assert client.payloads() == []


def test_a_session_that_ended_is_forgotten_after_a_restart_too(bench: Bench) -> None:
    client, _ = resumed(bench, "a")
    client.subscribe("t", qos=1)
    client.disconnect()
    resumed(bench, "a", session_expiry_interval=0)[0].disconnect()
    client, present = resumed(bench, "a")
    assert not present
    client.disconnect()
    bench.restart()
    client, present = resumed(bench, "a")
    assert present
    bench.connect("b").publish("t", b"1", qos=1)
    assert client.payloads() == []


# --- take-over


@pytest.mark.mqtt("MQTT-3.1.3-2", "MQTT-3.1.4-3", "MQTT-3.14.4-1", "3.1.1 MQTT-3.1.4-2")
@VERSIONS
def test_a_second_connection_takes_the_session_over(bench: Bench, version: int) -> None:
    first, _ = resumed(bench, "a", version)
    first.subscribe("t", qos=1)
    second, present = resumed(bench, "a", version)
    assert present
    assert first.is_closed
    if version == 5:
        assert first.one(Disconnect).reason_code is ReasonCode.SESSION_TAKEN_OVER
    publisher = bench.connect("b")
    publisher.publish("t", b"1", qos=1)
    assert first.received() == []
    assert second.take() == [b"1"]
    first.lose()
    publisher.publish("t", b"2", qos=1)
    assert second.take() == [b"2"]
    assert bench.broker.registry.taken_over == 1


def test_take_over_of_a_session_without_expiry_starts_a_new_one(bench: Bench) -> None:
    first = bench.connect("a")
    first.subscribe("t")
    second, present = resumed(bench, "a", session_expiry_interval=0)
    assert first.is_closed
    assert not present
    bench.connect("b").publish("t", b"1")
    assert second.received() == []


@VERSIONS
def test_take_over_while_the_first_waits_for_its_connack(start_bench: StartBench, disk: SlowDisk, version: int) -> None:
    bench = start_bench("sync")
    clients = [bench.client(version) for _ in range(3)]
    expiry = {"session_expiry_interval": 100} if version == 5 else {}
    for client in clients:
        client.send(connect_packet("a", version, clean_start=False, **expiry))
    disk.finish()
    bench.wait_safe()
    assert [client.is_closed for client in clients] == [True, True, False]
    busy = ReasonCode.SERVER_BUSY if version == 5 else ReasonCode.SERVER_UNAVAILABLE
    assert [client.one(ConnAck).reason_code for client in clients[:2]] == [busy, busy]
    assert clients[2].one(ConnAck).session_present


# --- what is waiting


def backlog(bench: Bench, count: int, qos: int = 1) -> list[bytes]:
    """Publishes that many messages to `t`."""
    publisher = bench.connect("publisher")
    payloads = [b"%d" % i for i in range(count)]
    for payload in payloads:
        publisher.publish_whole("t", payload, qos)
    return payloads


@pytest.mark.mqtt("MQTT-3.1.2-23", "MQTT-4.5.0-1", "3.1.1 MQTT-3.1.2-5")
@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("restart", [False, True])
def test_resumed_session_gets_messages_published_meanwhile(bench: Bench, version: int, qos: int, restart: bool) -> None:
    client, _ = resumed(bench, "a", version)
    client.subscribe("t", qos=qos)
    client.disconnect()
    payloads = backlog(bench, 300, qos)
    if restart:
        bench.restart()
    client, _ = resumed(bench, "a", version)
    assert client.take() == payloads
    client.disconnect()
    client, _ = resumed(bench, "a", version)
    assert client.take() == []


def test_qos_0_is_not_kept_unless_it_is_set(start_bench: StartBench) -> None:
    for queue_qos0, kept in ((False, [b"1"]), (True, [b"0", b"1"])):
        bench = start_bench(queue_qos0=queue_qos0)
        client, _ = resumed(bench, "a")
        client.subscribe("t", qos=1)
        client.disconnect()
        publisher = bench.connect("b")
        publisher.publish("t", b"0", qos=0)
        publisher.publish("t", b"1", qos=1)
        client, _ = resumed(bench, "a")
        assert client.take() == kept


@pytest.mark.mqtt("MQTT-3.3.1-1", "MQTT-4.3.2-1", "MQTT-4.3.2-3", "MQTT-4.4.0-1", "3.1.1 MQTT-4.4.0-1")
@VERSIONS
def test_qos_1_in_flight_is_sent_again_with_its_ids(bench: Bench, version: int) -> None:
    client, _ = resumed(bench, "a", version)
    client.subscribe("t", qos=1)
    payloads = backlog(bench, 5)
    sent = client.messages()
    assert [message.payload for message in sent] == payloads
    client.send(PubAck(sent[1].packet_id or 0), PubAck(sent[3].packet_id or 0))
    client.lose()
    backlog(bench, 1)
    client, _ = resumed(bench, "a", version)
    again = client.messages()
    expected = [(sent[i].packet_id, sent[i].payload, True) for i in (0, 2, 4)]
    assert [(message.packet_id, message.payload, message.dup) for message in again[:3]] == expected
    assert [(message.payload, message.dup) for message in again[3:]] == [(b"0", False)]
    assert again[3].packet_id not in [message.packet_id for message in again[:3]]


@pytest.mark.mqtt(
    "MQTT-3.3.1-1",
    "MQTT-4.3.3-1",
    "MQTT-4.3.3-3",
    "MQTT-4.3.3-4",
    "MQTT-4.3.3-5",
    "MQTT-4.3.3-6",
    "MQTT-4.4.0-1",
    "3.1.1 MQTT-4.4.0-1",
)
@VERSIONS
@pytest.mark.parametrize("restart", [False, True])
def test_qos_2_goes_on_where_it_was(bench: Bench, version: int, restart: bool) -> None:
    client, _ = resumed(bench, "a", version)
    client.subscribe("t", qos=2)
    backlog(bench, 4, qos=2)
    ids = [message.packet_id or 0 for message in client.messages()]
    client.send(PubRec(ids[1]), PubRec(ids[2]), PubRec(ids[3]))
    client.send(PubComp(ids[3]))
    assert client.received() == [PubRel(ids[1]), PubRel(ids[2]), PubRel(ids[3])]
    client.lose()
    if restart:
        bench.restart()
    client, _ = resumed(bench, "a", version)
    again = client.received()
    assert again == [Publish("t", b"0", QoS.EXACTLY_ONCE, dup=True, packet_id=ids[0]), PubRel(ids[1]), PubRel(ids[2])]
    client.send(PubRec(ids[0]), PubComp(ids[1]), PubComp(ids[2]))
    assert client.received() == [PubRel(ids[0])]
    client.send(PubComp(ids[0]))
    client.lose()
    if restart:
        bench.restart()
    client, _ = resumed(bench, "a", version)
    assert client.received() == []


def test_resent_messages_have_the_same_properties_as_before(bench: Bench) -> None:
    """Subscription identifiers, retain as published and properties."""
    client, _ = resumed(bench, "a")
    client.subscribe("t/#", qos=1, subscription_identifiers=(5,), retain_as_published=True)
    client.subscribe("+/x", qos=1, subscription_identifiers=(6,))
    client.subscribe("+/y", qos=1, subscription_identifiers=(7,))
    bench.connect("b").publish("t/x", b"1", qos=1, retain=True, content_type="text")
    sent = client.messages()
    client.lose()
    client, _ = resumed(bench, "a")
    again = client.messages()
    assert sorted(again[0].properties.subscription_identifiers) == [5, 6]
    for message in (*sent, *again):
        message.dup = True
        message.properties.subscription_identifiers = ()
    assert again == sent
    assert again[0].retain


@pytest.mark.mqtt("MQTT-3.3.4-9")
@pytest.mark.parametrize("qos", [1, 2])
def test_resent_messages_respect_a_smaller_receive_maximum(bench: Bench, qos: int) -> None:
    client, _ = resumed(bench, "a")
    client.subscribe("t", qos=qos)
    payloads = backlog(bench, 9, qos)
    assert client.payloads() == payloads
    client.lose()
    backlog(bench, 2, qos)
    client, _ = resumed(bench, "a", receive_maximum=2)
    seen, outstanding = [], 0
    while packets := client.received():
        arrived = [packet for packet in packets if isinstance(packet, Publish)]
        seen += [message.payload for message in arrived]
        outstanding += len(arrived)
        assert outstanding <= 2
        answers = [answer for packet in packets if (answer := acknowledgement(packet))]
        outstanding -= sum(isinstance(answer, PubAck | PubComp) for answer in answers)
        client.send(*answers)
    assert seen == [*payloads, b"0", b"1"]


def test_a_lost_connection_before_connack_loses_no_messages(start_bench: StartBench, disk: SlowDisk) -> None:
    bench = start_bench("sync")
    disk.finish()
    client = bench.client()
    client.send(connect_packet("a", clean_start=False, session_expiry_interval=100))
    bench.wait_safe()
    client.send(client.subscribe_packet("t", qos=1))
    bench.wait_safe()
    client.lose()
    publisher = bench.connect("b")
    publisher.publish("t", b"1", qos=1)
    bench.wait_safe()
    disk.stall()
    client = bench.client()
    client.send(connect_packet("a", clean_start=False, session_expiry_interval=100))
    client.lose()
    disk.finish()
    bench.wait_safe()
    client = bench.client()
    client.send(connect_packet("a", clean_start=False, session_expiry_interval=100))
    bench.wait_safe()
    assert client.first(ConnAck).session_present
    assert client.take() == [b"1"]


def test_connect_and_away_again_in_one_turn_loses_no_messages(bench: Bench) -> None:
    client, _ = resumed(bench, "a")
    client.subscribe("t", qos=1)
    client.lose()
    payloads = backlog(bench, 3)
    client = bench.client()
    client.feed(encode(connect_packet("a", clean_start=False, session_expiry_interval=100), 5))
    client.lose()
    bench.restart()
    assert resumed(bench, "a")[0].take() == payloads


@pytest.mark.mqtt("MQTT-3.8.4-4")
def test_subscribing_again_loses_nothing_of_the_backlog(bench: Bench) -> None:
    """As clients do on each connection, while they are still catching up."""
    client, _ = resumed(bench, "a", receive_maximum=2)
    client.subscribe("t", qos=1)
    client.lose()
    payloads = backlog(bench, 6)
    client, _ = resumed(bench, "a", receive_maximum=2)
    assert client.payloads() == payloads[:2]
    client.subscribe("t", qos=1)
    client.lose()
    client, _ = resumed(bench, "a", receive_maximum=2)
    client.subscribe("t", qos=1)
    assert client.take() == payloads


def test_a_subscription_that_is_gone_delivers_nothing_later(bench: Bench) -> None:
    client, _ = resumed(bench, "a")
    client.subscribe("t", "u", qos=1)
    client.send(Unsubscribe(1, ("t",)))
    assert client.received() == [UnsubAck(1, (ReasonCode.SUCCESS,))]
    client.lose()
    for restart in (False, True):
        bench.connect("b").publish("t", b"gone", qos=1)
        bench.connect("b").publish("u", b"kept", qos=1)
        if restart:
            bench.restart()
        client, _ = resumed(bench, "a")
        assert client.take() == [b"kept"]
        client.lose()


def test_a_replay_that_was_cut_off_repeats_nothing_else(bench: Bench) -> None:
    """The other subscriptions of the session go on where they were."""
    backlog(bench, 6)
    client, _ = resumed(bench, "a", receive_maximum=2)
    client.subscribe("u", qos=2)
    bench.connect("b").publish_whole("u", b"once", 2)
    assert client.take() == [b"once"]
    bench.pass_time(1)
    client.subscribe("t", qos=1, user_properties=(("penstock-from", "earliest"),))
    assert len(client.payloads()) == 2
    client.lose()
    client, _ = resumed(bench, "a", receive_maximum=2)
    assert b"once" not in client.take()


def test_properties_of_disconnect_from_a_client_are_taken(bench: Bench) -> None:
    client, _ = resumed(bench, "a")
    client.send(Disconnect(properties=Properties(user_properties=(("k", "v"),))))
    assert client.is_closed
    assert client.received() == []


def test_a_client_that_cannot_take_its_connack_leaves_nothing_behind(bench: Bench) -> None:
    """Its session is opened and let go of in one go; its will is not sent."""
    will = Will("w", b"gone")
    for fields in ({"session_expiry_interval": 0xFFFFFFFF, "will": will}, {"session_expiry_interval": 0xFFFFFFFF}):
        client = bench.client()
        client.send(connect_packet("a", clean_start=False, maximum_packet_size=6, **fields))
        assert client.one(ConnAck).reason_code is ReasonCode.PACKET_TOO_LARGE
        assert client.is_closed
    assert bench.stored() == []
    bench.connect("a", maximum_packet_size=8).subscribe("t")  # one that can, with what it needs not to know left out


def test_a_session_that_nobody_waits_for_any_more_is_let_go(bench: Bench) -> None:
    """Its client left while this gateway was waiting for it, and is waited for at another."""
    other = LocalStore.join(bench.hub, "other")
    answers: list[object] = []
    other.sessions.claim("a", False, answers.append)
    client = bench.client(4)
    client.send(connect_packet("a", 4, clean_start=False))
    client.lose()
    bench.run()
    other.sessions.release("a")
    bench.run()
    other.sessions.claim("a", False, answers.append)
    assert len(answers) == 2


def test_reconnected_client_stays_if_the_take_over_elsewhere_is_told_late(bench: Bench) -> None:
    """He went to another gateway, and that his session is wanted there is said when his new connection is here."""
    other = LocalStore.join(bench.hub, "other")
    answers: list[object] = []
    first = bench.connect("a")
    other.sessions.claim("a", False, answers.append)
    again = bench.client()
    again.feed(encode(connect_packet("a"), 5))
    bench.run()
    assert first.is_closed
    assert len(answers) == 1
    assert not again.is_closed
    other.sessions.release("a")
    bench.run()
    assert again.one(ConnAck).reason_code is ReasonCode.SUCCESS
