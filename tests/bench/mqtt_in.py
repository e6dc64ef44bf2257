"""From MQTT: messages a second by a flow, beside a plain loop of a subscriber and publish_many().

    python -m tests.bench.mqtt_in FOLDER [ROUNDS]

Both have a session at Mosquitto with the same backlog at QoS 1, each message with an id, 1,000 in hand at most, and
acknowledge what publish_many() of 500, or the flow, has stored. What counts is the time between the first and the last
message, as the store has it. Broker, store and flow share the machine's cores.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

import paho.mqtt.client as paho
import uvloop
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from loadtest.ports import HOST, free_port
from penstock.sdk.client import Client
from penstock.sdk.many import ToPublish
from penstock.sync import Client as SyncClient
from tests.support.flows_part import FlowsPart
from tests.support.server_process import start_mosquitto
from tests.support.store_process import StoreProcess

COUNT, TOGETHER, WINDOW, SESSION_S = 20_000, 500, 1_000, 3_600
PAYLOAD = b'{"celsius": %d.5, "humidity": 61.2, "battery": 3.71, "device": "dev-0007", "ok": true}'
PATIENCE_S = 300
KEEPS_ALL = f"max_queued_messages 0\nmax_queued_bytes 0\nmax_inflight_messages {WINDOW}"


def connected(port: int, client_id: str, manual_ack: bool = False) -> paho.Client:
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5, manual_ack=manual_ack
    )
    client.max_inflight_messages_set(100)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval, properties.ReceiveMaximum = SESSION_S, WINDOW
    client.connect(HOST, port, clean_start=False, properties=properties)
    return client


def fill(port: int, name: str) -> None:
    """The topics of these messages begin with `name`."""
    client = connected(port, f"fill-{name}")
    client.loop_start()
    for at in range(0, COUNT, 1_000):
        sent = []
        for i in range(at, at + 1_000):
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = [("penstock-id", f"{i:032}")]
            sent.append(client.publish(f"{name}/{i % 100}", PAYLOAD % (i % 90), 1, False, properties))
        for each in sent:
            each.wait_for_publish(PATIENCE_S)
    client.disconnect()
    client.loop_stop()


def subscribe(port: int, name: str) -> None:
    """Begin the session of the plain loop."""
    client = connected(port, f"plain-{name}")
    done: list[object] = []
    client.on_subscribe = lambda *said: done.append(said)
    client.on_connect = lambda *_: client.subscribe(f"{name}/#", 1)  # type: ignore[assignment]
    client.loop_start()
    while not done:
        time.sleep(0.01)
    client.disconnect()
    client.loop_stop()


async def plain(port: int, name: str, store: str) -> None:
    loop, taken = asyncio.get_running_loop(), asyncio.Queue[paho.MQTTMessage]()
    async with Client(store) as client:
        source = connected(port, f"plain-{name}", manual_ack=True)
        source.on_message = lambda _, __, message: loop.call_soon_threadsafe(taken.put_nowait, message)  # type: ignore[assignment]
        source.loop_start()
        stored = 0
        while stored < COUNT:
            came = [await taken.get()]
            while len(came) < TOGETHER and not taken.empty():
                came.append(taken.get_nowait())
            batch: list[ToPublish] = []
            for message in came:
                assert message.properties is not None
                batch.append(
                    (message.topic, bytes(message.payload), {"headers": message.properties.UserProperty})  # type: ignore[attr-defined]
                )
            await client.publish_many(batch)
            for message in came:
                source.ack(message.mid, message.qos)
            stored += len(batch)
        source.disconnect()
        source.loop_stop()


def stored_s(client: SyncClient, to: str) -> float:
    """Seconds between the first and the last message, once all are there."""
    began_s = time.monotonic()
    while len(times := [message.stored_at for message in client.read(f"{to}/#")]) < COUNT:
        assert time.monotonic() - began_s < PATIENCE_S, len(times)
        time.sleep(0.5)
    return (max(times) - min(times)).total_seconds()


def flowing(folder: Path, port: int, store: StoreProcess, client: SyncClient) -> float:
    folder.mkdir()
    name = folder.name
    text = f'[flow.{name}]\nfrom = "mqtt://{HOST}:{port}/{name}/#"\nto = "penstock:"\n'
    flows = FlowsPart(store, folder, text)
    probe = connected(port, f"probe-{name}")
    probe.loop_start()
    while not list(client.read(f"{name}/probe")):  # its session has begun
        probe.publish(f"{name}/probe", b"", 1).wait_for_publish(PATIENCE_S)
    probe.disconnect()
    probe.loop_stop()
    flows.kill()
    fill(port, name)
    flows.start()
    try:
        while len(list(client.read(f"{name}/99"))) < COUNT // 100:
            time.sleep(0.2)
        times = [message.stored_at for number in range(100) for message in client.read(f"{name}/{number}")]
        assert len(times) == COUNT, len(times)
        return (max(times) - min(times)).total_seconds()
    finally:
        flows.kill()


def main(folder: Path, rounds: int) -> None:
    folder.mkdir(parents=True)
    port = free_port()
    broker = start_mosquitto(port, folder, KEEPS_ALL)
    store = StoreProcess(folder)
    url = store.url.replace("tcp://", "penstock://")
    by_loop, by_flow = [], []
    try:
        with SyncClient(url, timeout_s=PATIENCE_S) as client:
            for number in range(rounds):
                name = f"plain{number}"
                subscribe(port, name)
                fill(port, name)
                subprocess.run(
                    [sys.executable, "-m", "tests.bench.mqtt_in", "--plain", str(port), name, url], check=True
                )
                by_loop.append(COUNT / stored_s(client, name))
                by_flow.append(COUNT / flowing(folder / f"flow{number}", port, store, client))
                print(f"a loop {by_loop[-1]:,.0f} messages/s, a flow {by_flow[-1]:,.0f}", flush=True)
        loop, flow = statistics.median(by_loop), statistics.median(by_flow)
        print(f"mqtt in: a loop {loop:,.0f} messages/s, a flow {flow:,.0f}, {flow / loop:.2f} of it")
    finally:
        store.close()
        broker.kill()
        broker.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--plain":
        uvloop.run(plain(int(sys.argv[2]), *sys.argv[3:]))
    else:
        main(Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
