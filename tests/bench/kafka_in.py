"""From Kafka: records a second by a flow, beside a plain loop of a consumer and publish_many().

    python -m tests.bench.kafka_in FOLDER [ROUNDS]

Both store the same messages: a topic by the record's key, and the key. What counts is the time between the first and
the last message, as the store has it. Broker, store and flow share the machine's cores.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from penstock.sdk.client import Client
from penstock.sdk.many import ToPublish
from penstock.sync import Client as SyncClient
from tests.support.flows_part import FlowsPart
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_flows import new_topic, producer
from tests.support.store_process import StoreProcess

COUNT, PARTITIONS, TOGETHER = 200_000, 3, 500
PAYLOAD = b'{"celsius": %d.5, "humidity": 61.2, "battery": 3.71, "device": "dev-0007", "ok": true}'
PATIENCE_S = 300


def fill(kafka: KafkaBroker, topic: str) -> None:
    writing = producer(kafka)
    for number in range(COUNT):
        writing.produce(topic, PAYLOAD % (number % 90), b"m-%d" % (number % 100), partition=number % PARTITIONS)
        if number % 1_000 == 0:
            writing.poll(0)
            while len(writing) > 50_000:
                writing.poll(0.01)
    for partition in range(PARTITIONS):
        writing.produce(topic, b"", b"end", partition=partition)
    assert writing.flush(PATIENCE_S) == 0


async def plain(servers: str, topic: str, store: str, to: str) -> None:
    ours = {"group.id": "plain", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": servers, **ours})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    taken = 0
    async with Client(store) as client:
        while taken < COUNT + PARTITIONS:
            batch: list[ToPublish] = []
            for message in consumer.consume(TOGETHER, 0.1):
                assert message.error() is None
                key = (message.key() or b"").decode()
                batch.append((f"{to}/{key}", message.value() or b"", {"key": key}))
            if batch:
                await client.publish_many(batch)
                taken += len(batch)
    consumer.close()


def stored_s(client: SyncClient, to: str) -> float:
    """Seconds between the first and the last message."""
    times = [message.stored_at for message in client.read(f"{to}/#")]
    assert len(times) == COUNT + PARTITIONS, len(times)
    return (max(times) - min(times)).total_seconds()


def flowing(folder: Path, kafka: KafkaBroker, topic: str, store: StoreProcess, client: SyncClient, to: str) -> float:
    folder.mkdir()
    mapped = f'map = {{ topic = "{to}/{{key}}" }}'
    text = f'[flow.{to}]\nfrom = "kafka://{kafka.url}/{topic}"\nto = "penstock:"\n{mapped}\n'
    flows = FlowsPart(store, folder, text)
    try:
        began_s = time.monotonic()
        while len(list(client.read(f"{to}/end"))) < PARTITIONS:
            assert time.monotonic() - began_s < PATIENCE_S, flows.log_text()
            time.sleep(0.2)
        return stored_s(client, to)
    finally:
        flows.kill()


def main(folder: Path, rounds: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kafka = KafkaBroker(folder / "kafka")
    store = StoreProcess(folder)
    url = store.url.replace("tcp://", "penstock://")
    try:
        topic = new_topic(kafka, PARTITIONS)
        fill(kafka, topic)
        by_loop, by_flow = [], []
        with SyncClient(url, timeout_s=PATIENCE_S) as client:
            for number in range(rounds):
                arguments = ["--plain", kafka.url, topic, url, f"plain{number}"]
                subprocess.run([sys.executable, "-m", "tests.bench.kafka_in", *arguments], check=True)
                by_loop.append(COUNT / stored_s(client, f"plain{number}"))
                to = f"flow{number}"
                by_flow.append(COUNT / flowing(folder / to, kafka, topic, store, client, to))
                print(f"a loop {by_loop[-1]:,.0f} records/s, a flow {by_flow[-1]:,.0f}", flush=True)
        loop, flow = statistics.median(by_loop), statistics.median(by_flow)
        print(f"kafka in: a loop {loop:,.0f} records/s, a flow {flow:,.0f}, {flow / loop:.2f} of it")
    finally:
        store.close()
        kafka.close()


if __name__ == "__main__":
    if sys.argv[1] == "--plain":
        asyncio.run(plain(*sys.argv[2:]))
    else:
        main(Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
