"""The console's one connection to a store as an operator, for requests that the SDK has no method for.

async with OperatorConnection(Address.parse("unix:///var/lib/penstock/console.sock")) as operator:
    found = await operator.ask(ListClients("", False, 0), ClientsListed)

The connection is made again whenever it ends; requests without an answer are then sent again, in the same order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from msgspec.structs import replace

from penstock.console.store.errors import OperatorRefused, StoreTooOld, StoreUnavailable, TooManyRequests
from store.errors import HandshakeRefused
from store.wire.base import WireMessage
from store.wire.client.address import WireAddress
from store.wire.client.asyncio_link import AsyncioLink, LinkTimes
from store.wire.client.request_errors import RequestErrors
from store.wire.client.requests import Outcome, PendingRequests, RequestRules
from store.wire.frames import Frame
from store.wire.group_messages import GroupPause, PausedGroups
from store.wire.handshake import (
    DEAD_LETTERS_VERSION,
    DESCRIBING_VERSION,
    GATEWAYS_VERSION,
    HOLDING_VERSION,
    PAUSING_VERSION,
    RECEIVERS_VERSION,
    RIGHTS_VERSION,
    VERSIONS,
)
from store.wire.messages import Hello, RefusedReason, Role, Welcome
from store.wire.operator_messages import (
    DeadLetters,
    DescribeClient,
    ForgetLogReader,
    GatewayReport,
    GatewayShown,
    GatewaysListed,
    ListGateways,
    ListLogReaders,
    MessageReceivers,
    Sample,
    ServerShown,
    SettleDeadLetter,
    ShowGateway,
    ShowServer,
    TopicReaders,
)

log = logging.getLogger("penstock.console")

M = TypeVar("M", bound=WireMessage)

TIMES = LinkTimes(longest_pause_s=2.0, connect_s=5.0, silent_heartbeats=6)
TICK_S = 0.1
MOST_REQUESTS = 256
"""Requests without an answer."""
MOST_GATEWAYS, GATEWAYS_AT_ONCE = 256, 32
MOST_FIGURES = 100_000
"""Of one gateway."""
NEEDS_VERSION: dict[type[WireMessage], int] = {
    **dict.fromkeys((ShowServer, TopicReaders), RIGHTS_VERSION),
    **dict.fromkeys((GroupPause, PausedGroups), PAUSING_VERSION),
    DescribeClient: DESCRIBING_VERSION,
    **dict.fromkeys((DeadLetters, SettleDeadLetter), DEAD_LETTERS_VERSION),
    **dict.fromkeys((ListGateways, ShowGateway), GATEWAYS_VERSION),
    **dict.fromkeys((ListLogReaders, ForgetLogReader), HOLDING_VERSION),
    MessageReceivers: RECEIVERS_VERSION,
}
"""Of the wire, by request: an older store would end the connection."""


class OperatorConnection:
    """Owner of the connection. Use it inside `async with`; all calls are made from one event loop."""

    def __init__(
        self,
        address: WireAddress,
        token: str = "",
        tls: Callable[[], ssl.SSLContext] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """`token`: the store's wire.operator_token; empty at console.sock. `tls`: makes the context of a connection to
        an address with TLS. `timeout_s`: how long each request waits for its answer, seconds.
        """
        self._address = address
        self._token = token
        self._tls = tls
        self._timeout_s = timeout_s
        self._link: _OperatorLink
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._link = link = _OperatorLink(self._address, self._token, self._tls, self._timeout_s)
        self._tasks = [asyncio.create_task(link.run()), asyncio.create_task(link.tick())]
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self._link.leave("the console stops", self._tasks)
        self._link.requests.fail_all(StoreUnavailable("the console stops"))

    @property
    def away(self) -> str:
        """Why there is no connection, for people; empty if there is one."""
        requests = self._link.requests
        return "" if requests.welcome is not None else requests.away

    async def ask(self, message: WireMessage, kind: type[M]) -> M:
        """The answer to a request. A request that nobody waits for any more may still be carried out.

        Raises StoreUnavailable, OperatorRefused, TooManyRequests, StoreTooOld.
        """
        requests = self._link.requests
        if not self._link.welcomed.is_set():
            await self._first_welcome()
        if len(requests) >= MOST_REQUESTS:
            raise TooManyRequests(f"{MOST_REQUESTS} requests to the store wait for their answers; try again later")
        needed = NEEDS_VERSION.get(type(message), 1)
        if requests.welcome is not None and requests.welcome.version < needed:
            raise StoreTooOld(
                f"the store is too old for {type(message).__name__}; upgrade it to this console's release"
            )
        future: asyncio.Future[WireMessage] = asyncio.get_running_loop().create_future()

        def answered(outcome: Outcome, _: Frame) -> None:
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        requests.ask(message, answered)
        return requests.rules.errors.checked(await future, kind)

    async def server(self) -> tuple[ServerShown, list[Sample]]:
        """What the server says of itself, and all of its figures. Raises as ask()."""
        first = shown = await self.ask(ShowServer(0), ServerShown)
        figures = list(first.figures)
        while shown.next is not None:
            shown = await self.ask(ShowServer(shown.next), ServerShown)
            figures += shown.figures
        return first, figures

    async def gateways(self, all_figures: bool = False) -> dict[str, GatewayReport | None]:
        """By name what each gateway says that is a process of its own; None: it does not answer. A store that is too
        old knows none. `all_figures`: not only the first 2,000. Raises as ask().
        """
        try:
            names = (await self.ask(ListGateways(), GatewaysListed)).gateways[:MOST_GATEWAYS]
        except StoreTooOld:
            return {}
        at_once = asyncio.Semaphore(GATEWAYS_AT_ONCE)

        async def shown(name: str) -> GatewayReport | None:
            async with at_once:
                first = report = await self._gateway(name, 0)
                figures = list(report.figures) if report is not None else []
                while all_figures and report is not None and report.next is not None and len(figures) < MOST_FIGURES:
                    report = await self._gateway(name, report.next)
                    figures += report.figures if report is not None else []
                return None if first is None else replace(first, figures=figures)

        return dict(zip(names, await asyncio.gather(*map(shown, names)), strict=True))

    async def _gateway(self, name: str, after: int) -> GatewayReport | None:
        return (await self.ask(ShowGateway(name, after), GatewayShown)).report

    async def _first_welcome(self) -> None:
        """Until then it is not known what the store can be asked."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._link.welcomed.wait()
        except TimeoutError:
            raise StoreUnavailable(f"{self._address.url}: {self.away}") from None


