"""Messages that clients publish: QoS 1 and 2 towards the gateway, topic aliases, and how much may be outstanding."""

from functools import partial
from pathlib import Path

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import ConnAck, Disconnect, PubAck, PubComp, Publish, PubRec, PubRel, QoS
from gateway.mqtt.reason_codes import ReasonCode
from store.errors import StoreFull
from tests.support.mqtt_bench import Bench, SlowDisk, connect_packet
from tests.unit.conftest import StartBench

VERSIONS = pytest.mark.parametrize("version", [4, 5])


@pytest.mark.mqtt("MQTT-2.2.1-5", "MQTT-3.3.4-1", "MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-4.3.2-4", "MQTT-4.3.3-8")
@VERSIONS
def test_each_qos_is_answered_and_stored(bench: Bench, version: int) -> None:
    client = bench.connect("a", version)
    for qos in (0, 1, 2):
        client.publish_whole("t/x", b"payload %d" % qos, qos, retain=qos == 1)
    assert client.received() == []
    assert [(r.topic, r.payload, r.qos, r.retain, r.client_id) for r in bench.stored()] == [
        (b"t/x", b"payload 0", 0, False, b"a"),
        (b"t/x", b"payload 1", 1, True, b"a"),
        (b"t/x", b"payload 2", 2, False, b"a"),
    ]


@pytest.mark.mqtt("MQTT-4.3.3-10", "MQTT-4.3.3-11", "MQTT-4.3.3-12")
@VERSIONS
def test_qos_2_is_stored_once_however_often_it_comes(bench: Bench, version: int) -> None:
    client = bench.connect("a", version)
    message = Publish("t", b"once", QoS.EXACTLY_ONCE, packet_id=7)
    again = Publish("t", b"once", QoS.EXACTLY_ONCE, packet_id=7, dup=True)
    client.send(message, again)
    client.send(again)
    assert client.received() == [PubRec(7)] * 3
    client.send(PubRel(7))
    assert client.received() == [PubComp(7)]
    assert len(bench.stored()) == 1
    client.send(message)
    assert client.received() == [PubRec(7)]
    assert len(bench.stored()) == 2


@pytest.mark.mqtt("MQTT-4.3.3-10")
@VERSIONS
def test_qos_2_is_stored_once_across_connections_and_restarts(bench: Bench, version: int) -> None:
    message = Publish("t", b"once", QoS.EXACTLY_ONCE, packet_id=7, dup=True)
    client = bench.durable("a", version)
    client.send(message)
    client.lose()
    client = bench.durable("a", version)
    client.send(message)
    assert client.received() == [PubRec(7)]
    bench.restart()
    client = bench.durable("a", version)
    client.send(message, PubRel(7))
    assert client.received() == [PubRec(7), PubComp(7)]
    assert len(bench.stored()) == 1
    bench.restart()
    client = bench.durable("a", version)
    client.send(PubRel(7), message)
    answer = PubComp(7, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else ReasonCode.SUCCESS)
    assert client.received() == [answer, PubRec(7)]
    assert len(bench.stored()) == 2


@pytest.mark.mqtt("MQTT-3.1.2-4")
def test_a_clean_start_forgets_packet_ids(bench: Bench) -> None:
    message = Publish("t", b"1", QoS.EXACTLY_ONCE, packet_id=7)
    bench.durable("a").send(message)
    bench.connect("a", clean_start=True).send(message)
    assert len(bench.stored()) == 2


def test_packet_ids_are_each_clients_own(bench: Bench) -> None:
    one, other = bench.connect("one"), bench.connect("other")
    for client in (one, other):
        client.send(Publish("t", b"", QoS.EXACTLY_ONCE, packet_id=7))
    assert len(bench.stored()) == 2
    one.send(PubRel(7))
    assert one.received() == [PubRec(7), PubComp(7)]
    assert other.received() == [PubRec(7)]


