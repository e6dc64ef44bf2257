"""Flows: how many messages a second a condition looks at, and how many go out by HTTP, beside a plain loop.

    python -m tests.bench.flows FOLDER [where|http|penstock|kafka|kafka-once|amqp|mqtt|function] [ROUNDS]

where: a flow whose condition lets nothing through, messages per second of the flows' CPU. http: one request a message,
16 at a time, beside aiohttp doing the same in a loop. penstock: to another topic, beside publish_many() of 500. kafka:
to a topic of one broker, beside confluent-kafka with 1,000 records between flushes; kafka-once: in transactions.
amqp: to an exchange of RabbitMQ with one durable queue, beside aio-pika with 1,000 messages between confirms.
mqtt: to Mosquitto at QoS 1, beside paho with its own window of 20.
function: to a function that does nothing, beside a consumer of a group that calls it in its own process.
The store, the flow and the server share the machine's cores.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import aio_pika
import aiohttp
import paho.mqtt.client as paho
import psutil
import uvloop
from aiohttp import web
from confluent_kafka import Producer
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from loadtest.ports import HOST, free_port
from notify.links.address import StoreAddress
from penstock.sdk.client import Client
from penstock.store_client import StoreClient
from penstock.sync import Client as SyncClient
from store.wire.group_messages import GroupList, GroupsListed
from store.wire.messages import Role
from tests.support.flows_part import FlowsPart
from tests.support.kafka_broker import KafkaBroker
from tests.support.rabbitmq_broker import RabbitMqBroker
from tests.support.server_process import start_mosquitto
from tests.support.store_process import StoreProcess

LOOKED_AT, SENT, KAFKA_SENT, AMQP_SENT, MQTT_SENT = 400_000, 60_000, 100_000, 10_000, 60_000
AT_ONCE, AT_ONCE_MQTT, TOGETHER = 16, 20, 500
ID = b"7F0000011E14000000000000100052A3"
PAYLOAD = b'{"celsius": %d.5, "humidity": 61.2, "battery": 3.71, "device": "dev-0007", "ok": true}'
PATIENCE_S = 300


def fill(store: StoreProcess, count: int) -> None:
    with SyncClient(store.url.replace("tcp://", "penstock://")) as client:
        for at in range(0, count, 10_000):
            client.publish_many([(f"plant/{i % 100}/temp", PAYLOAD % (i % 90)) for i in range(at, at + 10_000)])


def flowing_s(folder: Path, store: StoreProcess, name: str, text: str, count: int) -> tuple[float, float]:
    """Seconds, and seconds of the flows' CPU, until a flow is through with all messages."""
    part = FlowsPart(store, folder, f'[flow.{name}]\nfrom = "plant/#"\n{text}\n')
    try:
        process = psutil.Process(part.process.pid)
        began_s, before = time.monotonic(), process.cpu_times()
        while acked(store, f"flow.{name}") < count:
            assert time.monotonic() - began_s < PATIENCE_S, part.log_text()
            time.sleep(0.05)
        after = process.cpu_times()
        return time.monotonic() - began_s, after.user + after.system - before.user - before.system
    finally:
        part.kill()


def acked(store: StoreProcess, group: str) -> int:
    """queue_offset before which a group is done with everything."""
    with StoreClient(StoreAddress.parse(store.url), "", None, Role.CLIENT) as client:
        found = client.call(GroupList(group, 0), GroupsListed).groups
        return found[0].acked_offset if found else 0


def where(folder: Path, store: StoreProcess, rounds: int) -> None:
    fill(store, LOOKED_AT)
    text = f'where = "json.celsius > 90"\nto = "file://{folder}/none"'
    found = [flowing_s(folder, store, f"where{number}", text, LOOKED_AT) for number in range(rounds)]
    per_s = statistics.median(LOOKED_AT / seconds for seconds, _ in found)
    per_cpu_s = statistics.median(LOOKED_AT / cpu_s for _, cpu_s in found)
    print(f"where: {per_s:,.0f} messages/s, {per_cpu_s:,.0f} for each second of CPU")


