"""Clients in processes that are forked from one that made or opened them: gunicorn's preload, multiprocessing."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest

import penstock
from penstock.sdk.errors import ClientClosed, OfParentProcess
from penstock.sync import Client, Subscription
from tests.interop.programs import TIMEOUT_S

FORK = multiprocessing.get_context("fork")


def in_child(client: Client, subscription: Subscription, answers: Connection) -> None:
    """What a worker does with what its parent had made."""
    try:
        try:
            next(iter(subscription))
        except OfParentProcess as error:
            answers.send(str(error))
        offsets: list[int | None] = []

        def publish() -> None:
            offsets.append(client.publish("forked", b"child").queue_offset)

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        answers.send(sorted(str(offset) for offset in offsets))
        client.close()
    except BaseException as error:
        answers.send(error)
        raise


def test_a_forked_process_has_a_connection_of_its_own(url: str) -> None:
    ours, theirs = FORK.Pipe()
    with Client(url, timeout_s=TIMEOUT_S) as client, client.subscribe("forked", group="g") as subscription:
        client.publish("forked", b"parent")
        child = FORK.Process(target=in_child, args=(client, subscription, theirs))
        child.start()
        theirs.close()
        assert ours.poll(TIMEOUT_S)
        assert "begin it anew here" in ours.recv()
        assert ours.poll(TIMEOUT_S)
        assert ours.recv() == ["1", "2", "3", "4"]
        child.join(TIMEOUT_S)
        assert child.exitcode == 0
        # The parent's connection is as it was, and its consumer gets what the child published.
        assert client.publish("forked", b"parent").queue_offset == 5
        payloads = []
        for delivery in subscription:
            payloads.append(delivery.payload)
            assert delivery.ack()
            if len(payloads) == 6:
                break
        assert sorted(payloads) == [b"child"] * 4 + [b"parent"] * 2


def test_a_forked_process_may_close_what_it_did_not_use(url: str) -> None:
    with Client(url, timeout_s=TIMEOUT_S) as client:
        child = FORK.Process(target=client.close)
        child.start()
        child.join(TIMEOUT_S)
        assert child.exitcode == 0
        assert client.publish("forked", b"parent").queue_offset == 0


def forked(do: Callable[[], int | None]) -> int | None:
    """What a forked process makes of it."""
    ours, theirs = FORK.Pipe()

    child = FORK.Process(target=lambda: theirs.send(do()))
    child.start()
    theirs.close()
    assert ours.poll(TIMEOUT_S)
    answer: int | None = ours.recv()
    child.join(TIMEOUT_S)
    assert child.exitcode == 0
    return answer


def test_a_client_of_the_module_connects_where_it_is_used_first(url: str) -> None:
    """As in a program whose workers are forked after it was imported: nobody called connect()."""
    client = Client(url, timeout_s=TIMEOUT_S)
    assert [forked(lambda: client.publish("forked", b"x").queue_offset) for _ in range(2)] == [0, 1]
    assert client.publish("forked", b"x").queue_offset == 2
    assert forked(lambda: client.send("forked", b"x").result().queue_offset) == 3
    client.close()
    with pytest.raises(ClientClosed):
        client.publish("forked", b"x")
    client.connect()
    assert [message.queue_offset for message in client.read("forked")] == [0, 1, 2, 3]
    client.close()


def test_threads_that_use_it_first_at_once_make_one_connection(url: str) -> None:
    client = Client(url, timeout_s=TIMEOUT_S)
    threads = [threading.Thread(target=client.publish, args=("forked", b"x")) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert client.publish("forked", b"x").queue_offset == 8
    assert [each.name for each in threading.enumerate()].count("penstock-client") == 1
    client.close()


async def published(client: penstock.Client) -> int | None:
    return (await client.publish("forked", b"x", key="k")).queue_offset


@pytest.mark.parametrize("autobatch", [False, True])
def test_an_asyncio_client_of_the_module(url: str, autobatch: bool) -> None:
    """In each process, and in each event loop of a process, the first publish() connects."""
    client = penstock.Client(url, timeout_s=TIMEOUT_S, autobatch=autobatch)
    assert forked(lambda: asyncio.run(published(client))) == 0
    asyncio.run(client.connect())
    assert forked(lambda: asyncio.run(published(client))) == 1
    assert [asyncio.run(published(client)) for _ in range(2)] == [2, 3]
    assert forked(lambda: asyncio.run(published(client))) == 4
    assert len(asyncio.run(client.find("k"))) == 5


@pytest.mark.asyncio
async def test_an_asyncio_client_that_is_in_use_when_its_process_forks(url: str) -> None:
    async def twice() -> int | None:
        with pytest.raises(ClientClosed):
            client.read("forked")
        await asyncio.gather(published(client), published(client))
        return await published(client)

    async with penstock.Client(url, timeout_s=TIMEOUT_S) as client:
        assert await published(client) == 0
        assert forked(lambda: asyncio.run(twice())) == 3
        assert await published(client) == 4
        assert [message.queue_offset async for message in client.read("forked")] == [0, 1, 2, 3, 4]
    with pytest.raises(ClientClosed):
        await published(client)
