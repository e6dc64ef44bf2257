"""Bodies of 1 KB on 100 topics, or 100 partitions: Penstock beside one Kafka broker, the same work in turn.

    python -m tests.bench.beside_kafka FOLDER [ROUNDS]

Catalogue rows 74 and 82. Each server has the first core, its clients the last one. Penstock's clients speak MQTT at
QoS 1 (`penstock bench`, workload qos1-1kb-100); Kafka's are one producer with acks=1 and one consumer (librdkafka).
Both servers answer once the page cache has a message. Rates are of deliveries; a latency is from publish to delivery.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from struct import pack, unpack_from
from typing import NamedTuple

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from loadtest.workloads.workload import shipped
from tests.support.kafka_broker import KafkaBroker, KafkaNode
from tests.support.kafka_flows import new_topic
from tests.support.server_process import PenstockServer, ServeOptions

SERVER_CORE, LOAD_CORE = [0], [(os.cpu_count() or 1) - 1]
WORKLOAD = "qos1-1kb-100"
TOPICS, BODY_BYTES = 100, 1_000
RATE = 50_000  # messages/s, of the second measurement
SECONDS = 5.0
WARM_UP_S = 8.0  # of Kafka: its code is compiled meanwhile
IN_FLIGHT = 10_000  # of Kafka's producer, which gathers batches; the workload's four publishers have 1,000
TOGETHER = 1_000
AS_IN_PRODUCTION = ("-Xms1g", "-Xmx2g", "-XX:+UseG1GC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


class Measured(NamedTuple):
    """Of one run: deliveries/s, and in ms and us."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """Of the server, for each message."""


def penstock(folder: Path, rate: int) -> Measured:
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        at = Path(inside)
        server = PenstockServer(at / "data", at / "log", ServeOptions())
        try:
            psutil.Process(server.process.pid).cpu_affinity(SERVER_CORE)
            for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), SERVER_CORE)
            workload = at / "workload.toml"
            text = shipped()[WORKLOAD].read_text()
            workload.write_text(text.replace("window = 250", f"window = 250\nrate = {rate}"))
            command = [sys.executable, "-m", "penstock", "bench", "run", str(workload)]
            options = ["--url", server.url, "--repeats", "1", "--json", str(at / "out.json")]
            pinned = ["taskset", "-c", str(LOAD_CORE[0])]
            subprocess.run([*pinned, *command, *options], check=True, capture_output=True)
            (run,) = json.loads((at / "out.json").read_text())["rows"][0]["runs"]
            assert not run["lost"], run
            used, times = run["broker_cores"] / run["delivered_per_s"], run["delivery"]
            return Measured(run["delivered_per_s"], times["p50"] / 1e3, times["p99"] / 1e3, used * 1e6)
        finally:
            server.kill()


def kafka(folder: Path, rate: int) -> Measured:
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        broker = KafkaBroker(Path(inside) / "kafka", KafkaNode(java_options=AS_IN_PRODUCTION))
        try:
            topic = new_topic(broker, TOPICS)
            for thread in Path(f"/proc/{broker.process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), SERVER_CORE)
            os.sched_setaffinity(0, LOAD_CORE)
            return _run_kafka(broker, topic, rate)
        finally:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
            broker.close()


def _run_kafka(broker: KafkaBroker, topic: str, rate: int) -> Measured:
    process = psutil.Process(broker.process.pid)
    reading = Reading(broker.url, topic)
    reading.start()
    writing = Producer({"bootstrap.servers": broker.url, "acks": 1})
    body = bytes(BODY_BYTES - 8)
    began_s = time.perf_counter()
    counted_s = began_s + WARM_UP_S
    before = used_s(process)
    sent = first = 0
    while (now_s := time.perf_counter()) < counted_s + SECONDS:
        if not first and now_s >= counted_s:
            first, before = sent, used_s(process)
            reading.count_from(time.perf_counter_ns())
        due = sent + 100 if not rate else int((now_s - began_s) * rate)
        while sent < due:
            while len(writing) >= IN_FLIGHT:
                writing.poll(0.001)
            writing.produce(topic, pack("<q", time.perf_counter_ns()) + body, partition=sent % TOPICS)
            sent += 1
        writing.poll(0 if not rate else 0.001)
    taken_s, count = used_s(process) - before, sent - first
    seconds = time.perf_counter() - counted_s
    assert writing.flush(60) == 0
    times = sorted(reading.end(sent))
    return Measured(
        count / seconds, times[len(times) // 2] / 1e6, times[len(times) * 99 // 100] / 1e6, taken_s / count * 1e6
    )


def used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class Reading(threading.Thread):
    """A consumer of all partitions; how long each message took."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__()
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "beside", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(TOPICS)])
        self._from_ns: int | None = None
        self._wanted: int | None = None
        self._taken_ns: list[int] = []

    def count_from(self, now_ns: int) -> None:
        self._from_ns = now_ns

    def end(self, sent: int) -> list[int]:
        """The times in ns of what was published since count_from(), once everything has come."""
        self._wanted = sent
        self.join()
        return self._taken_ns

    def run(self) -> None:
        seen = 0
        while self._wanted is None or seen < self._wanted:
            found = self._consumer.consume(TOGETHER, 0.05)
            now_ns = time.perf_counter_ns()
            seen += len(found)
            for message in found:
                (sent_ns,) = unpack_from("<q", message.value() or b"")
                if self._from_ns is not None and sent_ns >= self._from_ns:
                    self._taken_ns.append(now_ns - sent_ns)
        self._consumer.close()


def main() -> None:
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    kinds: dict[str, Callable[[Path, int], Measured]] = {"penstock": penstock, "kafka": kafka}
    for rate in (0, RATE):
        print(f"{rate or 'as many as it takes'} messages/s; {os.getloadavg()[0]:.1f} load", flush=True)
        runs: dict[str, list[Measured]] = {name: [] for name in kinds}
        for _ in range(rounds):
            for name, run in kinds.items():
                runs[name].append(run(folder, rate))
        for name, found in runs.items():
            rates, p50, p99, cpu = (statistics.median(column) for column in zip(*found, strict=True))
            print(
                f"  {name:9} {rates:9,.0f}/s  p50 {p50:.1f} ms  p99 {p99:.1f} ms  CPU {cpu:.1f} us a message",
                flush=True,
            )


if __name__ == "__main__":
    main()
