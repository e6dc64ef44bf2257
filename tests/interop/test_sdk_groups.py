"""Consumer groups in the client, against a real `penstock store`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from penstock import Client
from penstock.sdk.delivery import Delivery
from penstock.sdk.errors import AlreadySettled, BadOption, BadPosition, ClientClosed, StoreRefused, TimedOut
from store.wire.group_messages import GroupDrop, GroupInfo, GroupList, GroupOpen, GroupReset, GroupsListed, Popped
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_relay import FrameWire

pytestmark = pytest.mark.asyncio
LONG_S = 3_600  # an invisible time that no test waits for


@pytest_asyncio.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url) as client:
        yield client


async def publish(client: Client, topic: str, count: int, first: int = 0, **options: Any) -> None:
    await asyncio.gather(*(client.send(topic, b"%d" % number, **options) for number in range(first, first + count)))


async def take(subscription: AsyncIterator[Delivery], count: int) -> list[Delivery]:
    return [await anext(subscription) for _ in range(count)]


def numbers(messages: list[Delivery]) -> list[int]:
    return [int(message.payload) for message in messages]


async def groups(client: Client) -> list[GroupInfo]:
    answer, _ = await client._ask(GroupList("", 0))
    assert isinstance(answer, GroupsListed)
    return answer.groups


async def info(client: Client) -> GroupInfo:
    (found,) = await groups(client)
    return found


async def until(client: Client, is_so: Callable[[GroupInfo], bool], timeout_s: float = 20) -> None:
    async with asyncio.timeout(timeout_s):
        while not any(map(is_so, await groups(client))):  # noqa: ASYNC110 it is another process's state
            await asyncio.sleep(0.01)


async def test_acknowledged_messages_do_not_come_again(client: Client) -> None:
    await publish(client, "line/7/temp", 1_000, key="k", headers={"unit": "C"})
    found: list[int] = []
    async for message in client.subscribe("line/7/temp", group="g"):
        assert (message.topic, message.key, message.headers) == ("line/7/temp", "k", {"unit": "C"})
        assert (message.queue_offset, message.deliveries) == (len(found), 1)
        answer = message.ack()
        found.append(int(message.payload))
        if len(found) == 1_000:
            assert await answer
            break
    assert found == list(range(1_000))
    assert (await info(client)).lag == 0


async def test_batches_are_acked_as_one(client: Client) -> None:
    await publish(client, "line/7", 500)
    found: list[bytes] = []
    async for batch in client.subscribe("line/#", group="g").batches():
        first, *_ = batch
        assert first.queue_offset is None  # its place in the filter's queue is nobody's business
        assert await first.ack()
        found += batch.payloads()
        assert await batch.ack()
        if len(found) == 500:
            break
    assert found == [b"%d" % number for number in range(500)]
    assert (await info(client)).lag == 0


async def test_leaving_gives_back_at_once_and_what_nobody_saw_was_not_delivered(client: Client) -> None:
    await publish(client, "t", 300)
    seen = []
    async for message in client.subscribe("t", group="g", invisible=LONG_S):
        seen.append(message)
        if len(seen) == 100:
            break
        if len(seen) > 2:
            assert await message.ack()
    await until(client, lambda group: not group.consumers)
    assert not await seen[0].ack()  # too late
    async with client.subscribe("t", group="g") as subscription:
        others = aiter(subscription)
        again = await take(others, 203)
        deliveries = {number: message.deliveries for number, message in zip(numbers(again), again, strict=True)}
        assert sorted(deliveries) == [0, 1, *range(99, 300)]
        assert [number for number, count in deliveries.items() if count > 1] == [0, 1, 99]


async def test_messages_under_way_to_a_leaving_consumer_do_not_count_as_delivered(
    running: StoreProcess, client: Client
) -> None:
    """The store has handed messages out, and the consumer leaves before it gets them."""
    port = urlsplit(running.url).port
    assert port is not None
    wire = FrameWire(port)
    wire.loses = (Popped,)
    try:
        await publish(client, "t", 50)
        async with Client(f"penstock://127.0.0.1:{wire.port}") as other:
            subscription = other.subscribe("t", group="g", invisible=LONG_S)
            waiting = asyncio.create_task(anext(aiter(subscription), None))
            await until(client, lambda group: group.in_flight > 0)
            await subscription.aclose()
            assert await waiting is None
            await until(client, lambda group: not group.consumers)
            async with client.subscribe("t", group="g") as again:
                assert [message.deliveries for message in await take(aiter(again), 50)] == [1] * 50
    finally:
        wire.close()


async def test_closing_the_client_ends_its_loops_and_gives_back(url: str, client: Client) -> None:
    await publish(client, "t", 5)
    other = Client(url)
    await other.connect()
    seen: list[Delivery] = []

    async def consume() -> None:
        async for message in other.subscribe("t", group="g", invisible=LONG_S):
            seen.append(message)

    consuming = asyncio.create_task(consume())
    await until(client, lambda _: len(seen) == 5)
    assert not consuming.done()
    first = seen[0].ack()
    await other.close()
    await consuming
    assert await first
    assert not await seen[1].ack()
    async with client.subscribe("t", group="g") as subscription:
        assert sorted(numbers(await take(aiter(subscription), 4))) == [1, 2, 3, 4]
    with pytest.raises(ClientClosed):
        other.subscribe("t", group="g")


@pytest.mark.catalogue("K41")
async def test_retry_reject_and_extend(client: Client) -> None:
    await publish(client, "t", 4)
    async with client.subscribe("t", group="g", invisible=1, retry_after=LONG_S) as subscription:
        messages = aiter(subscription)
        again, soon, dead, kept = await take(messages, 4)
        asked_s = time.monotonic()
        assert all(await asyncio.gather(again.retry(), soon.retry(after=timedelta(seconds=0.3)), kept.extend(LONG_S)))
        assert await dead.reject("no such order")
        with pytest.raises(AlreadySettled, match="settled already"):
            dead.ack()
        (returned,) = await take(messages, 1)
        assert time.monotonic() - asked_s >= 0.29
        assert (returned.payload, returned.deliveries) == (soon.payload, 2)
        assert await returned.ack()
        await asyncio.sleep(asked_s + 1.5 - time.monotonic())
        assert await kept.ack()  # it was not given to anybody
        async for message in client.read("$dead/g/t"):
            assert (message.payload, message.headers["penstock-reason"]) == (dead.payload, "no such order")
        left = await info(client)
        assert (left.lag, left.retries, left.dead_letters) == (1, 1, 1)


@pytest.mark.catalogue("B6")
async def test_an_ordered_group_keeps_the_order_of_each_key(url: str, client: Client) -> None:
    keys, each = 8, 40
    for number in range(each):
        await asyncio.gather(*(client.send("orders/new", b"%d" % number, key=f"k{key}") for key in range(keys)))
    found: dict[str, list[int]] = {f"k{key}": [] for key in range(keys)}
    is_done = asyncio.Event()
    busy: set[str] = set()

    async def work(worker: Client) -> None:
        async for message in worker.subscribe("orders/#", group="g", ordered=True, partitions=4):
            assert message.key is not None
            assert message.key not in busy
            busy.add(message.key)
            await asyncio.sleep(0)
            found[message.key].append(int(message.payload))
            busy.remove(message.key)
            assert await message.ack()
            if sum(map(len, found.values())) == keys * each:
                is_done.set()

    async with Client(url) as second:
        workers = [asyncio.create_task(work(worker)) for worker in (client, second)]
        await asyncio.wait_for(is_done.wait(), 60)
        some = (await info(client)).some
        assert sorted(len(each.partitions) for each in some) == [2, 2]
        for worker in workers:
            worker.cancel()
    assert set(map(tuple, found.values())) == {tuple(range(each))}
    with pytest.raises(StoreRefused, match="group g has 4 partitions, not 16"):
        await anext(aiter(client.subscribe("orders/#", group="g", ordered=True)))


async def test_prefetch_bounds_what_is_in_hand(client: Client) -> None:
    await publish(client, "t", 50)
    async with client.subscribe("t", group="g", prefetch=10) as subscription:
        messages = aiter(subscription)
        held = await take(messages, 10)
        following = asyncio.ensure_future(anext(messages))
        await asyncio.wait([following], timeout=0.2)
        assert not following.done()
        assert (await info(client)).in_flight == 10
        assert await held[0].ack()
        assert int((await following).payload) == 10


async def test_slots_of_messages_that_are_never_settled_come_free(client: Client) -> None:
    await publish(client, "t", 3)
    async with client.subscribe("t", group="g", prefetch=1, invisible=0.3) as subscription:
        messages = aiter(subscription)
        (lost,) = await take(messages, 1)
        (other,) = await take(messages, 1)
        assert {int(lost.payload), int(other.payload)} <= {0, 1}


@pytest.mark.catalogue("K40")
async def test_slow_consumer_keeps_nothing_from_others(url: str, client: Client) -> None:
    await publish(client, "t", 40)
    found: dict[str, list[Delivery]] = {"slow": [], "fast": []}

    async def work(name: str, worker: Client, work_s: float) -> None:
        async for message in worker.subscribe("t", group="g", invisible=LONG_S):
            await asyncio.sleep(work_s)
            found[name].append(message)
            message.ack()

    async with Client(url) as second:
        slow = asyncio.create_task(work("slow", client, 1.0))
        fast = asyncio.create_task(work("fast", second, 0.001))
        await until(client, lambda group: not group.lag)
        assert len(found["slow"]) + len(found["fast"]) == 40
        assert len(found["slow"]) <= 3
        slow.cancel()
        fast.cancel()


async def test_consumer_that_becomes_slow_gives_unseen_messages_back(url: str, client: Client) -> None:
    await publish(client, "t", 1_000)
    async with Client(url) as second:
        seen = 0
        async with client.subscribe("t", group="g", invisible=LONG_S) as subscription:
            async for message in subscription:
                message.ack()
                seen += 1
                if seen == 500:
                    break
            async with second.subscribe("t", group="g") as other:  # while this one looks at nothing more
                for message in await take(aiter(other), 500):
                    assert (int(message.payload) >= 500, message.deliveries) == (True, 1)


async def test_consumer_that_takes_nothing_holds_nothing(client: Client) -> None:
    async with client.subscribe("t", group="g", invisible=LONG_S), client.subscribe("t", group="g") as subscription:
        await publish(client, "t", 10)
        assert sorted(numbers(await take(aiter(subscription), 10))) == list(range(10))


async def test_a_stopped_store_is_waited_for(url: str, running: StoreProcess) -> None:
    async with Client(url, timeout_s=0.5) as client:
        await publish(client, "t", 2)
        async with client.subscribe("t", group="g") as subscription:
            messages = aiter(subscription)
            first, second = await take(messages, 2)
            running.pause()
            with pytest.raises(TimedOut, match="the message may come again"):
                await first.ack()
            running.resume()
            assert await second.ack()


async def test_invalid_options_of_group_subscriptions_are_refused(client: Client) -> None:
    with pytest.raises(BadOption, match="without / "):
        client.subscribe("t", group="a/b")
    with pytest.raises(BadOption, match="partitions= is for ordered groups"):
        client.subscribe("t", group="g", ordered=False, partitions=4)
    with pytest.raises(BadOption, match="prefetch=0; use 1 to 65536"):
        client.subscribe("t", group="g", prefetch=0)
    with pytest.raises(BadOption, match="invisible=0; use 1 ms to 7 days"):
        client.subscribe("t", group="g", invisible=0)
    with pytest.raises(BadPosition, match="a group begins at 'earliest'"):
        client.subscribe("t", group="g", start=4096)
    with pytest.raises(StoreRefused, match="topic filter"):
        await anext(aiter(client.subscribe("a/#/b", group="g")))


async def test_a_group_begins_where_it_is_told(client: Client) -> None:
    await publish(client, "t", 10)
    for group, start, first in (("now", "now", 10), ("at", "@7", 7), ("ago", timedelta(hours=1), 0)):
        async with client.subscribe("t", group=group, start=start) as subscription:
            if start == "now":
                await publish(client, "t", 1, 10)
            assert numbers(await take(aiter(subscription), 1)) == [first]


@pytest.mark.parametrize("start", ["earliest", timedelta(hours=1), "@0"])
async def test_a_beginning_that_no_queue_has_is_refused(client: Client, start: str | timedelta) -> None:
    await publish(client, "a/t", 3)
    for topic_filter in ("#", "a/+", "+/t"):
        for _ in range(2):
            with pytest.raises(StoreRefused, match=r"no queue has what was stored before of .*; let the group begin"):
                async with client.subscribe(topic_filter, group="g", start=start):
                    pass
        with pytest.raises(StoreRefused, match="start='now'"):
            await anext(aiter(client.subscribe(topic_filter, group="g", start=start)))
        assert await groups(client) == []
    for topic_filter in ("a/t", "a/#"):
        async with client.subscribe(topic_filter, group="g", start=start) as subscription:
            assert numbers(await take(aiter(subscription), 3)) == [0, 1, 2]
    async with client.subscribe("a/+", group="g", start="now"):
        await publish(client, "a/t", 1, 3)
    async with client.subscribe("a/+", group="g", start=start) as subscription:  # it is there
        assert numbers(await take(aiter(subscription), 1)) == [3]


async def test_a_tenants_group_has_all_of_its_namespace(url: str) -> None:
    async with Client(url, namespace="acme") as tenant:
        await publish(tenant, "a/t", 3)
        async with tenant.subscribe("#", group="g", start="earliest") as subscription:
            assert numbers(await take(aiter(subscription), 3)) == [0, 1, 2]
        with pytest.raises(StoreRefused, match=r"stored before of a/#, only"):
            async with tenant.subscribe("a/#", group="g", start="earliest"):
                pass


async def test_a_group_over_a_filter_without_a_queue_begins_now_and_the_log_says_so(
    client: Client, running: StoreProcess
) -> None:
    """A topic and level/# have queues with all there is, other filters have none before their first use."""
    await publish(client, "a/t", 3)
    for topic_filter, first in (("#", 3), ("a/+", 4), ("a/#", 0)):
        async with client.subscribe(topic_filter, group=f"of-{first}") as subscription:
            messages = aiter(subscription)
            if first:
                asked = asyncio.ensure_future(anext(messages))
                await until_said(running, f"a group over {topic_filter} begins now")
                await publish(client, "a/t", 1, first)
                assert numbers([await asked]) == [first]
            else:
                assert numbers(await take(messages, 1)) == [0]
    assert "a group over a/# " not in running.log_text()


