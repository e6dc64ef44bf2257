"""The connections to the store, one for each user and address that asked something within the last minute.

The store is told the address: it counts failed logins and bans at it, whatever the console remembers of its user.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256

from gateway.auth.sources import source_of
from penstock.console.errors import NoStoreAnswers, NotAdmitted, TooManyUsers
from penstock.console.store.connection import StoreConnection
from penstock.console.store.publish_rates import PublishRates
from penstock.sdk.errors import CannotConnect
from store.errors import HandshakeRefused

CONNECT_S = 5.0
IDLE_S = 60.0
LOGINS_AT_A_TIME = 8
PROBED_FOR_S = 30.0
MOST_OF_A_SOURCE = 16
"""Logins of one address (IPv6: one /64) at a time, so that its guesses leave room for others."""
PART_OF_A_USER = 4
"""Of all connections this part may be one user's, from so many addresses."""


@dataclass(frozen=True, slots=True)
class ConsoleStore:
    """Where the store is. `url` is the SDK's; `token`: what the store wants of a client besides its user."""

    url: str
    token: str = ""
    operator_token: str = ""  # with which the store believes for whom the console asks
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class UserCredentials:
    """User name and password of a user; a token alone is a password. Both empty: the open user."""

    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def key(self) -> bytes:
        """Names a connection without keeping the password longer than the connection does."""
        user = self.user.encode()
        return sha256(len(user).to_bytes(8, "big") + user + self.password.encode()).digest()


OPEN = UserCredentials()

ConnectionKey = tuple[bytes, str]  # of the credentials, and an address; the console's own is empty


class UserConnections:
    """Owner of the connections. The least recently used one ends when there are too many."""

    def __init__(self, store: ConsoleStore, most: int, rates: PublishRates) -> None:
        self._store = store
        self._rates = rates
        self._most = most
        self._open: OrderedDict[ConnectionKey, StoreConnection] = OrderedDict()
        self._opening: dict[ConnectionKey, asyncio.Task[StoreConnection]] = {}
        self._logins = asyncio.Semaphore(LOGINS_AT_A_TIME)
        self._loop = asyncio.get_running_loop()
        self._ending: set[asyncio.Task[None]] = set()
        self._probed_s, self._is_open = float("-inf"), True

    def __len__(self) -> int:
        return len(self._open)

    def known(self, credentials: UserCredentials, address: str) -> StoreConnection | None:
        """The connection of a user who has one from this address that works."""
        key = credentials.key, address
        found = self._open.get(key)
        if found is None or found.refusal:
            return None
        found.used_s = self._loop.time()
        self._open.move_to_end(key)
        return found

    async def of(self, credentials: UserCredentials, address: str = "") -> StoreConnection:
        """The connection of a user at an address, made if there is none.

        Raises NotAdmitted, NoStoreAnswers, TooManyUsers.
        """
        found = self.known(credentials, address)
        if found is not None:
            return found
        key = credentials.key, address
        opening = self._opening.get(key)
        if opening is None:
            source = source_of(address)
            if sum(source_of(each) == source for _, each in self._opening) >= MOST_OF_A_SOURCE:
                raise TooManyUsers(f"{MOST_OF_A_SOURCE} logins from this address are under way")
            opening = self._opening[key] = asyncio.create_task(self._connect(credentials, address))
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(opening)

    async def is_open(self) -> bool:
        """Whether the store lets users in without a password. Raises NoStoreAnswers."""
        now_s = self._loop.time()
        if now_s - self._probed_s > PROBED_FOR_S:
            try:
                await self.of(OPEN)
                self._is_open = True
            except NotAdmitted:
                self._is_open = False
            self._probed_s = now_s
        return self._is_open

    async def _connect(self, credentials: UserCredentials, address: str) -> StoreConnection:
        store, key = self._store, (credentials.key, address)
        if not self._has_room(key):
            raise TooManyUsers(f"{self._most} users are connected")
        async with self._logins:
            connection = StoreConnection(
                store.url,
                token=store.token,
                user=credentials.user,
                password=credentials.password,
                tls=store.tls,
                timeout_s=CONNECT_S,
            )
            connection.asks_for(address, store.operator_token)
            await _let_in(connection)
            self._meter(connection, credentials)
        old = self._open.pop(key, None)
        if old is not None:
            self._end_soon(old)
        self._open[key] = connection
        connection.used_s = self._loop.time()
        return connection

    def _meter(self, connection: StoreConnection, credentials: UserCredentials) -> None:
        """Have what it publishes count for its user, as the store knows it."""
        if self._rates.are_bounded:
            name = "/".join(connection.account) if connection.user else ""
            connection.meter = self._rates.meter(credentials.key, name, connection.names.name, self._loop.time())

    def _has_room(self, wanted: ConnectionKey) -> bool:
        """Make room by ending the connection that was not used for longest and that has no stream: one of the same
        user if it has many.
        """
        own = [each for each in self._open if each[0] == wanted[0]]
        has_many = len(own) >= max(1, self._most // PART_OF_A_USER)
        if len(self._open) + len(self._opening) <= self._most and not has_many:
            return True
        for key in own if has_many else list(self._open):
            if not self._open[key].holders:
                self._end_soon(self._open.pop(key))
                return True
        return False

    def tick(self) -> None:
        """End the connections that nobody uses, and those that the store refuses. Call it every few seconds."""
        now_s = self._loop.time()
        for key, connection in list(self._open.items()):
            is_idle = not connection.holders and now_s - connection.used_s > IDLE_S
            if is_idle or connection.refusal:
                self._end_soon(self._open.pop(key))
        meters = [connection.meter for connection in self._open.values() if connection.meter is not None]
        self._rates.tick({payer for meter in meters for payer in meter.payers}, now_s)

    def _end_soon(self, connection: StoreConnection) -> None:
        ending = asyncio.create_task(connection.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for opening in list(self._opening.values()):
            opening.cancel()
            with suppress(asyncio.CancelledError, NotAdmitted, NoStoreAnswers, TooManyUsers):
                await opening
        for connection in self._open.values():
            self._end_soon(connection)
        self._open.clear()
        await asyncio.gather(*self._ending)


async def _let_in(connection: StoreConnection) -> None:
    """Connect. Raises NotAdmitted, NoStoreAnswers."""
    try:
        await connection.connect()
    except CannotConnect as error:
        if error.is_refusal:
            refused = error.__cause__
            if isinstance(refused, HandshakeRefused):
                raise NotAdmitted(str(error), refused.reason, refused.retry_s) from None
            raise NotAdmitted(str(error)) from None
        raise NoStoreAnswers(str(error)) from None
