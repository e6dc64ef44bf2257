"""How long a frame takes to stand in the partition, beside a plain produce of the same bytes by the same library.

    python -m tests.bench.replicated_produce

Three brokers with three replicas run on this machine. Rounds of both take turns.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer

from penstock.cluster.answers import FrameStands, KafkaAnswer
from penstock.cluster.producing import FrameProducer
from penstock.kafka_place import KafkaLogin, KafkaPlace, named_place
from store.replication.frames import FrameKind, LogFrame
from tests.support.kafka_cluster import KafkaCluster

ROUNDS = 5
PRODUCES = 200
SIZES = (200, 20_000, 200_000)


def plain(place: KafkaPlace, size_bytes: int) -> list[float]:
    """Milliseconds of each produce, one after another."""
    producer = Producer({**place.config, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
    took: list[float] = []
    for _ in range(PRODUCES):
        began_s = time.perf_counter()
        producer.produce(place.topic, bytes(size_bytes), partition=0)
        producer.flush()
        took.append((time.perf_counter() - began_s) * 1000)
    return took


async def as_frames(place: KafkaPlace, size_bytes: int) -> list[float]:
    """Milliseconds until the loop knows of each frame that it stands."""
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[KafkaAnswer] = asyncio.Queue()

    def report(answer: KafkaAnswer) -> None:
        loop.call_soon_threadsafe(answers.put_nowait, answer)

    producer = FrameProducer(place, 5.0, report)
    took: list[float] = []
    for number in range(1, PRODUCES + 1):
        began_s = time.perf_counter()
        frame = LogFrame(FrameKind.DATA, 1, 0, number, bytes(size_bytes))
        producer.send(frame, frame.encode())
        assert isinstance(await answers.get(), FrameStands)
        took.append((time.perf_counter() - began_s) * 1000)
    producer.close(1.0)
    return took


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cluster = KafkaCluster(Path(folder))
        try:
            cluster.create_topic("bench")
            place = named_place(cluster.url("bench"), KafkaLogin(), "bench", "tests.kafka")
            plain(place, 200)  # brokers are slow at first
            for size_bytes in SIZES:
                medians: list[tuple[float, float]] = []
                for _ in range(ROUNDS):
                    one, two = plain(place, size_bytes), asyncio.run(as_frames(place, size_bytes))
                    medians.append((statistics.median(one), statistics.median(two)))
                plain_ms, frames_ms = (statistics.median(each) for each in zip(*medians, strict=True))
                print(f"{size_bytes:7} B: plain {plain_ms:.2f} ms, as frames {frames_ms:.2f} ms (medians of {ROUNDS})")
        finally:
            cluster.close()


if __name__ == "__main__":
    main()
