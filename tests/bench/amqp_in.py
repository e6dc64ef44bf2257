"""From AMQP: messages a second by a flow, beside a plain loop of a consumer and publish_many().

    python -m tests.bench.amqp_in FOLDER [ROUNDS]

Both take the same messages, each with an id, from a durable queue of RabbitMQ, 1,000 in hand at most, and acknowledge
what publish_many() of 500, or the flow, has stored. What counts is the time between the first and the last message, as
the store has it. Broker, store and flow share the machine's cores.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

import aio_pika
import uvloop
from aio_pika.abc import AbstractIncomingMessage

from loadtest.ports import HOST
from penstock.sdk.client import Client
from penstock.sdk.many import ToPublish
from penstock.sync import Client as SyncClient
from tests.support.amqp_flows import flow_from_queue, new_queue
from tests.support.flows_part import FlowsPart
from tests.support.rabbitmq_broker import RabbitMqBroker
from tests.support.store_process import StoreProcess

COUNT, TOGETHER, PREFETCH = 30_000, 500, 1_000
PAYLOAD = b'{"celsius": %d.5, "humidity": 61.2, "battery": 3.71, "device": "dev-0007", "ok": true}'
PATIENCE_S = 300


async def fill(port: int, queue: str, name: str) -> None:
    """The topics of these messages begin with `name`."""
    async with await aio_pika.connect(host=HOST, port=port) as connection:
        channel = await connection.channel()
        for at in range(0, COUNT, 1_000):
            published = (
                channel.default_exchange.publish(
                    aio_pika.Message(
                        PAYLOAD % (i % 90), message_id=f"{i:032}", delivery_mode=2, headers={"to": f"{name}/{i % 100}"}
                    ),
                    queue,
                )
                for i in range(at, at + 1_000)
            )
            await asyncio.gather(*published)


async def plain(port: int, queue_name: str, store: str) -> None:
    taken: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    async with Client(store) as client, await aio_pika.connect(host=HOST, port=port) as connection:
        channel = await connection.channel()
        await channel.set_qos(PREFETCH)
        queue = await channel.get_queue(queue_name)
        await queue.consume(taken.put)
        stored = 0
        while stored < COUNT:
            came = [await taken.get()]
            while len(came) < TOGETHER and not taken.empty():
                came.append(taken.get_nowait())
            batch: list[ToPublish] = [
                (
                    str(message.headers["to"]),
                    message.body,
                    {"headers": {"to": str(message.headers["to"]), "amqp-message-id": message.message_id or ""}},
                )
                for message in came
            ]
            await client.publish_many(batch)
            await came[-1].ack(multiple=True)
            stored += len(batch)


def stored_s(client: SyncClient, to: str) -> float:
    """Seconds between the first and the last message, once all are there."""
    began_s = time.monotonic()
    while len(times := [message.stored_at for message in client.read(f"{to}/#")]) < COUNT:
        assert time.monotonic() - began_s < PATIENCE_S, len(times)
        time.sleep(0.5)
    assert len(times) == COUNT, len(times)
    return (max(times) - min(times)).total_seconds()


def flowing(folder: Path, rabbitmq: RabbitMqBroker, queue: str, store: StoreProcess, client: SyncClient) -> float:
    folder.mkdir()
    flows = FlowsPart(store, folder, flow_from_queue(rabbitmq, queue, "map.topic = '{headers.to}'", folder.name))
    try:
        return stored_s(client, folder.name)
    finally:
        flows.kill()


def main(folder: Path, rounds: int) -> None:
    (folder / "rabbitmq").mkdir(parents=True)
    rabbitmq = RabbitMqBroker(folder / "rabbitmq")
    store = StoreProcess(folder)
    url = store.url.replace("tcp://", "penstock://")
    by_loop, by_flow = [], []
    try:
        with SyncClient(url, timeout_s=PATIENCE_S) as client:
            for number in range(rounds):
                queue = new_queue(rabbitmq)
                asyncio.run(fill(rabbitmq.port, queue, f"plain{number}"))
                arguments = ["--plain", str(rabbitmq.port), queue, url]
                subprocess.run([sys.executable, "-m", "tests.bench.amqp_in", *arguments], check=True)
                by_loop.append(COUNT / stored_s(client, f"plain{number}"))
                asyncio.run(fill(rabbitmq.port, queue, f"flow{number}"))
                by_flow.append(COUNT / flowing(folder / f"flow{number}", rabbitmq, queue, store, client))
                print(f"a loop {by_loop[-1]:,.0f} messages/s, a flow {by_flow[-1]:,.0f}", flush=True)
        loop, flow = statistics.median(by_loop), statistics.median(by_flow)
        print(f"amqp in: a loop {loop:,.0f} messages/s, a flow {flow:,.0f}, {flow / loop:.2f} of it")
    finally:
        store.close()
        rabbitmq.close()


if __name__ == "__main__":
    if sys.argv[1] == "--plain":
        uvloop.run(plain(int(sys.argv[2]), *sys.argv[3:]))
    else:
        main(Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
