"""How long messages were on their way: what is counted, and what would say nothing."""

from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from gateway.mqtt._mqtt import DELIVERY_BOUNDS_MS
from gateway.mqtt.packets import PubAck
from gateway.observe.metrics import read_steps
from penstock.servers.prometheus import FigureCollector
from tests.support.mqtt_bench import Bench, WallClock


def registry_of(bench: Bench) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(FigureCollector(lambda: read_steps(bench.broker, None)))
    return registry


def samples(bench: Bench) -> dict[str, float]:
    """The histogram's samples by their name, those of buckets by their bound."""
    (family,) = (
        each for each in parse(generate_latest(registry_of(bench)).decode()) if each.name == "penstock_delivery_seconds"
    )
    return {
        sample.labels.get("le", sample.name.removeprefix("penstock_delivery_seconds_")): sample.value
        for sample in family.samples
    }


def counted(bench: Bench) -> int:
    return int(samples(bench)["count"])


def test_delivery_time_histogram_has_buckets_count_and_sum(bench: Bench) -> None:
    reader, device = bench.connect("reader"), bench.connect("device")
    reader.subscribe("a")
    device.publish("a", b"1")
    found = samples(bench)
    bounds = [str(bound / 1000) for bound in DELIVERY_BOUNDS_MS]
    assert list(found) == [*bounds, "+Inf", "count", "sum"]
    assert all(before <= after for before, after in pairwise([found[bound] for bound in [*bounds, "+Inf"]]))
    assert found["+Inf"] == found["count"] == 1
    families = parse_openmetrics(generate_openmetrics(registry_of(bench)).decode())
    assert "penstock_delivery_seconds" in {family.name for family in families}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_delivery_counts_once(bench: Bench, qos: int) -> None:
    """Shared ones, those to who has a packet identifier, and those to who reads several queues."""
    device = bench.connect("device")
    readers = [bench.connect(f"reader-{i}", version) for i, version in enumerate((4, 4, 5, 5))]
    for i, reader in enumerate(readers):
        reader.subscribe("a", *["a/+"][: i % 2], qos=qos)
    for number in range(3):
        device.publish_whole("a", b"%d" % number, qos)
    for reader in readers:
        assert reader.take() == [b"0", b"1", b"2"]
    assert counted(bench) == 12


def test_delivery_time_begins_when_the_store_had_the_message(bench: Bench) -> None:
    reader, device = bench.connect("reader", receive_maximum=1), bench.connect("device")
    reader.subscribe("a", qos=1)
    device.publish_whole("a", b"1", 1)
    device.publish_whole("a", b"2", 1)
    (message,) = reader.messages()
    assert counted(bench) == 1
    bench.pass_time(3)
    reader.send(PubAck(message.packet_id or 0))
    found = samples(bench)
    assert (found["2.5"], found["5.0"], found["count"]) == (1, 2, 2)
    assert 3 <= found["sum"] < 5


def test_a_store_whose_clock_is_ahead(bench: Bench, clock: WallClock) -> None:
    reader, device = bench.connect("reader", receive_maximum=1), bench.connect("device")
    reader.subscribe("a", qos=1)
    device.publish_whole("a", b"1", 1)
    clock.ahead_s += 100
    device.publish_whole("a", b"2", 1)
    clock.ahead_s -= 100
    (message,) = reader.messages()
    reader.send(PubAck(message.packet_id or 0))
    assert reader.take() == [b"2"]
    found = samples(bench)
    assert found["count"] == 2
    assert found["sum"] < 5


def test_delivery_time_of_messages_that_waited_for_their_subscriber_is_not_counted(bench: Bench) -> None:
    """A session that was away, a retained message, a replay, what is sent again: hours, and nobody's fault."""
    device, away = bench.connect("device"), bench.durable("away")
    away.subscribe("a", qos=2)
    away.lose()
    for qos in range(3):
        device.publish_whole("a", b"%d" % qos, qos, retain=True)
    bench.pass_time(10)
    back = bench.durable("away")
    back.lose()
    back = bench.durable("away")
    assert back.take() == [b"1", b"2"]
    late = bench.connect("late")
    late.subscribe("a", qos=1)
    assert late.take() == [b"2"]
    replaying = bench.connect("replaying")
    replaying.subscribe("a", qos=1, user_properties=(("penstock-from", "earliest"),))
    assert replaying.take() != []
    assert counted(bench) == 0
    device.publish("a", b"now")
    assert counted(bench) == 3
