"""Flows to MQTT brokers, Mosquitto and Penstock: what messages are like, and what happens when one takes none."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.conftest import ServerFactory, StartMosquitto
from tests.interop.programs import PahoClient
from tests.support.flows_fixtures import client as client
from tests.support.flows_fixtures import store as store
from tests.support.flows_part import FlowsPart, letters
from tests.support.server_process import free_port, start_mosquitto
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until

PATIENCE_S = 60


def wait_until(condition: object) -> None:
    until(condition, PATIENCE_S)  # type: ignore[arg-type]


def flow(name: str, to: str, more: str = "", format: str = "raw") -> str:
    return f"""
        [flow.{name}]
        from = "plant/#"
        to = "{to}"
        start = "earliest"
        timeout_s = 2
        format = "{format}"
        {more}
    """


def test_messages_of_each_format_reach_mosquitto(
    store: StoreProcess, client: Client, tmp_path: Path, mosquitto_port: int
) -> None:
    receipt = client.publish(
        "plant/7/temp", b'{"celsius": 9}', content_type="application/json", headers={"unit": "C"}, retain=True
    )
    client.publish_many([(f"plant/{i}/flow", b"%d" % i) for i in range(3_000)])
    url = f"mqtt://127.0.0.1:{mosquitto_port}"
    only = "where = \"levels[1] == '7' && levels[2] == 'temp'\"\n"
    texts = (
        flow("raw", f"{url}/site/a", 'mqtt.qos = 2\nmap = { headers = { site = "{levels[1]}" } }'),
        flow("ce", f"{url}/ce/", only + 'map.topic = "{levels[2]}"', "cloudevents"),
        flow("binary", f"{url}/binary", only + 'mqtt.retain = "no"', "cloudevents-binary"),
        flow("old", f"{url}/old", only + 'mqtt.version = "3.1.1"\nmqtt.retain = "yes"'),
        flow("wild", f"{url}/", only + 'map.topic = "a/#"'),
    )
    taker = PahoClient(mosquitto_port).connect().subscribe("#", 2)
    part = FlowsPart(store, tmp_path, "".join(texts))
    try:
        messages = taker.raw_messages(3_000 + 4)
        by_topic = {message.topic: message for message in messages}
        assert len(by_topic) == len(messages) == 3_004
        raw = by_topic["site/a/plant/7/temp"]
        properties = dict(raw.properties.UserProperty)  # type: ignore[union-attr]
        assert (raw.payload, raw.qos) == (b'{"celsius": 9}', 2)
        assert (properties["unit"], properties["site"]) == ("C", "7")
        assert properties["penstock-id"] == receipt.message_id
        assert len(properties["penstock-via"]) == 32
        assert raw.properties.ContentType == "application/json"  # type: ignore[union-attr]
        order = [int(message.payload) for message in messages if message.topic.endswith("/flow")]
        assert sorted(order) == list(range(3_000))
        event = json.loads(by_topic["ce/temp"].payload)
        assert (event["id"], event["data"]) == (receipt.message_id, {"celsius": 9})
        binary = dict(by_topic["binary/plant/7/temp"].properties.UserProperty)  # type: ignore[union-attr]
        assert (binary["id"], binary["subject"]) == (receipt.message_id, "plant/7/temp")
        assert by_topic["old/plant/7/temp"].payload == b'{"celsius": 9}'
        late = PahoClient(mosquitto_port).connect().subscribe("#", 1)
        kept = {message.topic for message in late.raw_messages(3)}
        assert kept == {"site/a/plant/7/temp", "ce/temp", "old/plant/7/temp"}
        wait_until(lambda: letters(client))
        ((_, reason),) = letters(client)
        assert "Publish topic cannot contain wildcards" in reason
        late.leave()
    finally:
        part.kill()
        taker.leave()


def test_messages_wait_for_a_broker_that_refuses_the_flow(
    store: StoreProcess,
    client: Client,
    tmp_path: Path,
    start_mosquitto: StartMosquitto,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "acl").write_text("user plant\ntopic write plant/1/#\n")
    closed = start_mosquitto(f"acl_file {tmp_path / 'acl'}\nmax_packet_size 1000")
    monkeypatch.setenv("MQTT_PASSWORD", "secret")
    user = 'mqtt = { user = "plant", password = { env = "MQTT_PASSWORD" } }'
    client.publish("plant/2/temp", b"not allowed")
    client.publish("plant/1/temp", bytes(2_000))
    client.publish("plant/1/temp", b"fine")
    away = free_port()
    texts = (
        flow("closed", f"mqtt://127.0.0.1:{closed}", user),
        flow("nobody", f"mqtt://127.0.0.1:{away}"),
        flow("tls", f"mqtts://localhost:{closed}"),
    )
    part = FlowsPart(store, tmp_path, "".join(texts))
    try:
        wait_until(lambda: len(letters(client)) == 2)
        reasons = " ".join(reason for _, reason in letters(client))
        assert "'plant/2/temp': Not authorized; allow the flow's user to publish there" in reasons
        assert "a packet has 1000 bytes at most" in reasons
        wait_until(lambda: f"MQTT, 127.0.0.1:{away}: " in part.log_text())
        wait_until(lambda: f"MQTT, localhost:{closed}: " in part.log_text())
        assert "Connection refused" in part.log_text()
        assert "secret" not in part.log_text()
    finally:
        part.kill()


def test_a_broker_that_stands_still_or_is_away_gets_everything_later(
    store: StoreProcess, client: Client, tmp_path: Path
) -> None:
    """What it had not acknowledged comes again, with the same id. Publishers notice nothing."""
    port = free_port()
    broker = start_mosquitto(port, tmp_path)
    taker = PahoClient(port).connect().subscribe("#", 1)
    part = FlowsPart(store, tmp_path, flow("out", f"mqtt://127.0.0.1:{port}"))
    try:
        client.publish("plant/1", b"first")
        taker.raw_messages(1)
        broker.send_signal(signal.SIGSTOP)
        client.publish_many([(f"plant/{i}", b"%d" % i) for i in range(500)])
        wait_until(lambda: "it has not acknowledged a message for 2 s" in part.log_text())
        broker.send_signal(signal.SIGCONT)
        assert {int(each) for each in taker.distinct(501) if each != b"first"} == set(range(500))
        taker.leave()
        broker.kill()
        broker.wait()
        client.publish_many([(f"plant/{i}", b"again %d" % i) for i in range(500)])
        wait_until(lambda: "Connection refused" in part.log_text())
        broker = start_mosquitto(port, tmp_path)
        taker = PahoClient(port).connect().subscribe("#", 1)
        client.publish("plant/last", b"last")
        wait_until(lambda: any(message.payload == b"last" for message in taker.raw_messages(1)))
        assert letters(client) == []
    finally:
        broker.send_signal(signal.SIGCONT)
        part.kill()
        taker.leave()
        broker.kill()
        broker.wait()


def test_a_broker_that_is_full_gets_everything_once_it_has_room(
    store: StoreProcess, client: Client, tmp_path: Path
) -> None:
    """It has no memory left, and ends the connection; the flow goes on once a client has taken what it had."""
    port = free_port()
    kept = "max_queued_messages 0\nmax_queued_bytes 0\nmemory_limit 3000000"
    broker = start_mosquitto(port, tmp_path, kept)
    PahoClient(port, client_id="taker", expiry_s=3_600, clean=False).connect().subscribe("#", 1).leave()
    part = FlowsPart(store, tmp_path, flow("out", f"mqtt://127.0.0.1:{port}"))
    taker: PahoClient | None = None
    try:
        sent = [b"%03d" % i + bytes(20_000) for i in range(300)]
        client.publish_many([(f"plant/{i % 5}", each) for i, each in enumerate(sent)])
        wait_until(lambda: "its log may say why" in part.log_text())
        taker = PahoClient(port, client_id="taker", expiry_s=3_600, clean=False).connect()
        assert set(taker.distinct(len(sent))) == set(sent)
        assert letters(client) == []
        wait_until(lambda: "the sink takes messages again" in part.log_text())
    finally:
        part.kill()
        if taker is not None:
            taker.leave()
        broker.kill()
        broker.wait()


def count(taker: PahoClient, begins: bytes) -> int:
    return sum(message.payload.startswith(begins) for message in taker.raw_messages(1))


def test_two_stores_that_send_each_other_everything_do_not_send_in_a_circle(
    penstock_server: ServerFactory, tmp_path: Path
) -> None:
    """A message is at its own store twice: once by itself, and once as the other store sent it back."""
    files = [tmp_path / f"flows-{number}.toml" for number in range(2)]
    ports = [free_port(), free_port()]
    for file, port in zip(files, reversed(ports), strict=True):
        file.write_text(flow("out", f"mqtt://127.0.0.1:{port}"))
    servers = [
        penstock_server(settings={"flows.file": file, "gateway.listen": f"mqtt://127.0.0.1:{port}"})
        for file, port in zip(files, ports, strict=True)
    ]
    takers = [PahoClient(server.port).connect().subscribe("plant/#", 1) for server in servers]
    devices = [PahoClient(server.port).connect() for server in servers]
    for number, device in enumerate(devices):
        device.publish("plant/x", [b"%d %d" % (number, i) for i in range(50)], 1)
    for end in (b"", b"end"):
        for number, (device, taker) in enumerate(zip(devices, takers, strict=True)):
            if end:
                device.publish("plant/x", [b"end %d" % number], 1)
                wait_until(lambda n=number, taker=taker: count(taker, b"end %d" % n) == 2)
            wait_until(lambda n=number, taker=taker: count(taker, b"%d " % n) == 100)
            assert count(taker, b"%d " % (1 - number)) in (range(51) if not end else (50,))
    for each in (*takers, *devices):
        each.leave()
