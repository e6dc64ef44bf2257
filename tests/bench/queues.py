"""Queues beside Redis Streams and RabbitMQ: what one process publishes, and one consumer of a group takes, in batches.

Each server in turn, on the same cores, in a folder of its own; each by its usual Python client (redis-py, pika,
penstock.Client; what consumes from Penstock speaks its wire). A batch is published at a time, the next once all of it
is acknowledged, so a row compares servers and clients together. Synced before the answer: Penstock `sync`, Redis
`always`, a quorum queue of RabbitMQ. Not so: Penstock `async`, Redis `everysec`, a classic durable queue.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.bench.queue_peers import RABBITMQ, PenstockQueue, Queue, RabbitQueue, RedisStream

MESSAGES = 50_000
RABBIT_SHARE = 5  # RabbitMQ gets one part in this many of them, which takes it as long
REPEATS = 3
PAYLOAD_BYTES = (100, 1_000)
BATCHES = (100, 1_000)
Start = Callable[[Path], Queue]
SYNCED: dict[str, Start] = {
    "penstock sync": partial(PenstockQueue, flush="sync"),
    "redis always": partial(RedisStream, fsync="always"),
    "rabbitmq quorum": partial(RabbitQueue, kind="quorum"),
}
NOT_SYNCED: dict[str, Start] = {
    "penstock async": partial(PenstockQueue, flush="async"),
    "redis everysec": partial(RedisStream, fsync="everysec"),
    "rabbitmq classic": partial(RabbitQueue, kind="classic"),
}


def beside_queues(folder: Path) -> dict[str, object]:
    """Messages/s published and consumed by each, by payload and batch: medians, and all runs."""
    found: dict[str, object] = {}
    for servers in (NOT_SYNCED, SYNCED):
        present = {name: start for name, start in servers.items() if _is_here(name)}
        for size_bytes in PAYLOAD_BYTES:
            for batch in BATCHES:
                found[f"{' '.join(present)}, {size_bytes} B, {batch}"] = _row(folder, present, size_bytes, batch)
    found["redis-benchmark"] = [_in_c(folder, fsync, batch) for fsync in ("everysec", "always") for batch in BATCHES]
    return found


def _in_c(folder: Path, fsync: str, batch: int) -> float:
    """What Redis takes from its own load generator, which is in C: messages/s of 100 B in one connection."""
    place = Path(tempfile.mkdtemp(prefix="queue-", dir=folder))
    stream = RedisStream(place, fsync)
    add = ["XADD", "queue", "*", "p", "x" * 100]
    options = ["-p", str(stream.port), "-c", "1", "-P", str(batch), "-n", str(MESSAGES * 4), "--csv"]
    try:
        command = ["redis-benchmark", *options, *add]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(REPEATS)]
        rate = statistics.median(float(run.splitlines()[-1].split('","')[1]) for run in runs)
    finally:
        stream.close()
        shutil.rmtree(place)
    print(f"queue   100 B, batches of {batch:5}: redis-benchmark, {fsync}: publish {rate:,.0f}/s", flush=True)
    return rate


def _is_here(name: str) -> bool:
    program = {"redis": "redis-server", "rabbitmq": str(RABBITMQ)}.get(name.split()[0])
    if program is None or shutil.which(program):
        return True
    print(f"{name}: {program} is not there (apt-get install {Path(program).name}); left out", flush=True)
    return False


class Rates(NamedTuple):
    """Of one run: messages/s, and µs of CPU for each message, of the server and the client together."""

    published: float
    consumed: float
    publish_us: float
    consume_us: float


def _row(folder: Path, servers: dict[str, Start], size_bytes: int, batch: int) -> dict[str, list[Rates]]:
    rates: dict[str, list[Rates]] = {name: [] for name in servers}
    for _ in range(REPEATS):
        for name, start in servers.items():
            count = MESSAGES // RABBIT_SHARE if name.startswith("rabbitmq") else MESSAGES
            rates[name].append(_run(folder, start, (size_bytes, count, batch)))
    for name, runs in rates.items():
        sides = Rates(*map(statistics.median, zip(*runs, strict=True)))
        print(
            f"queue {size_bytes:5} B, batches of {batch:5}: {name:16} publish {sides.published:>9,.0f}/s "
            f"({_spread(runs, 0)}) {sides.publish_us:6.1f} µs CPU  consume {sides.consumed:>9,.0f}/s "
            f"({_spread(runs, 1)}) {sides.consume_us:6.1f} µs CPU",
            flush=True,
        )
    return rates


def _spread(runs: list[Rates], side: int) -> str:
    return f"{min(each[side] for each in runs):,.0f}–{max(each[side] for each in runs):,.0f}"


def _run(folder: Path, start: Start, work: tuple[int, int, int]) -> Rates:
    place = Path(tempfile.mkdtemp(prefix="queue-", dir=folder))
    queue = start(place)
    try:
        return asyncio.run(_rates(queue, *work))
    finally:
        queue.close()
        shutil.rmtree(place)


async def _rates(queue: Queue, size_bytes: int, count: int, batch: int) -> Rates:
    began_s, cpu_s = time.perf_counter(), _cpu_s(queue)
    await queue.publish(bytes(size_bytes), count, batch)
    published_s, publish_cpu_s = time.perf_counter(), _cpu_s(queue)
    await queue.consume(count, batch)
    consumed_s, consume_cpu_s = time.perf_counter(), _cpu_s(queue)
    rates = count / (published_s - began_s), count / (consumed_s - published_s)
    return Rates(*rates, 1e6 * (publish_cpu_s - cpu_s) / count, 1e6 * (consume_cpu_s - publish_cpu_s) / count)


def _cpu_s(queue: Queue) -> float:
    """CPU time so far, of the server with what it started, and of this process."""
    server = psutil.Process(queue.process.pid)
    return time.process_time() + sum(sum(each.cpu_times()[:2]) for each in (server, *server.children(recursive=True)))
