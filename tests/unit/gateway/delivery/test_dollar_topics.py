"""Topics that begin with $: those of the server are its own, all others are topics that no wildcard stands for."""

from __future__ import annotations

import pytest

from gateway.mqtt.packets import ConnAck, PubAck, Will
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, connect_packet
from tests.unit.conftest import StartBench


@pytest.mark.mqtt("MQTT-4.7.2-1")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic", ["$foo/x", "$", "$SYSTEM/a", "$ns/a", "$deadly"])
def test_other_topics_with_a_dollar_are_delivered_but_not_to_leading_wildcards(
    bench: Bench, version: int, topic: str
) -> None:
    publisher, level = bench.connect("publisher"), topic.partition("/")[0]
    names = (topic, f"{level}/#", f"$share/g/{level}/#", "#", "+/x", "+", "+/#", "$share/g/#")
    clients = {name: bench.connect(f"c{i}", 5 if "share" in name else version) for i, name in enumerate(names)}
    for name, client in clients.items():
        client.subscribe(name, qos=1)
    publisher.publish_whole(topic, b"1", 1, retain=True)
    bench.connect("p", version, will=Will(topic, b"2")).lose()
    got = {name: client.take() for name, client in clients.items()}
    assert got == {name: [b"1", b"2"] if name.removeprefix("$share/g/")[0] == "$" else [] for name in names}
    late = bench.connect("late", version)
    late.subscribe("#", "+/x")
    assert late.received() == []
    late.subscribe(f"{level}/#")
    assert late.payloads() == [b"1"]


def test_dollar_topics_can_be_refused(start_bench: StartBench) -> None:
    bench = start_bench(dollar_topics=False)
    publisher, will = bench.connect("publisher"), bench.client()
    publisher.publish("$foo/x", b"1", qos=1)
    assert publisher.one(PubAck).reason_code is ReasonCode.NOT_AUTHORIZED
    will.send(connect_packet("a", will=Will("$foo/x")))
    assert will.one(ConnAck).reason_code is ReasonCode.NOT_AUTHORIZED
    assert bench.stored() == []
