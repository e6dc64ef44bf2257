"""Dead letters that an operator settles one by one, at servers in one process and apart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from penstock import Client
from penstock.console.store.operator import OperatorConnection
from penstock.sdk.address import Address
from store.records.records import Record, read_records
from store.wire.operator_messages import DeadLetters, DeadLettersFound, OperatorDone, SettleDeadLetter
from tests.conftest import ServerFactory
from tests.support.server_process import PenstockServer

pytestmark = pytest.mark.topologies("one process", "shared port")

PATIENCE_S = 120  # the server is killed and started meanwhile, on a machine that may be busy

T = TypeVar("T")
Do = Callable[[Client, OperatorConnection], Coroutine[Any, Any, T]]


@pytest.fixture
def server(penstock_server: ServerFactory) -> PenstockServer:
    return penstock_server(flush="async")


def done(server: PenstockServer, do: Do[T]) -> T:
    url = f"unix://{server.data.absolute()}/console.sock"

    async def run() -> T:
        async with (
            asyncio.timeout(PATIENCE_S),
            Client(url, timeout_s=PATIENCE_S) as client,
            OperatorConnection(Address.parse(url), timeout_s=PATIENCE_S) as operator,
        ):
            return await do(client, operator)

    return asyncio.run(run())


async def die(client: Client, group: str, count: int, **options: Any) -> None:
    """Publish messages that the group gives up."""
    async with client.subscribe("line/#", group=group, start="now") as members:
        for number in range(count):
            await client.publish(f"line/{number}", b"%d" % number, key=f"k{number}", **options)
            assert await (await anext(aiter(members))).reject(f"no use\0 {number}")


async def letters(operator: OperatorConnection, group: str, limit: int = 1_000) -> dict[int, Record]:
    """Open ones, by queue_offset."""
    found: dict[int, Record] = {}
    after: int | None = 0
    while after is not None:
        answer = await operator.ask(DeadLetters(group, after, limit), DeadLettersFound)
        assert len(answer.letters) <= limit
        for queue_offset, data in answer.letters:
            (found[queue_offset],) = read_records(memoryview(data))
        after = answer.next
    return found


async def settle(operator: OperatorConnection, group: str, at: int, record: Record, again: bool) -> bool:
    request = SettleDeadLetter(group, at, record.log_offset, again, "ops")
    return (await operator.ask(request, OperatorDone)).found


def test_dead_letters_are_settled_in_any_order(server: PenstockServer) -> None:
    async def some(client: Client, operator: OperatorConnection) -> list[int]:
        await die(client, "billing", 6, headers={"unit": "C"}, qos=1)
        await die(client, "billing2", 2)
        open_ones = await letters(operator, "billing", limit=2)
        assert [record.payload for record in open_ones.values()] == [b"%d" % number for number in range(6)]
        places = list(open_ones)
        assert await settle(operator, "billing", places[3], open_ones[places[3]], again=True)
        assert not await settle(operator, "billing", places[3], open_ones[places[3]], again=True)
        assert await settle(operator, "billing", places[0], open_ones[places[0]], again=False)
        assert await settle(operator, "billing", places[5], open_ones[places[5]], again=False)
        for place, record in ((places[1], open_ones[places[2]]), (1_000_000, open_ones[places[1]])):
            assert not await settle(operator, "billing", place, record, again=True)
        assert not await settle(operator, "billing2", places[1], open_ones[places[1]], again=True)
        found = [each async for each in client.read("line/3")]
        assert [(each.payload, each.key, each.headers) for each in found] == [(b"3", "k3", {"unit": "C"})] * 2
        return places

    async def rest(client: Client, operator: OperatorConnection) -> None:
        open_ones = await letters(operator, "billing")
        assert [record.payload for record in open_ones.values()] == [b"1", b"2", b"4"]
        assert len(await letters(operator, "billing2")) == 2
        assert await letters(operator, "bill") == {}
        for at, record in open_ones.items():
            assert await settle(operator, "billing", at, record, again=True)
        assert await letters(operator, "billing") == {}
        assert [each.payload async for each in client.read("line/#")][-3:] == [b"1", b"2", b"4"]

    places = done(server, some)
    server.kill()
    server.restart()
    done(server, rest)
    assert len(places) == 6


def test_a_message_is_published_again_once_under_kills(server: PenstockServer) -> None:
    done(server, lambda client, _: die(client, "billing", 3))
    open_ones = done(server, lambda _, operator: letters(operator, "billing"))
    at, record = next(iter(open_ones.items()))

    async def ask_and_kill(_: Client, operator: OperatorConnection) -> bool:
        asked = asyncio.create_task(settle(operator, "billing", at, record, again=True))
        await asyncio.sleep(0)  # it is on its way: the answer may be lost, and it is asked again
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        return await asked

    done(server, ask_and_kill)
    assert not done(server, lambda _, operator: settle(operator, "billing", at, record, again=True))
    assert len(done(server, lambda _, operator: letters(operator, "billing"))) == 2

    async def found(client: Client, _: OperatorConnection) -> list[bytes]:
        return [each.payload async for each in client.read("line/0")]

    assert done(server, found) == [b"0", b"0"]
