"""publish_many(): messages of any topics in few Publishes, each with its receipt."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest

from penstock import Client, sync
from penstock.sdk.errors import BadMessage, ClientClosed, NotAllStored, StoreRefused, TimedOut
from penstock.sdk.many import ToPublish
from tests.interop.conftest import StartStore
from tests.support.store_process import StoreProcess

MESSAGES = 5_000


def mixed(randomly: random.Random) -> list[ToPublish]:
    """Of many topics, live ones among them, some with a key, a header, retain or a `wait`, or worth compressing."""
    made: list[ToPublish] = []
    for number in range(MESSAGES):
        topic = f"many/{randomly.randrange(50)}" if randomly.random() < 0.9 else f"live/{randomly.randrange(3)}"
        payload = b"%d " % number + bytes(randomly.choice([0, 1, 100, 5_000 if number % 50 == 0 else 7]))
        kind = randomly.randrange(40)
        options: Any = {
            0: {"key": f"k{number}"},
            1: {"headers": {"n": "1"}},
            2: {"retain": True},
            3: {"wait": "stored"},
        }
        made.append((topic, payload, options[kind]) if kind in options else (topic, payload))
    made.append(("many/text", "é"))
    return made


@pytest.mark.asyncio
async def test_each_has_the_receipt_that_publish_would_give(url: str) -> None:
    messages = mixed(random.Random(5))
    async with Client(url, timeout_s=60) as client:
        first = await client.publish("many/0", b"before")
        receipts = await client.publish_many(message for message in messages)
        behind = await client.publish("many/0", b"behind")
        assert [receipt.queue for receipt in receipts] == [message[0] for message in messages]
        offsets = [receipt.log_offset for receipt in receipts]
        assert [first.log_offset, *offsets, behind.log_offset] == sorted(
            {first.log_offset, *offsets, behind.log_offset}
        )
        for number in range(0, len(messages), 97):
            receipt, (topic, payload, *options) = receipts[number], messages[number]
            if topic.startswith("live/"):  # no queue has it, so it is not found again
                continue
            found = await client.get(receipt.message_id)
            assert found.topic == topic
            assert found.payload == (payload.encode() if isinstance(payload, str) else payload)
            assert found.key == (options[0].get("key") if options else None)
        for topic in ("many/0", "many/7"):
            mine = [receipt.queue_offset for receipt in receipts if receipt.queue == topic]
            begin = 1 if topic == "many/0" else 0
            assert mine == list(range(begin, begin + len(mine)))
        assert {receipt.queue_offset for receipt in receipts if receipt.queue.startswith("live/")} == {None}
        assert await client.publish_many([]) == []


def test_the_blocking_client_gives_the_same(url: str) -> None:
    with sync.Client(url) as client:
        receipts = client.publish_many([(f"b/{number % 3}", b"%d" % number) for number in range(10)])
        assert [client.get(receipt.message_id).payload for receipt in receipts] == [b"%d" % n for n in range(10)]
        assert [receipt.queue_offset for receipt in receipts] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
        assert [(receipt.due_at, receipt.cancel()) for receipt in receipts[:1]] == [(None, False)]
    with pytest.raises(ClientClosed):
        client.publish_many([("b/1", b"x")])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (("a/+", b""), BadMessage),
        (("a", b"", {"delay": timedelta(seconds=1)}), BadMessage),
        (("$dead/g/a", b""), BadMessage),
        (("a", 7), TypeError),
        (("a", b"", {"colour": "red"}), TypeError),
        (("a", random.Random(1).randbytes(9 << 20)), StoreRefused),
    ],
)
async def test_a_bad_one_and_nothing_is_sent(url: str, bad: Any, error: type[Exception]) -> None:
    async with Client(url) as client:
        with pytest.raises(error):
            await client.publish_many([("a", b"%d" % number) for number in range(5_000)] + [bad])
        assert [message async for message in client.read("#")] == []


@pytest.mark.asyncio
async def test_publish_many_without_an_answer_names_each_message(start_client_store: StartStore) -> None:
    running: StoreProcess = start_client_store()
    async with Client(running.url.replace("tcp://", "penstock://"), timeout_s=0.5) as client:
        await client.publish("a", b"there")
        running.kill()
        with pytest.raises(NotAllStored, match="3 of 3 messages were not stored") as caught:
            await client.publish_many([("a", b"1"), ("b", b"2"), ("a", b"3")])
        assert {type(outcome) for outcome in caught.value.outcomes} == {TimedOut}


@pytest.mark.asyncio
async def test_cancelled_publish_many_disturbs_nothing(url: str) -> None:
    async with Client(url) as client:
        sending = asyncio.create_task(client.publish_many([("a", bytes(1_000))] * 20_000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert (await client.publish("b", b"x")).queue_offset == 0