async def until_said(store: StoreProcess, text: str) -> None:
    for _ in range(2_000):
        if text in store.log_text():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(text)


async def test_stop_and_close_may_be_awaited(client: Client) -> None:
    await publish(client, "t", 3)
    async with client.subscribe("t", group="g") as subscription:
        async for message in subscription:
            assert await message.ack()
            await subscription.stop()
        await subscription.stop()
    await subscription.stop()
    again = client.subscribe("t", group="g")
    assert numbers(await take(aiter(again), 1)) == [1]
    await again.close()  # what it had goes to others before this returns
    await again.stop()
    async with client.subscribe("t", group="g") as subscription:
        assert numbers(await take(aiter(subscription), 2)) == [1, 2]


@pytest.mark.parametrize("topic_filter", ["a/+/b", "#"])
async def test_a_group_that_lacks_what_was_stored_before_says_so(
    client: Client, topic_filter: str, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(client, "a/1/b", 3)
    async with client.subscribe(topic_filter, group="g") as first, client.subscribe(topic_filter, group="g") as second:
        assert (first.lacks_history, second.lacks_history) == (True, False)
        assert [each.getMessage() for each in caplog.records if each.name == "penstock.client"] == [
            f"group g over {topic_filter} begins without what was stored before: only a topic and LEVEL/# have a queue "
            f"of all of it; say start='now' if that is meant, or read({topic_filter!r}) the history"
        ]
        await publish(client, "a/2/b", 1)
        assert numbers(await take(aiter(first), 1)) == [0]
    caplog.clear()
    for whole, start in (("a/1/b", None), ("a/#", None), (topic_filter, "now")):
        async with client.subscribe(whole, group="h", start=start) as subscription:
            assert not subscription.lacks_history
    assert not [each for each in caplog.records if each.name == "penstock.client" and each.levelname == "WARNING"]


async def test_a_group_that_is_refused_is_refused_whatever_it_lacks(client: Client) -> None:
    await publish(client, "a/1/b", 3)
    async with client.subscribe("a/+/b", group="g"):
        with pytest.raises(StoreRefused, match="partitions"):
            async with client.subscribe("a/+/b", group="g", partitions=7):
                raise AssertionError


async def test_where_a_group_is(client: Client) -> None:
    """`began` changes with a reset and where a group is made anew; all that was acked is told at once."""
    await publish(client, "line/7/temp", 5)
    async with client.subscribe("line/7/temp", group="g") as subscription:
        messages = await take(aiter(subscription), 5)
        assert [message.group_offset for message in messages] == [0, 1, 2, 3, 4]
        for message in messages[:3]:
            message.ack()
        await messages[3].ack()
        made = await subscription.position()
        assert made.acked_offset == 4
        await client._ask(GroupReset("g", "line/7/temp", "earliest"))
        reset = await subscription.position()
        assert (reset.log, reset.acked_offset) == (made.log, 0)
        assert reset.began > made.began
    await client._ask(GroupDrop("g", "line/7/temp"))
    async with client.subscribe("line/7/temp", group="g") as subscription:
        assert (await subscription.position()).began > reset.began


@pytest.mark.catalogue("R77")
async def test_a_group_has_what_has_one_of_its_tags(client: Client) -> None:
    await publish(client, "line/7", 3, tag="fast")
    await publish(client, "line/7", 5_000, 3)
    await publish(client, "line/8", 2, 5_003, tag="slow")
    await publish(client, "line/8", 2, 5_005, tag="other")
    async with client.subscribe("line/#", group="g", tag="fast||slow") as subscription:
        messages = await take(aiter(subscription), 5)
        assert [(int(each.payload), each.tag) for each in messages] == [
            (0, "fast"), (1, "fast"), (2, "fast"), (5_003, "slow"), (5_004, "slow")
        ]  # fmt: skip
        for message in messages:
            assert await message.ack()
        await until(client, lambda group: group.lag == 0)
        await publish(client, "line/7", 2, 5_007, tag="other")
        await publish(client, "line/7", 1, 5_009, tag="slow")
        assert numbers(await take(aiter(subscription), 1)) == [5_009]
        async with client.subscribe("line/#", group="g", tag="slow||fast") as alike:
            assert not alike.lacks_history
        async with client.subscribe("line/#", group="g") as another:  # it says nothing, and has what the group has
            await publish(client, "line/7", 20, 5_010, tag="fast")
            assert [each.tag for each in await take(aiter(another), 1)] == ["fast"]
        for tag in ("fast", ""):
            with pytest.raises(StoreRefused, match=r"has the tag 'fast\|\|slow', not .*; drop it"):
                async with client.subscribe("line/#", group="g", tag=tag):
                    raise AssertionError
    async with client.subscribe("line/#", group="all"):
        with pytest.raises(StoreRefused, match="group all has no tag, not 'fast'"):
            async with client.subscribe("line/#", group="all", tag="fast"):
                raise AssertionError


@pytest.mark.catalogue("Q72")
async def test_what_has_a_higher_priority_comes_first(client: Client) -> None:
    """Also in front of a backlog, and what comes meanwhile; others still move. An ordered group has none."""
    await publish(client, "line/7", 500)
    async with client.subscribe("line/#", group="g", tag="alarm > *", start="earliest", prefetch=1) as subscription:
        came = await take(aiter(subscription), 1)
        await publish(client, "line/8", 200, 500, tag="alarm")
        for _ in range(200):
            assert await came[-1].ack()
            came += await take(aiter(subscription), 1)
    alarms = [int(each.payload) for each in came if each.tag == "alarm"]
    assert came[0].payload == b"0"
    assert 170 <= len(alarms) <= 176
    assert alarms == sorted(alarms)
    with pytest.raises(StoreRefused, match="an ordered group has no priorities"):
        async with client.subscribe("line/#", group="h", tag="alarm > *", ordered=True):
            raise AssertionError


@pytest.mark.parametrize("tag", ["a||", "x" * 300, "||".join(map(str, range(40))), "a > ", "* > a", "a > a"])
async def test_tags_that_cannot_be(client: Client, tag: str) -> None:
    with pytest.raises(BadOption, match="tag="):
        client.subscribe("line/#", group="g", tag=tag)
    await publish(client, "line/7", 1)
    with pytest.raises(StoreRefused, match=r"group h: .*tag"):
        await client._ask(GroupOpen("h", "line/#", "c", None, "earliest", tag=tag))
