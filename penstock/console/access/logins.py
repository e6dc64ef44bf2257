"""Logins by the page: a cookie that names a login here. The password stays in this process."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass

from penstock.console.store.connections import UserCredentials

COOKIE = "penstock_session"
CSRF_HEADER = "x-csrf-token"
MOST_LOGINS = 10_000
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Login:
    """`csrf_token`: what a page sends with each change, since other sites can make a browser send its cookie."""

    name: str
    csrf_token: str
    credentials: UserCredentials
    ends_s: float


class Logins:
    """Owner of the logins; a console that is started again has none."""

    def __init__(self, lifetime_s: float) -> None:
        self._lifetime_s = lifetime_s
        self._logins: OrderedDict[str, Login] = OrderedDict()

    def begin(self, credentials: UserCredentials, now_s: float) -> Login:
        login = Login(
            secrets.token_urlsafe(SECRET_BYTES),
            secrets.token_urlsafe(SECRET_BYTES),
            credentials,
            now_s + self._lifetime_s,
        )
        self._logins[login.name] = login
        if len(self._logins) > MOST_LOGINS:
            self._logins.popitem(last=False)
        return login

    def found(self, name: str, now_s: float) -> Login | None:
        login = self._logins.get(name)
        if login is not None and now_s > login.ends_s:
            self.end(name)
            return None
        return login

    def end(self, name: str) -> None:
        self._logins.pop(name, None)

    def tick(self, now_s: float) -> None:
        """Forget what is over; all live equally long, so the oldest are first."""
        while self._logins and now_s > next(iter(self._logins.values())).ends_s:
            self._logins.popitem(last=False)
