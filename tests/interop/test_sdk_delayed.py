"""Delayed messages of the client, and `penstock delayed`, against a real `penstock store`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

import penstock.sync
from penstock import Client
from penstock.sdk.errors import BadMessage, BatchRefused
from tests.interop.programs import penstock as command
from tests.interop.programs import run
from tests.support.store_process import StoreProcess


@pytest_asyncio.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url) as client:
        yield client


@pytest.mark.asyncio
@pytest.mark.catalogue("J38")
async def test_delayed_message_of_the_client_comes_when_due(client: Client) -> None:
    start_s = time.time()
    later, now, soon = await asyncio.gather(
        client.publish("t", b"later", key="k", delay=timedelta(seconds=1)),
        client.publish("t", b"now"),
        client.publish("t", b"soon", delay=0.4),
    )
    assert (later.queue_offset, now.queue_offset, soon.queue_offset) == (None, 0, None)
    assert now.due_at is None
    assert later.due_at is not None
    assert abs(later.due_at.timestamp() - start_s - 1) < 0.9
    came = {}
    async for message in client.read("t", stop=None):
        came[message.payload] = time.time()
        if message.payload == b"later":
            break
    assert list(came) == [b"now", b"soon", b"later"]
    assert came[b"later"] >= later.due_at.timestamp() - 0.05  # two readings of one clock, each in whole ms
    assert not await later.cancel()
    assert not await now.cancel()
    (found,) = await client.find("k")
    assert (found.payload, found.key) == (b"later", "k")


@pytest.mark.asyncio
@pytest.mark.catalogue("J38")
async def test_none_of_many_is_early_or_more_than_a_second_late(client: Client) -> None:
    """One of three rounds on a busy machine, which may stand still for longer by itself; early it is in none."""
    latest: list[timedelta] = []
    for turn in range(3):
        begun = [client.publish(f"late/{turn}", b"%d" % n, delay=1 + n / 2_000) for n in range(2_000)]
        due_at = [receipt.due_at for receipt in await asyncio.gather(*begun)]
        late = []
        async for message in client.read(f"late/{turn}", stop=None):
            due = due_at[int(message.payload)]
            assert due is not None
            late.append(message.stored_at - due)
            if len(late) == len(due_at):
                break
        assert min(late) >= timedelta(0)
        latest.append(max(late))
        if latest[-1] <= timedelta(seconds=1):
            return
    pytest.fail(f"the latest of each round: {latest}")


@pytest.mark.asyncio
@pytest.mark.catalogue("J39")
async def test_taking_back_and_what_is_pending(client: Client, running: StoreProcess) -> None:
    receipts = [
        await client.publish(f"line/{number % 2}", b"%d" % number, key=f"k{number}", delay=3_600 + number)
        for number in range(10)
    ]
    assert [pending.key async for pending in client.delayed()] == [f"k{number}" for number in range(10)]
    odd = [pending async for pending in client.delayed("line/1")]
    assert [pending.key for pending in odd] == ["k1", "k3", "k5", "k7", "k9"]
    assert odd[0].receipt.log_offset == receipts[1].log_offset
    assert odd[0].due_at == receipts[1].due_at
    assert odd[0].due_at > datetime.now(UTC) + timedelta(minutes=59)
    assert await receipts[0].cancel()
    assert not await receipts[0].cancel()
    assert await odd[0].cancel()
    async for pending in client.delayed(key="k2"):
        assert await pending.cancel()
    await asyncio.to_thread(running.restart)
    assert [pending.key async for pending in client.delayed("line/#")] == [f"k{number}" for number in range(3, 10)]


@pytest.mark.asyncio
@pytest.mark.catalogue("D12")
async def test_invalid_delays_are_refused(client: Client) -> None:
    with pytest.raises(BadMessage, match=r"delay=-1; the store takes 0 to 31536000 seconds \(its setting store.max_d"):
        await client.publish("t", delay=-1)
    with pytest.raises(BadMessage, match="delay=500 days"):
        await client.publish("t", delay=timedelta(days=500))
    async with client.batch() as batch:
        with pytest.raises(BatchRefused, match="no delayed message"):
            batch.publish("t", b"x", delay=1)


def test_the_blocking_client_and_the_command(url: str, running: StoreProcess) -> None:
    def delayed(*arguments: str, code: int = 0) -> bytes:
        return run(*command("delayed", *arguments, "--store", running.url), code=code)

    with penstock.sync.Client(url) as client:
        assert b"delayed messages (0)" in delayed("list")
        receipt = client.publish("line/7/stop", b"x", key="k-7", delay=600)
        sent = client.send("line/8/stop", b"x", delay=timedelta(minutes=20)).result()
        assert client.publish("line/7/stop", b"x").cancel() is False
        first, second = json.loads(delayed("list", "--json"))
        assert receipt.due_at is not None
        assert first == {
            "id": f"{receipt.log_offset}-{round(receipt.due_at.timestamp() * 1000)}",
            "due": receipt.due_at.isoformat(timespec="milliseconds"),
            "topic": "line/7/stop",
            "key": "k-7",
        }
        assert second["key"] is None
        assert [each["topic"] for each in json.loads(delayed("list", "--filter", "+/8/#", "--json"))] == ["line/8/stop"]
        assert json.loads(delayed("list", "--key", "k-7", "-n", "1", "--json")) == [first]
        assert b"line/8/stop" in delayed("list")
        assert b"is cancelled" in delayed("cancel", second["id"])
        assert sent.cancel() is False
        delayed("cancel", second["id"], code=1)
        delayed("cancel", "7", code=2)
        (pending,) = client.delayed("line/#")
        assert (pending.topic, pending.key, pending.due_at) == ("line/7/stop", "k-7", receipt.due_at)
        assert pending.cancel()
        assert client.delayed() == []
