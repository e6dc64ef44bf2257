"""Logins of the console: what ends one, and that its streams learn of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.console.access.logins import MOST_LOGINS, Login, Logins, until_over
from penstock.console.store.connections import UserCredentials

BOB = UserCredentials("bob", "s3c")
WITHIN_S = 10.0


def _begin_many(logins: Logins) -> None:
    for _ in range(MOST_LOGINS):
        logins.begin(BOB, 0.0)


@pytest.mark.parametrize(
    "end",
    [
        lambda logins, login: logins.end(login.name),
        lambda logins, login: logins.found(login.name, 61.0),
        lambda logins, _: logins.tick(61.0),
        lambda logins, _: _begin_many(logins),
    ],
    ids=["log out", "late request", "tick", "too many"],
)
def test_each_way_to_end_a_login_is_heard(end: Callable[[Logins, Login], object]) -> None:
    logins = Logins(60.0)
    login = logins.begin(BOB, 0.0)
    assert not login.is_over(59.0)
    end(logins, login)
    assert login.is_over(0.0)
    assert logins.found(login.name, 0.0) is None

    async def heard() -> None:
        async with asyncio.timeout(WITHIN_S):
            await until_over(login, asyncio.Event())

    asyncio.run(heard())


def test_a_login_ends_in_time_without_a_tick() -> None:
    async def heard() -> float:
        loop = asyncio.get_running_loop()
        login = Logins(0.01).begin(BOB, loop.time())
        async with asyncio.timeout(WITHIN_S):
            await until_over(login, asyncio.Event())
        return login.ends_s - loop.time()

    assert asyncio.run(heard()) <= 0


def test_the_end_of_the_console_is_heard_without_a_login() -> None:
    async def heard() -> None:
        stopping = asyncio.Event()
        stopping.set()
        async with asyncio.timeout(WITHIN_S):
            await until_over(None, stopping)

    asyncio.run(heard())
