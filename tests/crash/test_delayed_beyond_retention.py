"""Delayed messages that are due long after their record has gone from the log, in a store that is killed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock import Client
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

pytestmark = pytest.mark.asyncio

SETTINGS = {
    "store.segment_bytes": 262_144,
    "gateway.maximum_packet_size_bytes": 65_536,
    "store.retention_bytes": 600_000,
    "store.retention_check_s": 1,
}
FIRST_LOG_OFFSET = "penstock_log_first_log_offset"
DELAY_S = 20
COUNT = 30
ROUNDS = 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path, settings=SETTINGS)
    yield store
    store.close()


@pytest.mark.catalogue("J37", "J39")
async def test_each_comes_once_in_time_though_its_segment_is_gone(store: StoreProcess) -> None:
    async with Client(store.url.replace("tcp://", "penstock://")) as client:
        receipts = [
            await client.publish(f"later/{number % 3}", b"%d" % number, key=f"k{number}", delay=DELAY_S + number % 2)
            for number in range(COUNT)
        ]
        for cancelled in range(ROUNDS):
            last = max([pending.receipt.log_offset async for pending in client.delayed()])
            while store.metric(FIRST_LOG_OFFSET) <= max(last, receipts[-1].log_offset):
                await asyncio.gather(*(client.publish("filler", bytes(4_000), compress=False) for _ in range(100)))
            assert await receipts[cancelled].cancel()  # by what its receipt said at first
            pending = [each async for each in client.delayed("later/#")]
            assert {each.key for each in pending} == {f"k{number}" for number in range(cancelled + 1, COUNT)}
            assert {each.due_at for each in pending} == {each.due_at for each in receipts[cancelled + 1 :]}
            assert receipts[-1].due_at is not None
            assert datetime.now(UTC) < receipts[cancelled].due_at, "raise DELAY_S"  # type: ignore[operator]
            await asyncio.to_thread(store.restart)
        found = []
        async for message in client.read("later/#", stop=None):
            due_at = receipts[int(message.payload)].due_at
            assert due_at is not None
            assert message.stored_at >= due_at
            assert message.topic == f"later/{int(message.payload) % 3}"
            found.append(int(message.payload))
            if len(found) == COUNT - ROUNDS:
                break
        assert sorted(found) == list(range(ROUNDS, COUNT))
        await asyncio.to_thread(wait_until, lambda: store.metric("penstock_delayed_pending") == 0)
        assert len([message async for message in client.read("later/#")]) == COUNT - ROUNDS
