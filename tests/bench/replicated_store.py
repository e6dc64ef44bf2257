"""A store that leads a cluster beside a store alone, and a publish beside Kafka's own produce.

    python -m tests.bench.replicated_store FOLDER [ROUNDS] [latency] [cost] [rate]

Three brokers with three replicas, the leader, a standby and a store alone (`async`) run on this machine; rounds take
turns. Latency: one message of 200 bytes after another, by the blocking client; Kafka's own produce is from the same
process. Cost: CPU time of the store for each message of 100 bytes, at a fixed rate, in one Append each millisecond, as
a gateway sends them. Rate: as many as the store takes from one gateway, where the leader's produces are answered at
once (tests/bench/produced_at_once.py), without Kafka.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from penstock.kafka_place import KafkaLogin, named_place
from penstock.sync import Client
from store.records.record_bytes import RecordBatch
from store.records.records import RecordType
from store.wire.messages import Append, Appended
from tests.bench.produced_at_once import AtOnceStore
from tests.support.kafka_cluster import KafkaCluster
from tests.support.replicated_stores import ReplicatedStores, url
from tests.support.store_process import StoreProcess

PUBLISHES = 300
RATES = (5_000, 50_000)  # messages/s
COST_S = RATE_S = 4.0
APPENDS_PER_S = 1_000
APPENDS_AT_ONCE, MESSAGES_EACH = 64, 100
TOPICS = 100

Figures = Mapping[str, float]


def produced(servers: str, topic: str) -> list[float]:
    """Milliseconds of each of Kafka's own produces, one after another."""
    place = named_place(f"kafka://{servers}/{topic}", KafkaLogin(), "bench", "tests.kafka")
    producer = Producer({**place.config, "acks": "all", "enable.idempotence": True, "linger.ms": 0})

    def once(_: int) -> None:
        producer.produce(topic, bytes(200), partition=0)
        producer.flush()

    return timed(once)


def published(store: StoreProcess) -> list[float]:
    """Milliseconds of each publish, one after another."""
    with Client(url(store)) as client:
        return timed(lambda number: client.publish(f"plant/{number % TOPICS}", bytes(200)))


def timed(once: Callable[[int], object]) -> list[float]:
    took_ms: list[float] = []
    for number in range(-PUBLISHES // 10, PUBLISHES):  # the first ones are not counted
        began_s = time.perf_counter()
        once(number)
        if number >= 0:
            took_ms.append((time.perf_counter() - began_s) * 1000)
    return took_ms


def appended(store: StoreProcess, seconds: float, rate: int = 0) -> Figures:
    """Messages/s, and CPU time for each in us. `rate`: messages/s; 0: as many as it takes."""
    process = psutil.Process(store.process.pid)
    each = rate // APPENDS_PER_S if rate else MESSAGES_EACH
    batches = [_batch(first, each) for first in range(0, TOPICS, 10)]
    with store.connect(f"gateway-{os.urandom(4).hex()}") as peer:
        waiting: deque[int] = deque()
        used_s = _used_s(process)
        began_s = time.perf_counter()
        sent = 0
        while time.perf_counter() < began_s + seconds:
            if rate:
                time.sleep(max(0.0, began_s + sent / APPENDS_PER_S - time.perf_counter()))
            while len(waiting) >= APPENDS_AT_ONCE * (1 + bool(rate)):
                assert isinstance(peer.answer(waiting.popleft()), Appended)
            sent += 1
            waiting.append(peer.ask(Append(sent), batches[sent % len(batches)]))
        for request_id in waiting:
            assert isinstance(peer.answer(request_id), Appended)
        took_s = time.perf_counter() - began_s
    count = sent * each
    return {"messages/s": count / took_s, "CPU us": (_used_s(process) - used_s) / count * 1e6}


def _batch(first: int, count: int) -> bytes:
    batch = RecordBatch()
    for number in range(first, first + count):
        batch.append(RecordType.MESSAGE, bytes(100), topic=b"plant/%d" % (number % TOPICS))
    return bytes(batch)


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def in_turn(what: str, rounds: int, runs: Mapping[str, Callable[[], Figures]]) -> None:
    """Print the medians of the rounds."""
    found: dict[str, list[Figures]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
    print(f"{what}; medians of {rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
    for name, figures in found.items():
        shown = (f"{key} {statistics.median(each[key] for each in figures):,.2f}" for key in figures[0])
        print(f"  {name:22} {', '.join(shown)}", flush=True)


def latency(took_ms: list[float]) -> Figures:
    tenths = statistics.quantiles(took_ms, n=10)
    return {"p50 ms": tenths[4], "p90 ms": tenths[8]}


def with_kafka(folder: Path, rounds: int, wanted: Any) -> None:
    cluster = KafkaCluster(folder / "kafka")
    try:
        cluster.create_topic("bench")
        stores = ReplicatedStores(folder, cluster)
        leader = stores.start()
        stores.leads(leader)
        stores.start()
        alone = _alone(folder)
        try:
            produced(cluster.servers, "bench")  # brokers are slow at first
            if "latency" in wanted:
                runs: dict[str, Callable[[], Figures]] = {
                    "Kafka's own produce": lambda: latency(produced(cluster.servers, "bench")),
                    "a store that leads": lambda: latency(published(leader)),
                    "a store alone": lambda: latency(published(alone)),
                }
                in_turn("one publish after another", rounds, runs)
            for rate in RATES if "cost" in wanted else ():
                at_rate = {
                    "a store that leads": lambda rate=rate: appended(leader, COST_S, rate),
                    "a store alone": lambda rate=rate: appended(alone, COST_S, rate),
                }
                in_turn(f"{rate} messages/s", rounds, at_rate)
        finally:
            alone.close()
            stores.close()
    finally:
        cluster.close()


def at_once(folder: Path, rounds: int) -> None:
    leader_folder = folder / "at-once"
    leader_folder.mkdir()
    leader, alone = AtOnceStore(leader_folder), _alone(folder)
    try:
        runs = {
            "a store that leads": lambda: appended(leader, RATE_S),
            "a store alone": lambda: appended(alone, RATE_S),
        }
        in_turn("as many as it takes, produces are answered at once", rounds, runs)
    finally:
        leader.close()
        alone.close()


def _alone(folder: Path) -> StoreProcess:
    return StoreProcess(Path(tempfile.mkdtemp(dir=folder)))


def main() -> None:
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    wanted = sys.argv[3:] or ["latency", "cost", "rate"]
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        if {"latency", "cost"} & set(wanted):
            with_kafka(Path(inside), rounds, wanted)
        if "rate" in wanted:
            at_once(Path(inside), rounds)


if __name__ == "__main__":
    main()
