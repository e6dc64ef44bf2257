"""A subscription holds from when it is read: it has the messages read behind it in the same turn, not those before."""

from __future__ import annotations

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import PubAck, Publish, SubAck, Unsubscribe
from notify.api import Placed
from store.records._records import RecordBatch
from tests.support.mqtt_bench import Bench, Client


def fed(client: Client, *packets: object) -> None:
    client.feed(b"".join(encode(packet, 5) for packet in packets))  # type: ignore[arg-type]


@pytest.mark.mqtt("MQTT-4.5.0-1")
@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("topic_filter", ["t", "t/#", "#", "+", "$share/g/t"])
def test_messages_read_after_a_subscribe_are_delivered(
    bench: Bench, topic_filter: str, qos: int, is_durable: bool
) -> None:
    reader = bench.durable("reader") if is_durable else bench.connect("reader")
    publisher = bench.connect("publisher")
    fed(publisher, publisher.publish_packet("t", b"before", qos))
    fed(reader, reader.subscribe_packet(topic_filter, qos=qos))
    fed(publisher, publisher.publish_packet("t", b"behind", qos))
    bench.run()
    reader.first(SubAck)
    assert reader.take() == [b"behind"]


def test_so_are_messages_that_take_the_full_codec(bench: Bench) -> None:
    reader, publisher = bench.connect("reader"), bench.connect("publisher")
    reader_packet = reader.subscribe_packet("t", qos=1)
    fed(publisher, publisher.publish_packet("t", b"before", 1, retain=True))
    fed(reader, reader_packet)
    fed(publisher, publisher.publish_packet("t", b"behind", 1, topic_alias=1))
    bench.run()
    reader.first(SubAck)
    assert [(each.payload, each.retain) for each in reader.messages()] == [(b"before", True), (b"behind", False)]


def test_many_in_turns(bench: Bench) -> None:
    """Each of them holds from its own place on."""
    publisher = bench.connect("publisher")
    readers = [bench.connect(f"r{number}") for number in range(10)]
    for number, reader in enumerate(readers):
        fed(reader, reader.subscribe_packet("t"))
        fed(publisher, publisher.publish_packet("t", b"%d" % number))
    bench.run()
    for number, reader in enumerate(readers):
        reader.first(SubAck)
        assert reader.payloads() == [b"%d" % later for later in range(number, 10)]


def test_subscriptions_that_come_together_are_one_append(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = [bench.durable(f"r{number}") for number in range(8)]
    appends: list[object] = []
    store, append = bench.broker.store.appends, bench.broker.store.appends.append

    def counted(batch: RecordBatch, placed: Placed | None = None) -> None:
        appends.append(batch)
        append(batch, placed)

    monkeypatch.setattr(store, "append", counted)
    for reader in readers:
        fed(reader, reader.subscribe_packet("t", qos=1))
    bench.run()
    assert len(appends) < len(readers)  # a turn ends early on a machine that is busy
    for reader in readers:
        assert reader.first(SubAck).reason_codes == (1,)


def test_an_unsubscribe_holds_from_when_it_is_read_as_well(bench: Bench) -> None:
    reader, publisher = bench.connect("reader"), bench.connect("publisher")
    reader.subscribe("t")
    fed(publisher, publisher.publish_packet("t", b"before"))
    fed(reader, Unsubscribe(9, ("t",)))
    fed(publisher, publisher.publish_packet("t", b"behind", 1))
    bench.run()
    publisher.one(PubAck)
    assert b"behind" not in [each.payload for each in reader.received() if isinstance(each, Publish)]
