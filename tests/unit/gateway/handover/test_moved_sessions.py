"""Sessions go on in another gateway process as if nothing had been: it has their state, and the old one's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gateway.broker import Broker
from gateway.handover.connections import handed_connection, put_into_connection
from gateway.handover.sessions import PlaceOf, QueueOf, RefOf, SeatOf, SessionParts, has_under_way, taken_session
from gateway.handover.state import HandedConnection, decode_batch, encode_batch
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel, QoS, Will
from gateway.mqtt.properties import Properties
from gateway.sessions.connection import Connection, Entrance, Phase
from lightqueue.message_store import MessageStore
from notify.api import GroupConsumer, LeasedMessages
from notify.local.handed import EnteredStore, HandedLocalStore, LeavingStore
from notify.local.hub import Hub
from notify.local.store import LocalStore
from notify.remote.handed import HandedStore
from store.records._records import RecordBatch
from store.records.records import RecordType
from tests.support.mqtt_bench import MOST_CLIENTS, Bench, Client, WallClock

WINDOW = 3


@pytest.fixture(params=[True, False], ids=["apart", "with its store"])
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(tmp_path, WallClock(monkeypatch), apart=request.param)
    yield bench
    bench.close()


def hand_over(bench: Bench, *clients: Client, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Have another gateway process take all connections, over the same store or with it. `meanwhile`: what is done
    while neither serves.
    """
    if bench.wire is None:
        _hand_over_with_store(bench, clients, meanwhile)
        return
    old = bench.wire.gateway
    old.hold()
    bench.broker.shared.hold()
    bench.run()
    assert bench.broker.journal.is_settled
    assert not old.has_under_way
    places = old.groups.places()
    packed = _packed(clients, old.queues.ref_of, places.__getitem__)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(old.handed()), type=HandedStore)
    store = bench.wire.replace_gateway()
    store.take_over(state)
    meanwhile()
    bench.broker = Broker(store, bench.settings, bench.loop)

    def seat_of(place: int, handed_to: Callable[[LeasedMessages], None]) -> GroupConsumer:
        return store.groups.take_over(state.consumers[place], handed_to)

    _take(bench, clients, packed, store.queues.taken, seat_of)
    bench.wire.connect()
    store.queues.drop_unread()
    _go_on(bench)


def _hand_over_with_store(bench: Bench, clients: tuple[Client, ...], meanwhile: Callable[[], object]) -> None:
    bench.run()
    bench.broker.shared.hold()
    bench.pass_time()
    bench.wait_safe()
    assert bench.broker.journal.is_settled
    leaving = LeavingStore()
    packed = _packed(clients, leaving.ref_of, leaving.place_of)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(leaving.handed()), type=HandedLocalStore)
    bench.broker.close()
    bench.store.close()
    known_to = bench.store.end
    bench.store = MessageStore(bench.store_settings)
    bench.hub = Hub(bench.store, goes_on="gateway")
    store = LocalStore.join(bench.hub, "gateway")
    bench.broker = broker = Broker(store, bench.settings, bench.loop)
    meanwhile()
    entered = EnteredStore(bench.hub, store, state)
    _take(bench, clients, packed, entered.queue_of, entered.seat_of)
    entered.go_on(broker.store_events, broker.registry.sessions, known_to)
    _go_on(bench)


def _packed(clients: tuple[Client, ...], ref_of: RefOf, place_of: PlaceOf) -> list[HandedConnection]:
    assert not any(has_under_way(client.connection.session) for client in clients)
    packed = [handed_connection(client.connection, 0, ref_of, place_of) for client in clients]
    return decode_batch(encode_batch(packed))


def _take(
    bench: Bench, clients: tuple[Client, ...], packed: list[HandedConnection], queue_of: QueueOf, seat_of: SeatOf
) -> None:
    broker = bench.broker
    parts = SessionParts(broker.deliverer, broker.shared, broker.subscriptions.retained, queue_of, seat_of)
    for client, handed in zip(clients, packed, strict=True):
        client.connection = connection = Connection(broker.connections, Entrance(MOST_CLIENTS))
        connection.connection_made(client.transport)
        broker.places.tenants.enter_again(connection, handed.namespace)
        connection.enter(Phase.OPEN)
        connection.max_packet_in = bench.settings.maximum_packet_size_bytes
        assert handed.session is not None
        session = taken_session(handed.session, connection, parts)
        broker.registry.sessions[session.client_id] = session
        broker.connections.table.opened(connection)
        put_into_connection(handed, connection)
        assert not client.transport.closed