async def served(use: Callable[[str], Awaitable[None]]) -> None:
    app = web.Application()

    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=204)

    app.router.add_post("/", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await use(f"http://127.0.0.1:{port}/")
    await runner.cleanup()


async def plain_http(url: str) -> None:
    """The same requests by a loop: 16 at a time."""
    numbers = iter(range(SENT))
    headers = {"Content-Type": "application/cloudevents+json"}
    async with aiohttp.ClientSession() as session:

        async def work() -> None:
            for number in numbers:
                body = b'{"id": "%d", "source": "x", "type": "t", "specversion": "1.0", "data": ' % number + PAYLOAD % 1
                async with session.post(url, data=body + b"}", headers=headers) as answer:
                    await answer.read()

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))


def http(folder: Path, store: StoreProcess, rounds: int) -> None:
    fill(store, SENT)
    plain, flowing = [], []
    for number in range(rounds):

        async def measured(url: str, number: int = number) -> None:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.bench.flows", "--plain", url, stdout=asyncio.subprocess.PIPE
            )
            said, _ = await process.communicate()
            plain.append(float(said))
            text = f'to = "{url}"\nconcurrency = {AT_ONCE}'
            took_s, _ = await asyncio.to_thread(flowing_s, folder, store, f"http{number}", text, SENT)
            flowing.append(took_s)

        asyncio.run(served(measured))
    told("http", plain, flowing)


def penstock(folder: Path, store: StoreProcess, rounds: int) -> None:
    fill(store, SENT)
    plain, flowing = [], []

    async def loop() -> None:
        async with Client(store.url.replace("tcp://", "penstock://")) as client:
            for at in range(0, SENT, TOGETHER):
                batch = [(f"plain/{i % 100}", PAYLOAD % (i % 90)) for i in range(at, at + TOGETHER)]
                await client.publish_many(batch)

    for number in range(rounds):
        began_s = time.monotonic()
        asyncio.run(loop())
        plain.append(time.monotonic() - began_s)
        text = f'to = "penstock:"\nmap = {{ topic = "copy{number}/{{levels[1]}}" }}'
        flowing.append(flowing_s(folder, store, f"copy{number}", text, SENT)[0])
    told("penstock", plain, flowing)


def plain_kafka(url: str, topic: str, is_once: bool) -> None:
    once: dict[str, str | bool] = {"transactional.id": f"plain.{topic}"} if is_once else {"enable.idempotence": True}
    producer = Producer({"bootstrap.servers": url, "linger.ms": 5, "compression.type": "lz4", **once})
    if is_once:
        producer.init_transactions(PATIENCE_S)
    for at in range(0, KAFKA_SENT, 1_000):
        if is_once:
            producer.begin_transaction()
        for i in range(at, at + 1_000):
            producer.produce(topic, PAYLOAD % (i % 90), b"plant/%d/temp" % (i % 100), headers=[("penstock-id", ID)])
        if is_once:
            producer.commit_transaction()
        else:
            producer.flush()


def kafka(folder: Path, store: StoreProcess, rounds: int, is_once: bool = False) -> None:
    fill(store, KAFKA_SENT)
    plain, flowing = [], []
    broker = KafkaBroker(folder / "kafka")
    try:
        for number in range(rounds):
            broker.create_topic(f"plain{number}", partitions=2)
            broker.create_topic(f"flow{number}", partitions=2)
            began_s = time.monotonic()
            plain_kafka(broker.url, f"plain{number}", is_once)
            plain.append(time.monotonic() - began_s)
            to = f'to = "kafka://{broker.url}/flow{number}"\nformat = "raw"\nstart = "earliest"'
            text = f"{to}\nkafka.exactly_once = {str(is_once).lower()}"
            flowing.append(flowing_s(folder, store, f"kafka{number}", text, KAFKA_SENT)[0])
    finally:
        broker.close()
    told("kafka-once" if is_once else "kafka", plain, flowing, KAFKA_SENT)


async def plain_amqp(port: int, exchange_name: str) -> None:
    """The same messages by a loop."""
    async with await aio_pika.connect(host=HOST, port=port) as connection:
        channel = await connection.channel(on_return_raises=True)
        exchange = await channel.get_exchange(exchange_name)
        for at in range(0, AMQP_SENT, 1_000):
            await asyncio.gather(
                *(
                    exchange.publish(
                        aio_pika.Message(PAYLOAD % (i % 90), message_id=f"{i:032}", delivery_mode=2),
                        f"plant.{i % 100}.temp",
                    )
                    for i in range(at, at + 1_000)
                )
            )


