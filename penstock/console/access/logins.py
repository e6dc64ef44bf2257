"""Logins by the page: a cookie that names a login here. The password stays in this process."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from penstock.console.store.connections import UserCredentials

COOKIE = "penstock_session"
CSRF_HEADER = "x-csrf-token"
MOST_LOGINS = 10_000
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Login:
    """`csrf_token`: what a page sends with each change, since other sites can make a browser send its cookie.

    `ended` is set when the login is over before `ends_s`: its streams end then.
    """

    name: str
    csrf_token: str
    credentials: UserCredentials
    ends_s: float
    ended: asyncio.Event = field(default_factory=asyncio.Event, compare=False, repr=False)

    def is_over(self, now_s: float) -> bool:
        return self.ended.is_set() or now_s > self.ends_s


async def until_over(login: Login | None, stopping: asyncio.Event) -> None:
    """Return when a login is over, or `stopping` is set."""
    rings = [asyncio.ensure_future(stopping.wait())]
    left_s = None
    if login is not None:
        rings.append(asyncio.ensure_future(login.ended.wait()))
        left_s = max(0.0, login.ends_s - asyncio.get_running_loop().time())
    try:
        await asyncio.wait(rings, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in rings:
            each.cancel()


class Logins:
    """Owner of the logins; a console that is started again has none."""

    def __init__(self, lifetime_s: float) -> None:
        self._lifetime_s = lifetime_s
        self._logins: OrderedDict[str, Login] = OrderedDict()

    def begin(self, credentials: UserCredentials, now_s: float, lives_s: float | None = None) -> Login:
        """`lives_s`: for at most so many seconds."""
        lifetime_s = self._lifetime_s if lives_s is None else min(self._lifetime_s, lives_s)
        login = Login(
            secrets.token_urlsafe(SECRET_BYTES),
            secrets.token_urlsafe(SECRET_BYTES),
            credentials,
            now_s + lifetime_s,
        )
        self._logins[login.name] = login
        if len(self._logins) > MOST_LOGINS:
            self._end_oldest()
        return login

    def found(self, name: str, now_s: float) -> Login | None:
        login = self._logins.get(name)
        if login is not None and login.is_over(now_s):
            self.end(name)
            return None
        return login

    def end(self, name: str) -> None:
        login = self._logins.pop(name, None)
        if login is not None:
            login.ended.set()

    def _end_oldest(self) -> None:
        _, login = self._logins.popitem(last=False)
        login.ended.set()

    def tick(self, now_s: float) -> None:
        """Forget what is over. None lives longer than another that began with it, so what is left is soon over."""
        while self._logins and now_s > next(iter(self._logins.values())).ends_s:
            self._end_oldest()