def _go_on(bench: Bench) -> None:
    broker = bench.broker
    broker.deliverer.room(list(broker.registry.sessions.values()))
    broker.shared.go_on()
    broker.turn.request()
    bench.run()


def ids(packets: list[Publish]) -> list[int]:
    return [each.packet_id or 0 for each in packets]


def test_hand_over_neither_loses_nor_repeats_messages(bench: Bench) -> None:
    publisher, reader = bench.connect("p"), bench.durable("r")
    for qos, topic in enumerate("abc"):
        reader.subscribe(topic, qos=qos)
        publisher.publish_whole(topic, b"before", qos=2)
    before = reader.messages()
    assert [int(each.qos) for each in before] == [0, 1, 2]
    hand_over(bench, publisher, reader)
    assert not reader.received()
    for topic in "abc":
        publisher.publish_whole(topic, b"after", qos=2)
    after = reader.messages()
    assert [(each.topic_name, each.payload, each.dup) for each in after] == [(t, b"after", False) for t in "abc"]
    assert not set(ids(after[1:])) & set(ids(before[1:]))
    one, two = ids(before[1:])
    reader.send(PubAck(one), PubRec(two))
    assert reader.received() == [PubRel(two)]
    hand_over(bench, publisher, reader)
    reader.send(PubComp(two))
    reader.lose()
    again = bench.durable("r").messages()
    assert [(each.payload, each.packet_id, each.dup) for each in again] == [
        (b"after", id_, True) for id_ in ids(after)[1:]
    ]