def plain_mqtt(port: int) -> None:
    """The same messages by a loop, as its tutorial has it; and waits at the end."""
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(AT_ONCE_MQTT)
    client.connect(HOST, port)
    client.loop_start()
    for at in range(0, MQTT_SENT, 1_000):
        sent = [client.publish(f"plain/{i % 100}/temp", PAYLOAD % (i % 90), 1) for i in range(at, at + 1_000)]
        for info in sent:
            info.wait_for_publish(PATIENCE_S)
    client.disconnect()
    client.loop_stop()


def mqtt(folder: Path, store: StoreProcess, rounds: int) -> None:
    fill(store, MQTT_SENT)
    plain, flowing = [], []
    port = free_port()
    broker = start_mosquitto(port, folder)
    try:
        for number in range(rounds):
            began_s = time.monotonic()
            plain_mqtt(port)
            plain.append(time.monotonic() - began_s)
            text = f'to = "mqtt://{HOST}:{port}/copy{number}"\nformat = "raw"\nstart = "earliest"'
            flowing.append(flowing_s(folder, store, f"mqtt{number}", text, MQTT_SENT)[0])
    finally:
        broker.kill()
        broker.wait()
    told("mqtt", plain, flowing, MQTT_SENT)


def amqp(folder: Path, store: StoreProcess, rounds: int) -> None:
    fill(store, AMQP_SENT)
    plain, flowing = [], []
    (folder / "rabbitmq").mkdir()
    broker = RabbitMqBroker(folder / "rabbitmq")
    try:
        for number in range(rounds):
            for name in (f"plain{number}", f"flow{number}"):
                broker.make(name, {name: "plant.#"})
            began_s = time.monotonic()
            uvloop.run(plain_amqp(broker.port, f"plain{number}"))
            plain.append(time.monotonic() - began_s)
            text = f'to = "amqp://{broker.url}/flow{number}"\nformat = "raw"\nstart = "earliest"'
            flowing.append(flowing_s(folder, store, f"amqp{number}", text, AMQP_SENT)[0])
    finally:
        broker.close()
    told("amqp", plain, flowing, AMQP_SENT)


def nothing(_: object) -> None:
    """The function."""


def function(folder: Path, store: StoreProcess, rounds: int) -> None:
    fill(store, SENT)
    plain, flowing = [], []

    async def loop(group: str) -> None:
        async with Client(store.url.replace("tcp://", "penstock://")) as client:
            done = 0
            async with client.subscribe("plant/#", group=group, start="earliest", prefetch=2_000) as messages:
                async for batch in messages.batches():
                    for message in batch:
                        nothing(message)
                    batch.ack()
                    done += len(batch)
                    if done == SENT:
                        break

    for number in range(rounds):
        began_s = time.monotonic()
        asyncio.run(loop(f"plain{number}"))
        plain.append(time.monotonic() - began_s)
        text = 'to = "python:tests.bench.flows:nothing"'
        flowing.append(flowing_s(folder, store, f"function{number}", text, SENT)[0])
    told("function", plain, flowing)


def told(what: str, plain: list[float], flowing: list[float], sent: int = SENT) -> None:
    rates = [sent / statistics.median(each) for each in (plain, flowing)]
    print(f"{what}: a loop {rates[0]:,.0f} messages/s, a flow {rates[1]:,.0f}, {rates[1] / rates[0]:.2f} of it")


ROWS: dict[str, Callable[[Path, StoreProcess, int], None]] = {
    "where": where,
    "http": http,
    "penstock": penstock,
    "kafka": kafka,
    "amqp": amqp,
    "mqtt": mqtt,
    "function": function,
    "kafka-once": partial(kafka, is_once=True),
}


def main(folder: Path, row: str, rounds: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    store = StoreProcess(folder)
    try:
        ROWS[row](folder, store, rounds)
    finally:
        store.close()


if __name__ == "__main__":
    if sys.argv[1] == "--plain":
        began_s = time.monotonic()
        asyncio.run(plain_http(sys.argv[2]))
        print(time.monotonic() - began_s)
    else:
        main(Path(sys.argv[1]).absolute(), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 3)
