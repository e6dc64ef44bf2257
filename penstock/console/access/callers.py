"""Who asks: Basic, Bearer, a login's cookie, or nobody in particular where the store asks nobody for a password."""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from gateway.auth.sources import source_of
from penstock.console.access.gate import SAFE_METHODS
from penstock.console.access.logins import COOKIE, CSRF_HEADER, Login, Logins
from penstock.console.errors import NoStoreAnswers, NotAdmitted, Problem, TooManyUsers
from penstock.console.store.connections import OPEN, UserConnections, UserCredentials
from store.wire.messages import RefusedReason

if TYPE_CHECKING:
    from penstock.console.store.connection import StoreConnection

LOG_IN = "log in with a user and a password of the store (Basic), a token (Bearer), or on the page /login"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and the connection by which the store judges it. `login`: of a cookie; None for other credentials."""

    connection: StoreConnection
    credentials: UserCredentials
    login: Login | None = None
    address: str = ""

    @property
    def user(self) -> str:
        """The name that the store found, whatever the request says; empty: nobody by name."""
        return self.connection.user

    @property
    def payer(self) -> str:
        """Whom its streams count for: the user as the store knows it, or the address of one without a name."""
        return "/".join(self.connection.account) if self.user else f"address {source_of(self.address)}"

    @property
    def csrf_token(self) -> str:
        return self.login.csrf_token if self.login is not None else ""


class Callers:
    """Finds out who asks. `is_beyond_loopback`: other machines can ask, so users have to log in."""

    def __init__(self, connections: UserConnections, logins: Logins, is_beyond_loopback: bool) -> None:
        self.connections = connections
        self.logins = logins
        self._is_beyond_loopback = is_beyond_loopback
        self._loop = asyncio.get_running_loop()

    async def of(self, request: HTTPConnection) -> Caller:
        """Raises Problem."""
        credentials, login = self._shown(request)
        found = self.connections.known(credentials, _address(request))
        if found is not None and not self._is_beyond_loopback:
            return Caller(found, credentials, login, _address(request))
        await self._check_open(credentials)
        admitted = await self._admitted(request, credentials, login)
        return Caller(admitted, credentials, login, _address(request))

    async def log_in(
        self, request: HTTPConnection, credentials: UserCredentials, lives_s: float | None = None
    ) -> tuple[Login, StoreConnection]:
        """Begin a login for a page; returns it and its connection to the store. `lives_s`: at most so many seconds.
        Raises Problem.
        """
        if credentials == OPEN:
            raise Problem(401, "not-admitted", "no user and no password", LOG_IN)
        await self._check_open(credentials)
        connection = await self._admitted(request, credentials, None)
        return self.logins.begin(credentials, self._loop.time(), lives_s), connection

    def _shown(self, request: HTTPConnection) -> tuple[UserCredentials, Login | None]:
        """The credentials of a request. Raises Problem."""
        given = request.headers.get("authorization", "")
        if given:
            return credentials_of(given), None
        cookie = request.cookies.get(COOKIE) if "cookie" in request.headers else None
        if not cookie:
            return OPEN, None
        login = self.logins.found(cookie, self._loop.time())
        if login is None:
            return OPEN, None
        method, token = request.scope.get("method", "GET"), request.headers.get(CSRF_HEADER, "")
        if method not in SAFE_METHODS and not secrets.compare_digest(token.encode(), login.csrf_token.encode()):
            raise Problem(
                403,
                "csrf",
                "a change with a login's cookie and without its CSRF token",
                f"send the login's token in the header {CSRF_HEADER}, or use Basic or Bearer",
            )
        return login.credentials, login

    async def _check_open(self, credentials: UserCredentials) -> None:
        """Beyond loopback nobody is let in by a store that asks nobody for a password. Raises Problem."""
        if not self._is_beyond_loopback:
            return
        try:
            is_open = await self.connections.is_open()
        except (NoStoreAnswers, TooManyUsers) as error:
            raise unavailable(error) from None
        if is_open:
            raise Problem(
                403,
                "open-store",
                "other machines can reach this console, and the store asks nobody for a password",
                "set auth.password_file, or console.allow_open_beyond_loopback = true, or listen on 127.0.0.1",
            )
        if credentials == OPEN:
            raise unknown_user("no user was named")

    async def _admitted(
        self, request: HTTPConnection, credentials: UserCredentials, login: Login | None
    ) -> StoreConnection:
        address = _address(request)
        try:
            return await self.connections.of(credentials, address)
        except NotAdmitted as error:
            if error.reason == RefusedReason.LIMITED:
                raise too_many_failed(address, error.retry_s) from None
            if error.reason == RefusedReason.BUSY:
                raise unavailable(error) from None
            if login is not None:
                self.logins.end(login.name)
            if error.reason == RefusedReason.BANNED:
                remedy = "ask an operator of the server (penstock ban list)"
                raise Problem(403, "banned", str(error), remedy) from None
            raise unknown_user(str(error), asks=_is_program(request)) from None
        except (NoStoreAnswers, TooManyUsers) as error:
            raise unavailable(error) from None


def _address(request: HTTPConnection) -> str:
    """Of the browser."""
    return request.client.host if request.client is not None else ""


def too_many_failed(address: str, wait_s: int) -> Problem:
    return Problem(
        429,
        "too-many-failed-logins",
        f"too many logins of this user or from {address} failed",
        f"wait {wait_s} s",
        {"Retry-After": str(max(1, wait_s))},
    )


def unknown_user(detail: str, asks: bool = True) -> Problem:
    """`asks`: have a browser ask for a password in a window of its own."""
    return Problem(401, "not-admitted", detail, LOG_IN, {"WWW-Authenticate": 'Basic realm="penstock"'} if asks else {})


def unavailable(error: Exception) -> Problem:
    what = "too-many-users" if isinstance(error, TooManyUsers) else "store-away"
    return Problem(503, what, str(error), "ask again in a moment", {"Retry-After": "1"})


def _is_program(request: HTTPConnection) -> bool:
    """Not a page of this console, which has a login form of its own."""
    return "hx-request" not in request.headers and request.headers.get("sec-fetch-mode") in (None, "navigate")


def credentials_of(header: str) -> UserCredentials:
    """Those of an Authorization header. Raises Problem.

    >>> credentials_of("Basic Ym9iOnMzYw=="), credentials_of("Bearer ey.J.x").password
    (UserCredentials(user='bob'), 'ey.J.x')
    """
    scheme, _, value = header.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer" and value:
        return UserCredentials("", value)
    if scheme.lower() == "basic":
        try:
            user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if colon and user:
            return UserCredentials(user, password)
    raise Problem(
        401,
        "bad-authorization",
        "an Authorization header that is neither Basic with user:password in base64 nor Bearer with a token",
        LOG_IN,
        {"WWW-Authenticate": 'Basic realm="penstock"'},
    )
