"""The client's consumers of a group: the store is killed under them, and one of them hangs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock import Client
from penstock.sdk.hands import Answer
from tests.support.server_process import ROOT
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

pytestmark = pytest.mark.asyncio

KILLS = 4
TAGS = ("a", "b", "c", None)
PER_ROUND = 500  # messages that are done with between two kills


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path)
    yield store
    store.close()


@pytest.mark.parametrize(
    "tag",
    [
        None,
        pytest.param("a||b", marks=pytest.mark.catalogue("R77")),
        pytest.param("a > b", marks=pytest.mark.catalogue("Q72")),
    ],
)
@pytest.mark.catalogue("K41")
async def test_consuming_goes_on_through_kills(store: StoreProcess, tag: str | None) -> None:
    """With a tag half of what is published is the group's."""
    url = store.url.replace("tcp://", "penstock://")
    published: list[bytes] = []
    sent = 0
    answered: set[bytes] = set()
    unsure: set[bytes] = set()  # the store was killed before it answered: it may know, or not
    again: list[bytes] = []
    progress = asyncio.Event()
    is_over = False

    async def publish(client: Client) -> None:
        nonlocal sent
        while not is_over:
            if len(published) - len(answered) > 5_000:
                await asyncio.sleep(0.01)
                continue
            payloads = [b"%d" % number for number in range(sent, sent + 50)]
            sent += len(payloads)
            made = [(each, TAGS[int(each) % 4]) for each in payloads]
            await asyncio.gather(*(client.publish(f"work/{int(each) % 5}", each, tag=of) for each, of in made))
            published.extend(each for each, of in made if tag is None or of in ("a", "b"))

    async def settle(payload: bytes, answer: Answer) -> None:
        if await answer:
            answered.add(payload)
        else:
            unsure.add(payload)
        progress.set()

    async def work(client: Client) -> None:
        settling: set[asyncio.Task[None]] = set()
        async for message in client.subscribe("work/#", group="g", invisible=1.0, max_deliveries=0, tag=tag):
            assert tag is None or message.tag in ("a", "b")
            if message.payload in answered:
                again.append(message.payload)
            task = asyncio.create_task(settle(message.payload, message.ack()))
            settling.add(task)
            task.add_done_callback(settling.discard)

    async def until(count: int) -> None:
        async with asyncio.timeout(60):
            while len(answered) < count:
                progress.clear()
                await progress.wait()

    async with Client(url) as client, Client(url) as second:
        workers = [asyncio.create_task(work(each)) for each in (client, second, second)]
        publishing = asyncio.create_task(publish(client))
        for _ in range(KILLS):
            await until(len(answered) + PER_ROUND)
            await asyncio.to_thread(store.restart)
        await until(len(answered) + PER_ROUND)
        is_over = True
        await publishing
        async with asyncio.timeout(60):
            while len(answered | unsure) < len(published):
                progress.clear()
                await progress.wait()
        for worker in workers:
            worker.cancel()
    assert again == []
    assert answered | unsure == set(published)
    assert len(unsure) < len(published) / 2


async def test_messages_handed_out_by_a_killed_store_are_not_worked_on_meanwhile(store: StoreProcess) -> None:
    """Its successor deals it out anew: another consumer may be done with it before this one has connected again."""
    url = store.url.replace("tcp://", "penstock://")
    async with Client(url) as client, asyncio.timeout(60):
        await asyncio.gather(*(client.publish("work/1", b"%d" % number) for number in range(500)))
        messages = aiter(client.subscribe("work/1", group="g"))
        taken = [await anext(messages) for _ in range(60)]  # so quickly that more are asked for ahead
        for message in taken[:10]:
            assert await message.ack()
        await asyncio.to_thread(store.kill)
        link = client._link
        assert link is not None
        await asyncio.to_thread(wait_until, lambda: link.requests.welcome is None)
        late = asyncio.ensure_future(anext(messages))
        done, _ = await asyncio.wait([late], timeout=0.5)
        assert not done, late.result()
        await asyncio.to_thread(store.start)
        async with Client(url) as second:
            async for message in second.subscribe("work/1", group="g"):
                assert message.payload not in {each.payload for each in taken[:10]}
                assert await message.ack()
                break
        again = await late
        assert again.payload != message.payload


PROGRAM = """
import asyncio, sys
from penstock import Client

async def main(url, work_s):
    async with Client(url) as client:
        async for message in client.subscribe("work/#", group="g", invisible=1.5):
            print("got", message.payload.decode(), flush=True)
            await asyncio.sleep(float(work_s))
            work_s = "0.001"
            if await message.ack():
                print("acked", message.payload.decode(), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Worker:
    """A consumer as a process."""

    def __init__(self, folder: Path, name: str, url: str, work_s: float) -> None:
        self._output = folder / f"{name}.out"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, url, str(work_s)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output
            )

    def said(self, word: str) -> list[int]:
        lines = self._output.read_text().splitlines(keepends=True)
        return [int(line.split()[1]) for line in lines if line.endswith("\n") and line.split()[0] == word]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.catalogue("K40")
async def test_hung_consumer_holds_back_nothing_and_goes_on_later(store: StoreProcess, tmp_path: Path) -> None:
    url = store.url.replace("tcp://", "penstock://")
    workers = [Worker(tmp_path, "hung", url, 5)] + [Worker(tmp_path, f"w{n}", url, 0.001) for n in range(2)]
    hung, *others = workers
    try:
        async with Client(url) as client:
            sent = 0
            async with asyncio.timeout(30):
                while not all(each.said("got") for each in workers):
                    await asyncio.gather(*(client.send("work/1", b"%d" % number) for number in range(sent, sent + 20)))
                    sent += 20
                    await asyncio.sleep(0.05)
            psutil.Process(hung.process.pid).suspend()
            held = set(hung.said("got"))
            await asyncio.gather(*(client.send("work/1", b"%d" % number) for number in range(sent, sent + 200)))
            sent += 200
            assert held
            await asyncio.to_thread(wait_until, lambda: _all(others, "acked") == set(range(sent)), 30)
            assert not hung.said("acked")
            for each in others:
                each.end()
            psutil.Process(hung.process.pid).resume()
            await asyncio.gather(*(client.publish("work/1", b"%d" % number) for number in range(sent, sent + 20)))
            await asyncio.to_thread(wait_until, lambda: set(hung.said("acked")) >= set(range(sent, sent + 20)), 30)
            assert set(hung.said("acked")) == set(range(sent, sent + 20))  # what others did is not its any more
    finally:
        for each in workers:
            each.end()


def _all(workers: list[Worker], word: str) -> set[int]:
    return {number for each in workers for number in each.said(word)}
