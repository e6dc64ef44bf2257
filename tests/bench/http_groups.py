"""A group over HTTP beside the SDK: messages that are popped and acknowledged a second, and CPU time of the console.

    python -m tests.bench.http_groups FOLDER [ROUNDS]

One program at a time, over one connection that stays open, takes messages of 100 bytes. A program of the SDK has so
many in hand (`prefetch`), and awaits the answer to the ack of each batch. By HTTP each pop is followed by one ack of
what it had. Rounds go in turn, medians count. Store, console and program share the machine's cores.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import psutil
import uvloop

from penstock.sdk.client import Client
from tests.interop.test_console_api import Site
from tests.support.console_process import API
from tests.support.store_process import StoreProcess

COUNT, ONE_BY_ONE = 20_000, 1_000
BATCHES = (1, 10, 100, 1_000)
PAYLOAD = "x" * 100
HEADERS = {"Content-Type": "application/json"}
TOPIC = "bench/1"


class Program:
    """Takes what was published before, in a group of its own."""

    def __init__(self, site: Site, group: str, number: int) -> None:
        self.site, self.group, self.number = site, group, number
        self._http = HTTPConnection(site.console.url.removeprefix("http://"), timeout=60)

    def _post(self, what: str, **body: object) -> dict[str, list[dict[str, object]]]:
        sent = msgspec.json.encode({"filter": TOPIC} | body)
        self._http.request("POST", f"{API}/groups/{self.group}/{what}", sent, HEADERS)
        response = self._http.getresponse()
        data = response.read()
        assert response.status == 200, data
        found: dict[str, list[dict[str, object]]] = msgspec.json.decode(data)
        return found

    async def by_http(self, most: int) -> None:
        left = self.number
        while left:
            popped = self._post("pop", most=min(most, left), wait_s=10)["messages"]
            self._post("ack", handles=[each["handle"] for each in popped])
            left -= len(popped)
        self._http.close()

    async def by_sdk(self, most: int) -> None:
        left = self.number
        async with (
            Client(self.site.store.url.replace("tcp://", "penstock://")) as client,
            client.subscribe(TOPIC, group=self.group, prefetch=most) as messages,
        ):
            async for batch in messages.batches():
                left -= len(batch)
                assert await batch.ack()
                if left <= 0:
                    return

    async def by_sdk_ahead(self, most: int) -> None:
        """As most programs do, whatever `most` is: it awaits the answer to the last ack alone."""
        left = self.number
        async with (
            Client(self.site.store.url.replace("tcp://", "penstock://")) as client,
            client.subscribe(TOPIC, group=self.group) as messages,
        ):
            async for message in messages:
                answer = message.ack()
                left -= 1
                if not left:
                    assert await answer
                    return


def rate(site: Site, group: str, most: int, takes: Callable[[Program, int], Awaitable[None]]) -> tuple[float, float]:
    """Messages a second, and microseconds of the console's CPU time for each."""
    program = Program(site, group, ONE_BY_ONE if most == 1 else COUNT)
    console = psutil.Process(site.console.process.pid)
    cpu_s, began_s = sum(console.cpu_times()[:2]), time.monotonic()

    async def work() -> None:
        await takes(program, most)

    uvloop.run(work())
    used_s = sum(console.cpu_times()[:2]) - cpu_s
    return program.number / (time.monotonic() - began_s), used_s / program.number * 1e6


def main(folder: Path, rounds: int) -> None:
    store = StoreProcess(folder)
    site = Site(folder, store)
    try:
        for _ in range(COUNT // 10_000):
            asyncio.run(publish(store, 10_000))
        found: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for number in range(rounds):
            for most in BATCHES:
                ways = [("SDK", Program.by_sdk), ("HTTP", Program.by_http)]
                if most == BATCHES[-1]:
                    ways.append(("SDK, not waiting", Program.by_sdk_ahead))
                for name, takes in ways:
                    measured = rate(site, f"{name[-7:]}-{most}-{number}", most, takes)
                    found.setdefault((name, most), []).append(measured)
    finally:
        site.console.close()
        store.close()
    for (name, most), each in found.items():
        rates, costs = (sorted(values) for values in zip(*each, strict=True))
        median, cost = statistics.median(rates), statistics.median(costs)
        span = f"({rates[0]:,.0f} to {rates[-1]:,.0f})"
        print(f"{name:16} {most:5} at a time: {median:9,.0f}/s {span}, console {cost:.0f} us")


async def publish(store: StoreProcess, number: int) -> None:
    async with Client(store.url.replace("tcp://", "penstock://")) as client:
        await client.publish_many([(TOPIC, PAYLOAD)] * number)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    main(where, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
