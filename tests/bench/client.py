"""Measurements of the native client: how many messages of 100 B one process publishes, reads, and acks in a group."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import quantiles

from penstock import Client
from penstock.sdk.message import Receipt
from penstock.sdk.subscription import Subscription
from tests.support.store_process import StoreProcess

PAYLOAD = bytes(100)
READ_MESSAGES = 1_000_000
BATCH_MESSAGES = 2_000
FILTERS = ("line/7", "line/#", "line/+", "#")
PUBLISHERS = {1: 1_000, 10: 10_000, 100: 50_000}  # how many messages that many publishers send together
SENT_MESSAGES = 50_000
WINDOW = 1_000
GOAL_READ = 500_000
CONSUMED = {"one by one": 300_000, "batches": 500_000, "each ack awaited": 3_000}
GOAL_CONSUMED = 100_000


def read_rates(folder: Path) -> dict[str, object]:
    """Messages/s of one reader: in batches that are not decoded, their payloads, and message by message."""
    return asyncio.run(_with_store(folder, _read_rates))


def publish_rates(folder: Path) -> dict[str, object]:
    """Messages/s of publishers that each wait for their receipt, autobatch off and on, with the p99 of the wait."""
    return asyncio.run(_with_store(folder, _publish_rates))


def consume_rates(folder: Path) -> dict[str, object]:
    """Messages/s of one consumer of a group, until all its acks are answered."""
    return asyncio.run(_with_store(folder, _consume_rates))


async def _with_store(folder: Path, run: Callable[[str], Awaitable[dict[str, object]]]) -> dict[str, object]:
    place = folder / f"client-{time.monotonic_ns()}"
    place.mkdir()
    store = StoreProcess(place)
    try:
        return await run(store.url.replace("tcp://", "penstock://"))
    finally:
        store.close()


async def _read_rates(url: str) -> dict[str, object]:
    rates: dict[str, object] = {}
    async with Client(url) as client:
        await _fill(client, READ_MESSAGES)
        for topic_filter in FILTERS:
            found = [await _rate(each, client, topic_filter) for each in (_batches, _payloads, _one_by_one)]
            rates[topic_filter] = found
            print(
                f"client reads {topic_filter:10} batches {found[0]:>10,.0f}/s (goal {GOAL_READ:,})  "
                f"payloads {found[1]:>10,.0f}/s  one by one {found[2]:>10,.0f}/s",
                flush=True,
            )
    return rates


async def _fill(client: Client, messages: int) -> None:
    for _ in range(messages // BATCH_MESSAGES):
        async with client.batch() as batch:
            for _ in range(BATCH_MESSAGES):
                batch.publish("line/7", PAYLOAD)


async def _consume_rates(url: str) -> dict[str, object]:
    rates: dict[str, object] = {}
    async with Client(url) as client:
        await _fill(client, max(CONSUMED.values()))
        for (name, messages), consume in zip(CONSUMED.items(), (_acked, _batches_acked, _awaited), strict=True):
            start_s = time.perf_counter()
            async with client.subscribe("line/7", group=name) as subscription:
                await consume(subscription, messages)
            rates[name] = messages / (time.perf_counter() - start_s)
            goal = "" if consume is _awaited else f" (goal {GOAL_CONSUMED:,})"
            print(f"client consumes, {name:16} {rates[name]:>10,.0f}/s{goal}", flush=True)
    return rates


async def _acked(subscription: Subscription, messages: int) -> None:
    count = 0
    async for message in subscription:
        message.ack()
        count += 1
        if count == messages:
            return


async def _batches_acked(subscription: Subscription, messages: int) -> None:
    count = 0
    async for batch in subscription.batches():
        batch.ack()
        count += len(batch)
        if count >= messages:
            return


async def _awaited(subscription: Subscription, messages: int) -> None:
    count = 0
    async for message in subscription:
        assert await message.ack()
        count += 1
        if count == messages:
            return


async def _rate(read: Callable[[Client, str], Awaitable[int]], client: Client, topic_filter: str) -> float:
    start_s = time.perf_counter()
    assert await read(client, topic_filter) == READ_MESSAGES
    return READ_MESSAGES / (time.perf_counter() - start_s)


async def _batches(client: Client, topic_filter: str) -> int:
    return sum([len(batch) async for batch in client.read(topic_filter).batches()])


async def _payloads(client: Client, topic_filter: str) -> int:
    return sum([sum(1 for _ in batch.payloads()) async for batch in client.read(topic_filter).batches()])


async def _one_by_one(client: Client, topic_filter: str) -> int:
    count = 0
    async for message in client.read(topic_filter):
        count += len(message.payload) == len(PAYLOAD)
    return count


async def _publish_rates(url: str) -> dict[str, object]:
    rates: dict[str, object] = {}
    async with Client(url) as plain, Client(url, autobatch=True) as gathering:
        for publishers, messages in PUBLISHERS.items():
            off = await _publish(plain, publishers, messages)
            on = await _publish(gathering, publishers, messages // 5 if publishers < 100 else messages)
            rates[str(publishers)] = [off, on]
            print(
                f"client, {publishers:3} publishers: {off[0]:>8,.0f}/s p99 {off[1]:6.2f} ms, "
                f"autobatch {on[0]:>8,.0f}/s p99 {on[1]:6.2f} ms, ratio {on[0] / off[0]:.2f}",
                flush=True,
            )
            off, on = [await _send(each, publishers) for each in (plain, gathering)]
            rates[f"{publishers}, not waiting"] = [off, on]
            print(
                f"client, {publishers:3} publishers that do not wait: {off[0]:>8,.0f}/s p99 {off[1]:6.2f} ms, "
                f"autobatch {on[0]:>8,.0f}/s p99 {on[1]:6.2f} ms, ratio {on[0] / off[0]:.2f}",
                flush=True,
            )
    return rates


async def _send(client: Client, publishers: int) -> tuple[float, float]:
    """The same of publishers that send a message a turn of the loop, and wait only for those that are WINDOW behind."""
    waits_ms: list[float] = []

    async def publisher() -> None:
        sent: deque[asyncio.Future[Receipt]] = deque()
        for _ in range(SENT_MESSAGES // publishers):
            start_s = time.perf_counter()
            future = client.send("line/9", PAYLOAD)
            future.add_done_callback(lambda _, at_s=start_s: waits_ms.append((time.perf_counter() - at_s) * 1000))  # type: ignore[misc]
            sent.append(future)
            await (sent.popleft() if len(sent) > WINDOW else asyncio.sleep(0))
        await asyncio.gather(*sent)

    start_s = time.perf_counter()
    await asyncio.gather(*[publisher() for _ in range(publishers)])
    return len(waits_ms) / (time.perf_counter() - start_s), quantiles(waits_ms, n=100)[-1]


async def _publish(client: Client, publishers: int, messages: int) -> tuple[float, float]:
    """(messages/s, p99 of the wait in ms)"""
    waits_ms: list[float] = []

    async def publisher() -> None:
        for _ in range(messages // publishers):
            start_s = time.perf_counter()
            await client.publish("line/8", PAYLOAD)
            waits_ms.append((time.perf_counter() - start_s) * 1000)

    start_s = time.perf_counter()
    await asyncio.gather(*[publisher() for _ in range(publishers)])
    return len(waits_ms) / (time.perf_counter() - start_s), quantiles(waits_ms, n=100)[-1]
