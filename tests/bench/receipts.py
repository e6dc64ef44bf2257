"""One message and its receipt at a time, beside Redis: what a client waits for, and what it costs its process.

A publisher that knows each message to be stored before it sends the next one: penstock.Client beside redis.asyncio,
penstock.sync beside redis.Redis (XADD). Both servers run at once, each with what it has in the page cache before it
answers (`async`, `everysec`). The same of a hundred messages at a time: publish_many() beside a pipeline of XADDs. The
four clients are in one process and take turns, round by round, so that what else the machine does falls on all of them
alike. CPU is that of the process, with the thread of penstock.sync.

    python -m tests.bench.receipts [ROUNDS [MESSAGES]]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import redis
import redis.asyncio

from penstock import Client, sync
from tests.bench.queue_peers import RedisStream
from tests.support.store_process import StoreProcess

ROUNDS = 21
MESSAGES = 500  # of a round
TOGETHER = 100  # of publish_many() and of a pipeline
PAYLOAD = b"x" * 100
TOPIC = "line/7/temp"
MANY = [(TOPIC, PAYLOAD)] * TOGETHER
FIELDS: dict[Any, Any] = {"p": PAYLOAD}
PAIRS = (
    ("penstock.Client", "redis.asyncio"),
    ("penstock.sync", "redis.Redis"),
    ("penstock.Client, many", "redis.asyncio, many"),
    ("penstock.sync, many", "redis.Redis, many"),
)


class Cost(NamedTuple):
    """Of one message, in µs: of the client's process, and until its receipt is there."""

    cpu_us: float
    wall_us: float


class Clock:
    """Since it was made."""

    def __init__(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def cost(self, messages: int) -> Cost:
        cpu_s, wall_s = time.process_time() - self._cpu_s, time.perf_counter() - self._wall_s
        return Cost(cpu_s / messages * 1e6, wall_s / messages * 1e6)


def blocking(publish: Callable[[], object], calls: int, messages: int = 1) -> Cost:
    """`messages`: of each call."""
    clock = Clock()
    for _ in range(calls):
        publish()
    return clock.cost(calls * messages)


async def awaiting(publish: Callable[[], Awaitable[object]], calls: int, messages: int = 1) -> Cost:
    clock = Clock()
    for _ in range(calls):
        await publish()
    return clock.cost(calls * messages)


def beside_redis(folder: Path, rounds: int = ROUNDS, messages: int = MESSAGES) -> dict[str, Cost]:
    """The median of the rounds, of each client."""
    store = StoreProcess(folder)
    stream = RedisStream(folder, "everysec")
    try:
        costs = in_turns(store.url.replace("tcp://", "penstock://"), stream.port, rounds, messages)
    finally:
        stream.close()
        store.close()
    return {name: Cost(*map(statistics.median, zip(*each, strict=True))) for name, each in costs.items()}


def in_turns(url: str, port: int, rounds: int, messages: int) -> dict[str, list[Cost]]:
    """What each round cost, by client. The first round is not counted."""
    costs: dict[str, list[Cost]] = {}
    with sync.Client(url) as blocking_client, redis.Redis(port=port) as blocking_redis, asyncio.Runner() as runner:
        client, stream = Client(url), redis.asyncio.Redis(port=port)
        runner.run(client.connect())
        for number in range(rounds + 1):
            found = runner.run(awaited(client, stream, messages)) | waited_for(
                blocking_client, blocking_redis, messages
            )
            for name, cost in found.items() if number else ():
                costs.setdefault(name, []).append(cost)
        runner.run(client.close())
        runner.run(stream.aclose())
    return costs


async def awaited(client: Client, stream: redis.asyncio.Redis, messages: int) -> dict[str, Cost]:
    calls = messages // TOGETHER
    return {
        "penstock.Client": await awaiting(lambda: client.publish(TOPIC, PAYLOAD), messages),
        "redis.asyncio": await awaiting(lambda: stream.xadd("queue", FIELDS), messages),
        "penstock.Client, many": await awaiting(lambda: client.publish_many(MANY), calls, TOGETHER),
        "redis.asyncio, many": await awaiting(lambda: pipeline(stream).execute(), calls, TOGETHER),
    }


def waited_for(client: sync.Client, stream: redis.Redis, messages: int) -> dict[str, Cost]:
    calls = messages // TOGETHER
    return {
        "penstock.sync": blocking(lambda: client.publish(TOPIC, PAYLOAD), messages),
        "redis.Redis": blocking(lambda: stream.xadd("queue", FIELDS), messages),
        "penstock.sync, many": blocking(lambda: client.publish_many(MANY), calls, TOGETHER),
        "redis.Redis, many": blocking(lambda: pipeline(stream).execute(), calls, TOGETHER),
    }


def pipeline(stream: Any) -> Any:
    """The XADDs of TOGETHER messages."""
    together = stream.pipeline(transaction=False)
    for _ in range(TOGETHER):
        together.xadd("queue", FIELDS)
    return together


def report(costs: dict[str, Cost]) -> None:
    for ours, theirs in PAIRS:
        for name in (ours, theirs):
            print(f"receipts  {name:21}: {costs[name].cpu_us:6.1f} µs of CPU, {costs[name].wall_us:6.1f} µs a message")
        print(f"receipts  {ours} beside {theirs}: {costs[ours].cpu_us / costs[theirs].cpu_us:.2f} times the CPU")


def receipts_beside_redis(folder: Path) -> dict[str, object]:
    """The rows of `make bench`."""
    costs = beside_redis(Path(tempfile.mkdtemp(prefix="receipts-", dir=folder)))
    report(costs)
    return {name: cost._asdict() for name, cost in costs.items()}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="receipts-") as folder:
        report(beside_redis(Path(folder), *map(int, sys.argv[1:])))


if __name__ == "__main__":
    main()
