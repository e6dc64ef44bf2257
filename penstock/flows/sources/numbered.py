"""Appends with numbers of the caller's own, under a name of its own: the store has each number once.

A number says "up to here". The store has an Append as a whole or not at all, and with it the number; one with a number
that it has passed changes nothing. So whoever knows what each number stands for can go on after any kill, at the number
that Welcome says. Welcome may be behind the truth: the last Append of an earlier connection may be in the log, and not
safe yet. So an answer says whether the store had passed that number before. As long as a connection lasts nobody else
appends under its name, since the store ends a connection whose name comes again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.sdk.errors import ClientError, ConnectionLost
from penstock.sdk.link import ClientLink
from store.wire.client.requests import Outcome
from store.wire.frames import Frame
from store.wire.messages import Append, Appended, Welcome

ELSEWHERE_S: Final = 5.0  # before a name is asked for again that another process has


class NumberedAppends:
    """Owner of the connection under one name. What has no answer when it ends is not sent again."""

    def __init__(self, link: ClientLink) -> None:
        self._link = link
        link.elsewhere_s = ELSEWHERE_S
        self._tasks = [asyncio.create_task(link.run()), asyncio.create_task(link.tick())]

    @property
    def welcome(self) -> Welcome:
        """Of the current connection. Raises ConnectionLost without one."""
        welcome = self._link.requests.welcome
        if welcome is None:
            raise ConnectionLost(self.away)
        return welcome

    @property
    def away(self) -> str:
        """Why there is no connection."""
        return self._link.requests.away

    async def connected(self) -> int:
        """Wait for a connection. Returns the number up to which the store has everything, and perhaps more."""
        while self._link.requests.welcome is None:
            await self._link.is_up.wait()
        return self.welcome.appended

    def append(self, number: int, records: bytes) -> asyncio.Future[bool]:
        """False: the store had passed this number before, and stored nothing. The future raises ConnectionLost (stored
        or not), or StoreRefused; append() itself raises ConnectionLost."""
        _ = self.welcome
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answered(outcome: Outcome, _: Frame) -> None:
            if future.done():
                return
            if isinstance(outcome, Appended):
                future.set_result(outcome.end > 0)
            else:
                future.set_exception(outcome if isinstance(outcome, Exception) else ClientError(f"{outcome!r}"))

        self._link.requests.ask_once(Append(number), answered, records)
        return future

    async def close(self) -> None:
        await self._link.leave("the flow ends", self._tasks)
        self._link.requests.fail_all(ConnectionLost("the flow ends"))