def test_acknowledgements_keep_their_order(bench: Bench) -> None:
    client = bench.connect("a")
    client.send(*[Publish("t", b"%d" % i, QoS(1 + i % 2), packet_id=i) for i in range(1, 101)])
    answers = client.received()
    for answer in (PubAck, PubRec):
        ids = [packet.packet_id for packet in answers if isinstance(packet, answer)]
        assert ids == sorted(ids)
    assert len(answers) == 100
    assert [record.payload for record in bench.stored()] == [b"%d" % i for i in range(1, 101)]


@pytest.mark.mqtt("MQTT-4.3.2-4", "MQTT-4.3.3-8")
@VERSIONS
@pytest.mark.catalogue("G23")
def test_publish_is_not_acknowledged_before_it_is_safe(start_bench: StartBench, disk: SlowDisk, version: int) -> None:
    bench = start_bench("sync")
    client = bench.connect("a", version)
    client.publish("t", b"1", qos=1)
    client.publish("t", b"2", qos=2)
    assert client.received() == []
    disk.finish()
    bench.wait_safe()
    assert client.received() == [PubAck(1), PubRec(2)]


def test_a_disk_that_does_not_answer_is_an_error_in_mqtt_5(
    start_bench: StartBench, disk: SlowDisk, caplog: pytest.LogCaptureFixture
) -> None:
    bench = start_bench("sync")
    v5, v4 = bench.connect("a"), bench.connect("b", 4)
    for client in (v5, v4):
        client.publish("t", b"1", qos=1)
        client.publish("t", b"2", qos=2)
    bench.pass_time(6)
    who = "the store is connected, and did not confirm what" if bench.apart else "the disk did not confirm a flush"
    assert who in caplog.text
    assert v5.first(PubAck).reason_code is ReasonCode.UNSPECIFIED_ERROR
    # In another process the store may have it, and may not get to know that its identifier is free.
    (end,) = v5.received()
    assert end == (Disconnect if bench.apart else partial(PubRec, 2))(ReasonCode.UNSPECIFIED_ERROR)
    assert v4.received() == []
    assert v4.is_closed


# --- receive maximum of the server


def test_more_than_receive_maximum_unanswered_is_an_error_in_mqtt_5(start_bench: StartBench, disk: SlowDisk) -> None:
    bench = start_bench("sync", receive_maximum=2)
    client = bench.client()
    assert client.connect("a").properties.receive_maximum == 2
    client.publish("t", qos=1)
    client.publish("t", qos=1)
    client.publish("t", qos=0)
    assert not client.is_closed
    client.publish("t", qos=1)
    assert client.one(Disconnect).reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    disk.finish()
    bench.wait_safe()
    assert len(bench.stored()) == 3


def test_acknowledgements_give_the_quota_back(start_bench: StartBench) -> None:
    bench = start_bench(receive_maximum=2)
    client = bench.connect("a")
    for _ in range(10):
        client.send(client.publish_packet("t", qos=1), client.publish_packet("t", qos=1))
        assert len(client.received()) == 2
        client.publish_whole("t", qos=2)
        assert not client.is_closed


def test_qos_2_counts_until_pubcomp(start_bench: StartBench) -> None:
    bench = start_bench(receive_maximum=2)
    client = bench.connect("a")
    for packet_id in (1, 2):
        client.send(Publish("t", qos=QoS.EXACTLY_ONCE, packet_id=packet_id))
    client.send(Publish("t", qos=QoS.EXACTLY_ONCE, packet_id=2, dup=True))
    assert client.received() == [PubRec(1), PubRec(2), PubRec(2)]
    client.send(PubRel(1), Publish("t", qos=QoS.EXACTLY_ONCE, packet_id=3))
    assert client.received() == [PubComp(1), PubRec(3)]
    client.send(Publish("t", qos=QoS.EXACTLY_ONCE, packet_id=4))
    assert client.one(Disconnect).reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_mqtt_3_1_1_knows_of_no_receive_maximum(start_bench: StartBench, disk: SlowDisk) -> None:
    bench = start_bench("sync", receive_maximum=2)
    client = bench.connect("a", 4)
    for _ in range(50):
        client.publish("t", qos=1)
        client.publish("t", qos=2)
    disk.finish()
    bench.wait_safe()
    assert not client.is_closed
    assert len(client.received()) == len(bench.stored()) == 100


