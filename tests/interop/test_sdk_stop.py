"""SIGTERM ends a consumer whether it works or waits: the recipe of docs/sdk.md, and the same without asyncio."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock.sync
from penstock import Client, Delivery, Subscription
from tests.support.server_process import ROOT
from tests.support.store_process import StoreProcess

TIMEOUT_S = 60
MESSAGES = 50  # of half a second each: not even a busy machine is through with them before it is told to stop
WITHOUT_ASYNCIO = """
import sys, time
from penstock import stop_on_signals
from penstock.sync import Client

with Client(sys.argv[1]) as client, client.subscribe("jobs/#", group="workers") as jobs:
    with stop_on_signals(jobs):
        print("ready", flush=True)
        for job in jobs:
            time.sleep(0.5)
            job.ack()
            print("done", job.payload.decode(), flush=True)
print("stopped", flush=True)
"""


def recipe() -> str:
    text = (ROOT / "docs" / "sdk.md").read_text()
    (found,) = re.findall(r"<!-- stop: run by tests/interop/test_sdk_stop.py -->\n```python\n(.*?)```", text, re.DOTALL)
    return str(found)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path)
    yield store
    store.close()


@pytest.fixture(params=["asyncio", "sync"])
def consumer(request: pytest.FixtureRequest, store: StoreProcess) -> Iterator[subprocess.Popen[str]]:
    program = recipe() if request.param == "asyncio" else WITHOUT_ASYNCIO
    process = subprocess.Popen(
        [sys.executable, "-c", program, url_of(store)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


def url_of(store: StoreProcess) -> str:
    return "penstock" + store.url.removeprefix("tcp")


def ended(process: subprocess.Popen[str]) -> list[str]:
    said, errors = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, errors) == (0, "")
    return said.splitlines()


def test_waiting_consumer_ends_by_sigterm(consumer: subprocess.Popen[str]) -> None:
    consumer.send_signal(signal.SIGTERM)
    assert ended(consumer) == ["stopped"]


def test_working_consumer_ends_by_sigterm(consumer: subprocess.Popen[str], store: StoreProcess) -> None:
    """What it works on is done once, and all the rest is another's at once."""
    with penstock.sync.Client(url_of(store)) as client:
        client.publish_many([("jobs/1", b"%d" % number) for number in range(MESSAGES)])
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "done 0\n"
        consumer.send_signal(signal.SIGTERM)
        *done, last = ended(consumer)
        assert last == "stopped"
        finished = 1 + len(done)
        assert finished < MESSAGES
        rest: list[bytes] = []
        with client.subscribe("jobs/#", group="workers") as jobs:
            for job in jobs:
                rest.append(job.payload)
                job.ack()
                if len(rest) == MESSAGES - finished:
                    break
        assert sorted(map(int, rest)) == list(range(finished, MESSAGES))


@pytest.mark.asyncio
async def test_message_in_work_stays_with_its_consumer_at_a_stop(store: StoreProcess) -> None:
    """All else in hand has come to another consumer by the time that it is acked."""
    async with (
        asyncio.timeout(TIMEOUT_S),
        Client(url_of(store)) as client,
        Client(url_of(store)) as other,
        client.subscribe("jobs/#", group="workers") as jobs,
    ):
        await client.publish_many([("jobs/1", b"%d" % number) for number in range(5)])
        taken = [job async for job in jobs if await is_acked_after_stop(jobs, job, other)]
        assert [job.payload for job in taken] == [b"0"]


async def is_acked_after_stop(jobs: Subscription, job: Delivery, other: Client) -> bool:
    jobs.stop()
    rest = []
    async with other.subscribe("jobs/#", group="workers") as others:
        async for each in others:
            rest.append(each.payload)
            assert await each.ack()
            if len(rest) == 4:
                break
        assert sorted(rest) == [b"1", b"2", b"3", b"4"]
        return await job.ack()
