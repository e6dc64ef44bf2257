"""How a client comes and goes: by connect() and close(), or with its first request; anew in a forked process."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from penstock.sdk.address import Address
from penstock.sdk.credentials import ClientCredentials
from penstock.sdk.errors import CannotConnect, ClientClosed
from penstock.sdk.link import ClientLink
from penstock.sdk.publishing import Outbox
from penstock.sdk.room import Room
from penstock.sdk.subscription import Subscription

_left_to_parent: Final[list[object]] = []  # never collected here: closing what is shared would disturb the parent


class ClientConnection(ABC):
    """Owner of a client's link. An event loop's: another process or another loop gets a link of its own."""

    def __init__(self, address: Address, credentials: ClientCredentials, timeout_s: float) -> None:
        self._address = address
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._is_closed = False  # by close(); from then on only connect() connects
        self._begin()

    def _begin(self) -> None:
        """The state of a client that has no link."""
        self._link: ClientLink | None = None
        self._outbox: Outbox | None = None
        self._is_open = False  # it was let in
        self._connecting = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self.room = Room(lambda: self._unanswered_bytes)

    @abstractmethod
    def _new_outbox(self, link: ClientLink) -> Outbox:
        """What sends its messages by a link."""

    @abstractmethod
    def _send_all(self) -> None:
        """Hold nothing back."""

    @property
    @abstractmethod
    def _unanswered_bytes(self) -> int:
        """Of messages that are sent, or held back."""

    # --- coming

    async def connect(self) -> None:
        """Raises CannotConnect if no store lets this client in within `timeout_s`."""
        self._is_closed = False
        if self._link is not None and self._link.is_left_behind:
            _left_to_parent.append((self._link, self._tasks, self._outbox))
            self._begin()
        async with self._connecting:
            if self._link is None:
                await self._connect()

    async def _connect(self) -> None:
        name = f"client-{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(6)}"
        link = ClientLink(self._address, name, self._credentials, self._timeout_s)
        self._outbox = self._new_outbox(link)
        link.send_from(self._outbox)
        self._link = link
        self._tasks = [asyncio.create_task(link.run()), asyncio.create_task(link.tick())]
        try:
            await self._until_welcome(link)
        except BaseException:
            await self._end(ClientClosed())
            raise
        self._is_open = True

    async def _until_welcome(self, link: ClientLink) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await link.tried.wait()
                if link.refused is None:
                    await link.welcomed.wait()
        except TimeoutError:
            raise CannotConnect(f"{self._address.url}: {link.requests.away}") from None
        if link.refused is not None:
            raise CannotConnect(f"{self._address.url}: {link.refused}", is_refusal=True) from link.refused

    @property
    def _is_ready(self) -> bool:
        """Whether it was let in, by a link of the running loop."""
        return self._is_open and self._link is not None and self._link.is_of_this_loop

    async def _first_use(self) -> None:
        """Connect for a request. Raises CannotConnect; ClientClosed after close()."""
        if self._is_closed:
            raise ClientClosed
        await self.connect()

    async def _used(self) -> ClientLink:
        """The link for a request. Raises as _first_use()."""
        if not self._is_ready:
            await self._first_use()
        return self._opened

    @property
    def _opened(self) -> ClientLink:
        """Raises ClientClosed."""
        if self._link is None:
            raise ClientClosed
        return self._link

    @property
    def _opened_here(self) -> ClientLink:
        """The link, if it is not another process's or another loop's. Raises ClientClosed."""
        if self._link is None or self._link.is_left_behind:
            raise ClientClosed
        return self._link

    def another_link(self, name: str) -> ClientLink:
        """A link of its own to the same store, by the same credentials and under that name. Nothing drives it yet."""
        return ClientLink(self._address, name, self._credentials, self._timeout_s)

    # --- going

    async def close(self) -> None:
        """Wait until what was sent is answered (for `timeout_s` at most), then leave.

        What was not acked goes to other consumers of its group at once.
        """
        self._is_closed = True
        if self._link is None or self._link.is_left_behind:
            return
        self._send_all()
        subscriptions = [each for each in self._link.readings if isinstance(each, Subscription)]
        await asyncio.gather(*(each.aclose() for each in subscriptions))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self.room.wait_until_answered()
        await self._end(ClientClosed())

    async def _end(self, error: Exception) -> None:
        link, outbox = self._link, self._outbox
        assert link is not None
        assert outbox is not None
        await link.leave("the client closes", self._tasks)
        self._link = self._outbox = None
        self._is_open = False
        for reading in list(link.readings):
            reading.fail(error)
        outbox.fail_all(error)
        link.requests.fail_all(error)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.close()
