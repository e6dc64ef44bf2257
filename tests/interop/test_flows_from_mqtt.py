"""Flows from MQTT brokers, Mosquitto and Penstock: what messages become, and what outlives connections."""

from __future__ import annotations

from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.sync import Client
from tests.conftest import ServerFactory, StartMosquitto
from tests.interop.programs import PahoClient
from tests.support import server_process
from tests.support.flows_fixtures import client as client
from tests.support.flows_fixtures import store as store
from tests.support.flows_part import FlowsPart
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until

PATIENCE_S = 60


def wait_until(condition: object) -> None:
    until(condition, PATIENCE_S)  # type: ignore[arg-type]


def flow(name: str, from_: str, more: str = "") -> str:
    return f'[flow.{name}]\nfrom = "{from_}"\nto = "penstock:"\ntimeout_s = 2\n{more}\n'


def publish(device: PahoClient, topic: str, payload: bytes, **properties: object) -> None:
    said = Properties(PacketTypes.PUBLISH)
    for name, value in properties.items():
        setattr(said, name, value)
    device.client.publish(topic, payload, 1, False, said).wait_for_publish(PATIENCE_S)


def comes(device: PahoClient, client: Client, topic: str) -> bool:
    """Whether a message has come; another one is published."""
    device.publish(topic, [b"x"], 1)
    return bool(list(client.read(topic)))


@pytest.mark.catalogue("Q65")
def test_messages_from_mqtt_are_mapped_or_become_dead_letters(
    store: StoreProcess, client: Client, tmp_path: Path, mosquitto_port: int
) -> None:
    device = PahoClient(mosquitto_port).connect()
    device.publish("line/kept", [b"kept"], 1, retain=True)
    text = flow(
        "plant",
        f"mqtt://127.0.0.1:{mosquitto_port}/line/#",
        "where = \"topic != 'line/none'\"\n"
        "map = { topic = \"site/{topic == 'line/bad' ? 'a/#' : topic}\", headers = { by = \"flow\" } }",
    )
    part = FlowsPart(store, tmp_path, text)
    try:
        wait_until(lambda: list(client.read("site/line/kept")))
        (kept,) = client.read("site/line/kept")
        assert (kept.payload, kept.retain, kept.qos) == (b"kept", True, 1)
        publish(device, "line/none", b"left out")
        publish(device, "line/bad", b"bad", UserProperty=[("a", "b")])
        publish(
            device,
            "line/1",
            b'{"celsius": 9}',
            UserProperty=[("unit", "C"), ("unit", "F")],
            ContentType="application/json",
            ResponseTopic="answers/1",
            CorrelationData=b"\x00\x01",
            MessageExpiryInterval=1_000,
        )
        for i in range(500):
            device.client.publish(f"line/many/{i % 5}", b"%d" % i, i % 3)
        wait_until(lambda: len(list(client.read("site/line/many/#"))) == 500)
        (message,) = client.read("site/line/1")
        pairs = message.user_properties
        assert [text for name, text in pairs if name == "unit"] == ["C", "F"]
        assert dict(pairs)["by"] == "flow"
        assert dict(pairs)["penstock-via"].endswith(f"<127.0.0.1:{mosquitto_port}")
        assert (message.content_type, message.response_topic) == ("application/json", "answers/1")
        assert message.correlation_data == b"\x00\x01"
        assert message.expires_after is not None
        assert 900 < message.expires_after.total_seconds() <= 1_000
        for qos in range(3):  # a broker orders those of a topic and a QoS; QoS 2 comes as 1
            numbers = [int(each.payload) for each in client.read("site/line/many/0")]
            assert [number for number in numbers if number % 3 == qos] == [n for n in range(0, 500, 5) if n % 3 == qos]
        (letter,) = client.read("$flows/plant/dead/#")
        said = dict(letter.user_properties)
        assert (letter.payload, said["mqtt-topic"], said["a"]) == (b"bad", "line/bad", "b")
        assert "use the name of one topic" in said["penstock-reason"]
        assert list(client.read("site/line/none")) == []
    finally:
        part.kill()
        device.leave()


def test_messages_published_while_the_flow_is_away_come_later_and_ids_count_once(
    store: StoreProcess, client: Client, tmp_path: Path, mosquitto_port: int
) -> None:
    part = FlowsPart(store, tmp_path, flow("plant", f"mqtt://127.0.0.1:{mosquitto_port}/line/#"))
    device = PahoClient(mosquitto_port).connect()
    try:
        wait_until(lambda: comes(device, client, "line/first"))
        part.kill()
        device.publish("line/away", [b"%d" % i for i in range(300)], 1)
        for _ in range(3):
            publish(device, "line/id", b"once", UserProperty=[("penstock-id", "ID-7")])
        part.start()
        wait_until(lambda: len(list(client.read("line/away"))) == 300 and list(client.read("line/id")))
        device.publish("line/last", [b"last"], 1)
        wait_until(lambda: list(client.read("line/last")))
        assert [int(each.payload) for each in client.read("line/away")] == list(range(300))
        assert len(list(client.read("line/id"))) == 1
    finally:
        part.kill()
        device.leave()