class _OperatorLink(AsyncioLink):
    """run() keeps the connection up."""

    def __init__(
        self, address: WireAddress, token: str, tls: Callable[[], ssl.SSLContext] | None, timeout_s: float
    ) -> None:
        super().__init__(address, TIMES, log)
        errors = RequestErrors(OperatorRefused, {}, StoreUnavailable, StoreUnavailable)
        rules = RequestRules(timeout_s, refuses_large=True, errors=errors)
        self.requests = PendingRequests(rules, self._loop.time, self.wake)
        self._token = token
        self._make_tls = tls

    async def tick(self) -> None:
        """Until cancelled: heartbeats, and the deadlines of requests."""
        while True:
            await asyncio.sleep(TICK_S)
            self.requests.tick()
            self.beat(self._loop.time())

    def _hello(self) -> Hello:
        name = f"console-{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(6)}"
        return Hello(list(VERSIONS), Role.OPERATOR, name, self._token)

    def _tls(self) -> Callable[[], ssl.SSLContext] | None:
        return self._make_tls if self._address.is_tls else None

    def _connected(self, welcome: Welcome) -> None:
        self._why = "the connection was closed"
        self.requests.connected(welcome)

    def _received(self, frame: Frame) -> None:
        if frame.request_id:
            self.requests.received(frame)

    def _outgoing(self) -> list[bytes]:
        return self.requests.outgoing()

    def _away(self, why: str) -> None:
        self.requests.lost(why)

    def _closed_without_a_word(self) -> str:
        return "it closed the connection without a word"

    def _tls_fault(self, error: ssl.SSLError) -> str:
        return f"no TLS connection ({error.reason}); see gateway.store_ca_file and wire.tls_certificate"

    def _refused(self, error: HandshakeRefused) -> str:
        remedy = "" if error.reason == RefusedReason.NOT_LEADER else "; see wire.operator_token"
        return f"not let in as an operator: {error}{remedy}"
