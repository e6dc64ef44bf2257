"""The connections to the store, one for each user who asked something within the last minute."""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256

from penstock.console.errors import NoStoreAnswers, NotAdmitted, TooManyUsers
from penstock.console.store.connection import StoreConnection
from penstock.console.store.publish_rates import PublishRates
from penstock.sdk.errors import CannotConnect, ClientError, StoreRefused

CONNECT_S = 5.0
IDLE_S = 60.0
LOGINS_AT_A_TIME = 8
PROBED_FOR_S = 30.0


@dataclass(frozen=True, slots=True)
class ConsoleStore:
    """Where the store is. `url` is the SDK's; `token`: what the store wants of a client besides its user."""

    url: str
    token: str = ""
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


class UserConnections:
    """Owner of the connections. The least recently used one ends when there are too many."""

    def __init__(self, store: ConsoleStore, most: int, rates: PublishRates) -> None:
        self._store = store
        self._rates = rates
        self._most = most
        self._open: OrderedDict[bytes, StoreConnection] = OrderedDict()
        self._opening: dict[bytes, asyncio.Task[StoreConnection]] = {}
        self._logins = asyncio.Semaphore(LOGINS_AT_A_TIME)
        self._loop = asyncio.get_running_loop()
        self._ending: set[asyncio.Task[None]] = set()
        self._probed_s, self._is_open = float("-inf"), True

    def __len__(self) -> int:
        return len(self._open)

    def known(self, credentials: UserCredentials) -> StoreConnection | None:
        """The connection of a user who has one that works."""
        key = credentials.key
        found = self._open.get(key)
        if found is None or found.refusal:
            return None
        found.used_s = self._loop.time()
        self._open.move_to_end(key)
        return found

    async def of(self, credentials: UserCredentials) -> StoreConnection:
        """The connection of a user, made if there is none. Raises NotAdmitted, NoStoreAnswers, TooManyUsers."""
        found = self.known(credentials)
        if found is not None:
            return found
        key = credentials.key
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.create_task(self._connect(credentials))
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

    async def _connect(self, credentials: UserCredentials) -> StoreConnection:
        store, key = self._store, credentials.key
        if not self._has_room():
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
            await _let_in(connection)
            await self._identify(connection, credentials)
        old = self._open.pop(key, None)
        if old is not None:
            self._end_soon(old)
        self._open[key] = connection
        connection.used_s = self._loop.time()
        return connection

    async def _identify(self, connection: StoreConnection, credentials: UserCredentials) -> None:
        """Have what it does count for its user, whose name the store knows. Raises NoStoreAnswers."""
        try:
            connection.account = (await connection.rights()).user
        except StoreRefused:  # an older store does not tell
            connection.account = credentials.user
        except ClientError as error:
            await connection.close()
            raise NoStoreAnswers(str(error)) from None
        if self._rates.are_bounded:
            name, namespace = connection.account, connection.names.name
            connection.meter = self._rates.meter(credentials.key, name, namespace, self._loop.time())

    def _has_room(self) -> bool:
        """Make room by ending the connection that was not used for longest and that has no stream."""
        if len(self._open) + len(self._opening) <= self._most:
            return True
        for key, connection in self._open.items():
            if not connection.holders:
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
            raise NotAdmitted(str(error)) from None
        raise NoStoreAnswers(str(error)) from None