def test_a_bridge_both_ways_over_the_same_topics_sends_nothing_back(
    store: StoreProcess, client: Client, tmp_path: Path, mosquitto_port: int
) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto_port}"
    out = f'[flow.out]\nfrom = "line/#"\nto = "{url}"\nformat = "raw"\ntimeout_s = 2\n'
    part = FlowsPart(store, tmp_path, flow("in", f"{url}/line/#") + out)
    device = PahoClient(mosquitto_port).connect()
    taker = PahoClient(mosquitto_port).connect().subscribe("#", 1)
    try:
        wait_until(lambda: comes(device, client, "line/first"))
        device.publish("line/there", [b"there %d" % i for i in range(100)], 1)
        client.publish_many([("line/here", b"here %d" % i) for i in range(100)])
        wait_until(lambda: len([m for m in taker.raw_messages(1) if m.payload.startswith(b"here")]) == 100)
        wait_until(lambda: len(list(client.read("line/there"))) == 100)
        client.publish("line/here", b"last here")
        device.publish("line/there", [b"last there"], 1)
        wait_until(lambda: len(list(client.read("line/there"))) == 101 and b"last here" in taker.distinct(1))
        device.publish("line/end", [b"end"], 1)
        wait_until(lambda: list(client.read("line/end")))  # and so is what came back before it
        assert len(list(client.read("line/here"))) == 101
        counted = [bytes(message.payload) for message in taker.raw_messages(1)]
        assert len([each for each in counted if b"there" in each]) == 101
    finally:
        part.kill()
        device.leave()
        taker.leave()


def test_flow_waits_for_a_broker_that_refuses(
    store: StoreProcess, client: Client, tmp_path: Path, start_mosquitto: StartMosquitto
) -> None:
    away = free_port()
    closed = start_mosquitto("allow_anonymous false")
    texts = (
        flow("away", f"mqtt://127.0.0.1:{away}/line/#"),
        flow("closed", f"mqtt://127.0.0.1:{closed}/line/#"),
    )
    part = FlowsPart(store, tmp_path, "".join(texts))
    broker = None
    try:
        wait_until(lambda: f"MQTT, 127.0.0.1:{away}: " in part.log_text())
        wait_until(lambda: "allow the flow's user to connect" in part.log_text())
        broker = server_process.start_mosquitto(away, tmp_path)
        device = PahoClient(away).connect()
        wait_until(lambda: comes(device, client, "line/1"))
        device.leave()
    finally:
        part.kill()
        if broker is not None:
            broker.kill()
            broker.wait()


@pytest.mark.catalogue("Q66")
def test_a_plant_catches_up_with_its_center_after_a_line_that_was_cut(
    penstock_server: ServerFactory, tmp_path: Path
) -> None:
    """The edge: a store at the plant keeps everything, and sends on what `where` lets through, in order."""
    port = free_port()
    file = tmp_path / "plant.toml"
    file.write_text(
        f'[flow.up]\nfrom = "line/#"\nwhere = "json.celsius > 90"\nto = "mqtt://127.0.0.1:{port}/plant-7"\n'
        'format = "raw"\nordered = true\ntimeout_s = 2\n'
    )
    plant = penstock_server(settings={"flows.file": file})
    device = PahoClient(plant.port).connect()
    for i in range(1_000):
        device.client.publish(f"line/{i % 4}", b'{"celsius": %d, "n": %d}' % (80 + i % 20, i), 1)
    device.publish("line/0", [b'{"celsius": 100, "n": 1000}'], 1)  # acknowledged, though nobody is at the other end
    center = penstock_server(settings={"gateway.listen": f"mqtt://127.0.0.1:{port}"})
    taker = PahoClient(center.port).connect().subscribe("plant-7/#", 1)
    expected = [i for i in range(1_000) if 80 + i % 20 > 90] + [1000]
    found = [int(each.partition(b'"n": ')[2][:-1]) for each in taker.distinct(len(expected))]
    assert sorted(set(found)) == expected
    by_topic: dict[str, list[int]] = {}
    for message in taker.raw_messages(1):
        by_topic.setdefault(message.topic, []).append(int(message.payload.partition(b'"n": ')[2][:-1]))
    for numbers in by_topic.values():
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
    device.leave()
    taker.leave()