def test_a_publish_of_qos_2_is_stored_once(bench: Bench) -> None:
    publisher = bench.connect("p")
    packet_id = publisher.publish("t", b"once", qos=2) or 0
    assert publisher.one(PubRec) == PubRec(packet_id)
    hand_over(bench, publisher)
    publisher.send(Publish("t", b"once", QoS.EXACTLY_ONCE, dup=True, packet_id=packet_id))
    assert publisher.one(PubRec) == PubRec(packet_id)
    publisher.send(PubRel(packet_id))
    assert publisher.one(PubComp) == PubComp(packet_id)
    assert [each.payload for each in bench.stored()] == [b"once"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_window_goes_on_with_the_next_message(bench: Bench, qos: int) -> None:
    reader, publisher = bench.connect("r", receive_maximum=WINDOW), bench.connect("p")
    reader.subscribe("t", qos=qos)
    for number in range(8):
        publisher.publish_whole("t", b"%d" % number, qos=2)
    sent = reader.messages()
    assert len(sent) == WINDOW
    hand_over(bench, reader, publisher)
    for each in sent:
        reader.send(PubAck(each.packet_id or 0) if qos == 1 else PubRec(each.packet_id or 0))
        if qos == 2:
            reader.first(PubRel)
            reader.send(PubComp(each.packet_id or 0))
    assert reader.take() == [b"%d" % number for number in range(WINDOW, 8)]


def test_the_rest_of_a_packet_comes_to_the_other_process(bench: Bench) -> None:
    client = bench.connect("c")
    packet = encode(client.publish_packet("t", b"payload", 1), 5)
    client.send_bytes(packet[:-3])
    hand_over(bench, client)
    client.send_bytes(packet[-3:])
    assert client.one(PubAck).reason_code == 0
    assert [each.payload for each in bench.stored()] == [b"payload"]


def test_topic_aliases_stay_in_both_directions(bench: Bench) -> None:
    client = bench.connect("c", topic_alias_maximum=5)
    client.subscribe("a/long/topic/name", qos=0)
    client.publish("a/long/topic/name", b"1", topic_alias=3)
    assert client.one(Publish).properties.topic_alias == 1
    hand_over(bench, client)
    client.send(Publish("", b"2", properties=Properties(topic_alias=3)))
    sent = client.one(Publish)
    assert (sent.topic_name, sent.properties.topic_alias, sent.payload) == ("", 1, b"2")


def test_retained_messages_go_on_where_the_client_had_come_to(bench: Bench) -> None:
    publisher = bench.connect("p")
    for number in range(700):  # more than a page
        publisher.publish(f"kept/{number:03}", b"%d" % number, qos=1, retain=True)
    reader = bench.connect("r", receive_maximum=10)
    reader.subscribe("kept/#", qos=1)
    first = reader.messages()
    assert len(first) == 10
    hand_over(bench, reader)
    for each in first:
        reader.send(PubAck(each.packet_id or 0))
    rest = reader.take()
    assert [*(each.payload for each in first), *rest] == [b"%d" % number for number in range(700)]


def test_a_replay_goes_on(bench: Bench) -> None:
    publisher = bench.connect("p")
    for number in range(300):
        publisher.publish(f"t/{number % 3}", b"%d" % number + bytes(3_000), qos=1)
    reader = bench.connect("r", receive_maximum=10)
    reader.subscribe("+/+", qos=1, user_properties=(("penstock-from", "earliest"),))
    first = reader.messages()
    assert len(first) == 10
    hand_over(bench, reader, publisher)
    publisher.publish("t/1", b"300", qos=1)
    for each in first:
        reader.send(PubAck(each.packet_id or 0))
    numbers = [int(each.rstrip(b"\0")) for each in [*(each.payload for each in first), *reader.take()]]
    assert numbers == list(range(301))


@pytest.mark.parametrize("qos", [1, 2])
def test_a_shared_subscription_has_its_messages_once(bench: Bench, qos: int) -> None:
    publisher, worker = bench.connect("p"), bench.connect("w", receive_maximum=WINDOW)
    worker.subscribe("$share/g/t", qos=qos)
    for number in range(8):
        publisher.publish_whole("t", b"%d" % number, qos=2)
    sent = worker.messages()
    assert len(sent) == WINDOW
    hand_over(bench, publisher, worker)
    assert not worker.received()
    for each in sent:
        worker.send(PubAck(each.packet_id or 0) if qos == 1 else PubRec(each.packet_id or 0))
        if qos == 2:
            worker.first(PubRel)
            worker.send(PubComp(each.packet_id or 0))
    assert worker.take() == [b"%d" % number for number in range(WINDOW, 8)]
    worker.disconnect()
    another = bench.connect("another")
    another.subscribe("$share/g/t", qos=1)
    assert not another.messages()


def test_no_will_is_sent_before_the_client_is_gone(bench: Bench) -> None:
    watcher = bench.connect("watcher")
    watcher.subscribe("will", qos=1)
    client = bench.connect("c", will=Will("will", b"gone", QoS.AT_LEAST_ONCE))
    hand_over(bench, watcher, client)
    assert not watcher.messages()
    client.lose()
    assert watcher.payloads() == [b"gone"]


def test_a_tenant_stays_in_its_namespace(bench: Bench) -> None:
    inside, outside = bench.connect("c", namespace="acme"), bench.connect("c")
    for client in (inside, outside):
        client.subscribe("t", qos=1)
    hand_over(bench, inside, outside)
    inside.publish("t", b"of acme")
    assert inside.payloads() == [b"of acme"]
    assert not outside.received()
    (tenant,) = bench.broker.places.tenants
    assert (tenant.names.name, tenant.connections) == ("acme", 1)
    inside.lose()
    assert not tenant.connections


def test_queues_that_nobody_reads_any_more_are_not_followed_on(bench: Bench) -> None:
    reader, other = bench.connect("r"), bench.connect("o")
    reader.subscribe("one")
    other.subscribe("two")
    hand_over(bench, reader)
    queues = {each: bench.store.queues.topic_queue(each.encode()) for each in ("one", "two")}
    assert {topic: queue.watchers for topic, queue in queues.items()} == {"one": 1, "two": 0}


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_stored_while_neither_process_serves_come_once(bench: Bench, qos: int) -> None:
    """To clean sessions too, whose queue was in the memory of a store that goes with its gateway."""
    slow, reader, publisher = bench.connect("s", receive_maximum=WINDOW), bench.connect("r"), bench.connect("p")
    for client in (slow, reader):
        client.subscribe("+/x", qos=qos)
    for number in range(8):
        publisher.publish_whole("t/x", b"%d" % number, qos=2)
    assert reader.take() == [b"%d" % number for number in range(8)]
    sent = slow.messages()
    assert len(sent) == WINDOW
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, b"8", topic=b"t/x", flags=qos)
    hand_over(bench, slow, reader, meanwhile=lambda: bench.store.append(batch))
    bench.hub.tell_changes()
    bench.run()
    bench.wait_safe()
    assert reader.take() == [b"8"]
    for each in sent:
        slow.send(PubAck(each.packet_id or 0) if qos == 1 else PubRec(each.packet_id or 0))
        if qos == 2:
            slow.first(PubRel)
            slow.send(PubComp(each.packet_id or 0))
    assert slow.take() == [b"%d" % number for number in range(WINDOW, 9)]