# --- topic aliases


@pytest.mark.mqtt("MQTT-3.3.2-12")
def test_topic_aliases(bench: Bench) -> None:
    client = bench.connect("a")
    for qos in (0, 1, 2):
        client.publish_whole(f"topic/{qos}", b"named", qos, topic_alias=1)
        client.publish_whole("", b"by alias", qos, topic_alias=1)
    client.publish("other", b"second", topic_alias=16)
    client.publish("", b"first", topic_alias=1)
    assert [(record.topic, record.payload) for record in bench.stored()] == [
        (b"topic/0", b"named"),
        (b"topic/0", b"by alias"),
        (b"topic/1", b"named"),
        (b"topic/1", b"by alias"),
        (b"topic/2", b"named"),
        (b"topic/2", b"by alias"),
        (b"other", b"second"),
        (b"topic/2", b"first"),
    ]
    assert {record.properties for record in bench.stored()} == {b""}


@pytest.mark.mqtt("MQTT-3.3.2-7")
def test_a_topic_alias_is_its_connections_own(bench: Bench) -> None:
    client = bench.durable("a")
    client.publish("topic", topic_alias=1)
    client.lose()
    client = bench.durable("a")
    client.publish("", topic_alias=1)
    assert client.one(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR
    assert len(bench.stored()) == 1


def test_topic_aliases_hold_so_many_bytes(start_bench: StartBench) -> None:
    """16 of 64 KB each were a MiB for every connection. An alias that gets another name lets go of the old one."""
    bench = start_bench(topic_alias_bytes=1_024)
    client = bench.connect("a")
    for alias in (1, 1, 2, 1):
        client.publish("é" * 250, topic_alias=alias)
    assert not client.is_closed
    client.publish("x" * 25, topic_alias=3)
    told = client.one(Disconnect)
    assert told.reason_code is ReasonCode.QUOTA_EXCEEDED
    assert "gateway.topic_alias_bytes" in (told.properties.reason_string or "")
    assert len(bench.stored()) == 4


def test_topic_aliases_may_be_off(start_bench: StartBench) -> None:
    bench = start_bench(topic_alias_maximum=0)
    client = bench.client()
    assert client.connect("a").properties.topic_alias_maximum is None
    client.publish("t", topic_alias=1)
    assert client.one(Disconnect).reason_code is ReasonCode.TOPIC_ALIAS_INVALID


# --- many in one turn


def test_a_turn_that_grows_large_is_stored_in_parts(bench: Bench) -> None:
    """Whatever packets make it grow: their sum must never exceed what one append can take."""
    sub = bench.connect("sub")
    sub.subscribe("t")
    clients = [bench.connect(f"c{i}") for i in range(24)]
    payload = bytes(200_000)
    for client in clients:
        client.feed(encode(Publish("t", payload, QoS.EXACTLY_ONCE, packet_id=1), 5))
        assert bench.broker.turn.batch.size < 2 << 20
    bench.run()
    assert len(bench.stored()) == len(sub.messages()) == 24
    assert all(client.received() == [PubRec(1)] for client in clients)


def test_connect_publish_and_receive_in_one_turn(bench: Bench) -> None:
    """CONNECT, publishing and receiving by several clients, before the loop comes round."""
    away = bench.durable("away")
    away.subscribe("t", qos=0)
    away.lose()
    sub = bench.connect("sub")
    sub.subscribe("t", qos=1)
    pub = bench.connect("pub")
    away = bench.client()
    away.feed(encode(connect_packet("away", clean_start=False, session_expiry_interval=9), 5))
    pub.feed(encode(Publish("t", b"1"), 5))
    sub.feed(encode(Publish("t", b"2", QoS.AT_LEAST_ONCE, packet_id=1), 5))
    bench.run()
    assert away.first(ConnAck).session_present
    assert [p.payload for p in sub.received() if isinstance(p, Publish)] == [b"1", b"2"]
    pub.publish("t", b"3")
    assert away.payloads()[-1:] == [b"3"]


# --- a store that takes nothing


WAYS_IN = ("append", "append_in_steps")  # of a gateway in this process, and of one elsewhere


def refuse_append(*_: object) -> None:
    raise StoreFull(Path("here"))


def refuse_appends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for way in WAYS_IN:
        monkeypatch.setattr(bench.store, way, refuse_append)


def take_appends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for way in WAYS_IN:
        monkeypatch.setattr(bench.store, way, getattr(type(bench.store), way).__get__(bench.store))


@pytest.mark.mqtt("MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-4.3.3-9")
@VERSIONS
def test_a_full_store_refuses_and_nothing_is_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    message = Publish("t", b"1", QoS.EXACTLY_ONCE, packet_id=7)
    client = bench.durable("a", version)
    refuse_appends(bench, monkeypatch)
    client.send(Publish("t", b"0", QoS.AT_LEAST_ONCE, packet_id=6), message)
    if version == 5:
        full = ReasonCode.QUOTA_EXCEEDED
        assert client.received() == [PubAck(6, full), PubRec(7, full)]
    else:
        assert client.received() == []
        assert client.is_closed
    client.lose()
    take_appends(bench, monkeypatch)
    bench.pass_time(1)
    client = bench.durable("a", version)
    client.send(message, PubRel(7))
    assert client.received() == [PubRec(7), PubComp(7)]
    assert [record.payload for record in bench.stored()] == [b"1"]


@VERSIONS
def test_an_end_that_was_not_stored_is_not_told_of_a_session_that_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    client = bench.durable("a", version)
    refuse_appends(bench, monkeypatch)
    client.lose()
    take_appends(bench, monkeypatch)
    client = bench.durable("a", version)
    bench.pass_time(2)
    assert _is_connected(bench)
    client.lose()
    bench.pass_time(2)
    assert not _is_connected(bench)


@VERSIONS
def test_qos2_message_withheld_by_a_full_store_is_sent_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """A message of QoS 2 is read, but the log takes no word of its being in flight, and then that the session ended."""
    subscriber = bench.durable("a", version)
    subscriber.subscribe("t", qos=2)
    publisher = bench.connect("b")
    store = type(bench.store).append.__get__(bench.store)
    taken: list[object] = []

    def store_one(batch: object, *_: object) -> object:
        if taken:
            raise StoreFull(Path("here"))
        taken.append(store(batch))
        return taken[0]

    for way in WAYS_IN:
        monkeypatch.setattr(bench.store, way, store_one)
    publisher.publish("t", b"1", qos=2)
    bench.run()
    assert subscriber.is_closed
    subscriber.lose()
    take_appends(bench, monkeypatch)
    bench.pass_time(2)
    subscriber = bench.durable("a", version)
    assert subscriber.payloads() == [b"1"]


def _is_connected(bench: Bench) -> bool:
    state = bench.hub.messages.sessions.get("a")
    assert state is not None
    return state.connected


def test_refusals_do_not_use_up_the_receive_maximum(start_bench: StartBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = start_bench(receive_maximum=2)
    client = bench.connect("a")
    refuse_appends(bench, monkeypatch)
    for _ in range(10):
        client.publish("t", qos=1)
        client.publish("t", qos=2)
        assert [packet.reason_code for packet in client.received()] == [ReasonCode.QUOTA_EXCEEDED] * 2  # type: ignore[union-attr]


def test_a_subscription_that_cannot_be_stored_is_not_granted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bench.durable("a")
    refuse_appends(bench, monkeypatch)
    client.send(client.subscribe_packet("t", qos=1))
    assert client.one(Disconnect).reason_code is ReasonCode.QUOTA_EXCEEDED


@VERSIONS
def test_a_session_that_cannot_be_stored_is_not_opened(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    refuse_appends(bench, monkeypatch)
    client = bench.client(version)
    client.send(
        connect_packet("a", version, clean_start=False, **({"session_expiry_interval": 9} if version == 5 else {}))
    )
    reason_code = ReasonCode.QUOTA_EXCEEDED if version == 5 else ReasonCode.SERVER_UNAVAILABLE
    assert client.one(ConnAck).reason_code is reason_code
    assert client.is_closed
