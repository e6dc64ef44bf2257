"""Consumers of groups for programs that ask by HTTP: each group that a user's connection consumes has one.

The store owns what was handed out: a consumer is lasting, so its leases go on when it is closed, when this process is
killed, and when the user's connection ends for want of requests. Here is nothing but the number by which the store
knows the consumer on the current connection, and the requests that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.console.errors import Problem
from penstock.console.store.connection import StoreConnection
from penstock.sdk.errors import ClientError, ConnectionLost, NotPermitted, StoreRefused, TimedOut
from penstock.sdk.link import ClientLink
from store.wire import group_messages as of_group
from store.wire.base import WireMessage
from store.wire.client.requests import Outcome
from store.wire.frames import Frame
from store.wire.handshake import LASTING_VERSION
from store.wire.messages import FailureCode, Welcome

CONSUMER = "http"
LINGER_S = 5.0
"""A consumer without requests stays for so long: of an ordered group it has partitions that others wait for."""
END_LEFT_S = 1.0
"""Programs that leave have their requests ended so often at most, since that has the others' asked again."""
MOST_CONSUMED = 256
"""Groups of one user's connection at a time."""
MOST_TAGS_KNOWN = 64
NOWHERE = "nowhere"
"""A start that no queue has: it joins a group that is there, and makes none."""
ANSWER_BYTES = 1 << 20

Handed = tuple[int, int, int, int]
"""As in Popped: serial, deliveries, queue_offset of the first, number of messages."""


class Joining(NamedTuple):
    """How a group is joined, and made if it is not there. `start` None: `earliest`, of what its queue has."""

    tag: str | None = None
    start: str | None = None


TO_SETTLE = Joining(start=NOWHERE)


class PopLimits(NamedTuple):
    """How many messages, for how long they are the program's (0: as the group says), how long to wait for one."""

    most: int
    invisible_ms: int
    wait_s: float


class HttpConsumer:
    """One consumer, as the SDK's link knows a subscription."""

    def __init__(self, link: ClientLink, group: tuple[str, str], ended: Callable[[], None]) -> None:
        """`group`: its name and filter, as the log has them; `ended` is called when it is closed."""
        self._link = link
        self._group = group
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._ref = 0
        self._log_identity = b""
        self._of: Welcome | None = None  # the connection on which the store knows it by that ref
        self._tags: set[str | None] = set()  # that the store took on it
        self._joining = asyncio.Lock()
        self._users = 0
        self._left = 0  # requests for messages whose programs have left
        self._ended_left_s = 0.0
        self._idle_s = self._loop.time()
        link.readings.add(self)

    @property
    def _is_joined(self) -> bool:
        return self._of is not None and self._of is self._link.requests.welcome

    # --- what programs ask for

    async def pop(self, joining: Joining, wanted: PopLimits) -> tuple[list[Handed], memoryview]:
        """Messages of the group, or none in time. Raises Problem, ClientError."""
        ends_s = self._loop.time() + wanted.wait_s
        self._users += 1
        try:
            while True:
                try:
                    left_ms = max(0, round((ends_s - self._loop.time()) * 1000))
                    found, records = await self._popped(joining, wanted, left_ms)
                    if found or not left_ms:
                        return found, records
                except ConnectionLost:
                    if self._loop.time() >= ends_s:
                        raise
                    await self._up(ends_s)
        finally:
            self._users -= 1
            self._idle_s = self._loop.time()

    async def _popped(self, joining: Joining, wanted: PopLimits, left_ms: int) -> tuple[list[Handed], memoryview]:
        """Once, on the current connection. If its program leaves, what comes goes back."""
        ref = await self._join(joining)
        found: asyncio.Future[tuple[Outcome, memoryview]] = self._loop.create_future()

        def answered(outcome: Outcome, frame: Frame) -> None:
            if not found.cancelled():
                found.set_result((outcome, frame.records))
                return
            self._left -= 1
            if isinstance(outcome, of_group.Popped):
                self.give_back(outcome.handed)

        pop = of_group.Pop(ref, wanted.most, ANSWER_BYTES, wanted.invisible_ms, left_ms)
        self._link.requests.ask_once(pop, answered)
        try:
            outcome, records = await found
        except asyncio.CancelledError:
            if not found.cancelled():
                came, _ = found.result()
                if isinstance(came, of_group.Popped):
                    self.give_back(came.handed)
            else:
                self._left += 1
            raise
        if isinstance(outcome, of_group.Popped):
            return outcome.handed, records
        raise self._fault(outcome)

    def give_back(self, handed: Iterable[Handed]) -> None:
        """These messages were not seen: others get them at once, and this delivery of them does not count."""
        receipts = [of_group.Receipt(serial, first, number) for serial, _, first, number in handed]
        if receipts and self._is_joined:
            self._link.requests.ask_once(of_group.Reject(self._ref, receipts, 0, "", unseen=True), _unheard)

    async def settle(self, verdict: Callable[[int], WireMessage]) -> list[of_group.Receipt]:
        """Say what became of messages; `verdict` makes the message from the consumer's ref. Returns what was stale.

        Raises Problem, ClientError.
        """
        timeout_s = self._link.requests.rules.timeout_s
        ends_s = self._loop.time() + timeout_s
        self._users += 1
        try:
            while True:
                try:
                    async with asyncio.timeout_at(ends_s):
                        ref = await self._join(TO_SETTLE)
                        outcome = await self._asked(verdict(ref))
                except ConnectionLost:
                    await self._up(ends_s)
                    continue
                except TimeoutError:
                    raise TimedOut(f"no answer from the store within {timeout_s:g} s") from None
                if isinstance(outcome, of_group.Settled):
                    return outcome.stale
                raise self._fault(outcome)
        finally:
            self._users -= 1
            self._idle_s = self._loop.time()

    async def log_identity(self) -> bytes:
        """Which log the store has. Raises ConnectionLost if it has been away since this process knows of it."""
        if self._link.requests.welcome is None and not self._log_identity:
            await self._up(self._loop.time() + self._link.requests.rules.timeout_s)
        if self._link.requests.welcome is not None:
            self._log_identity = self._link.requests.welcome.log_identity
        return self._log_identity

    # --- the store

    async def _up(self, until_s: float) -> None:
        """Wait for a connection. Raises ConnectionLost."""
        link = self._link
        try:
            async with asyncio.timeout_at(until_s):
                while link.requests.welcome is None:
                    await link.is_up.wait()
        except TimeoutError:
            raise ConnectionLost(link.requests.away) from None

    async def _join(self, joining: Joining) -> int:
        """Be a consumer of the group on the current connection. Returns its ref. Raises Problem, ClientError."""
        async with self._joining:
            if self._is_joined and (joining is TO_SETTLE or joining.tag in self._tags):
                return self._ref
            welcome = self._link.requests.welcome
            if welcome is None:
                raise ConnectionLost(self._link.requests.away)
            if welcome.version < LASTING_VERSION:
                text = "this store cannot keep for a program what its consumer was handed"
                raise Problem(501, "store-too-old", text, "upgrade the store")
            name, topic_filter = self._group
            start, or_refuse = joining.start or "earliest", joining.start is not None
            opened = await self._asked(
                of_group.GroupOpen(
                    name, topic_filter, CONSUMER, None, start, or_refuse=or_refuse, tag=joining.tag, lasting=True
                )
            )
            if not isinstance(opened, of_group.GroupOpened):
                raise self._fault(opened)
            if not self._is_joined or len(self._tags) >= MOST_TAGS_KNOWN:
                self._tags.clear()
            self._ref, self._of = opened.ref, welcome
            self._tags.add(joining.tag)
            if not self._is_joined:
                raise ConnectionLost(self._link.requests.away)
            return self._ref

    async def _asked(self, message: WireMessage) -> Outcome:
        """The answer of the current connection. Raises ConnectionLost."""
        if self._link.requests.welcome is None:
            raise ConnectionLost(self._link.requests.away)
        found: asyncio.Future[Outcome] = self._loop.create_future()
        self._link.requests.ask_once(message, lambda outcome, _: None if found.done() else found.set_result(outcome))
        outcome = await found
        if isinstance(outcome, ConnectionLost):
            raise outcome
        return outcome

    def _fault(self, outcome: Outcome) -> Exception:
        """What an answer that was not hoped for means; the group is joined again for the next request."""
        if not isinstance(outcome, Exception):
            return ClientError(f"{outcome} in answer to a consumer")
        if isinstance(outcome, StoreRefused) and not isinstance(outcome, NotPermitted):
            self._of = None
            if outcome.code == FailureCode.NOT_ALLOWED:
                return Problem(409, "group-refused", str(outcome), "do as it says, and send the request again")
        return outcome

    # --- LinkReader

    def grew(self, refs: set[int]) -> None:
        """Not a queue that it follows."""

    def reconnected(self) -> None:
        """The next request joins again."""

    def fail(self, error: Exception) -> None:
        """The connection is over for good; its requests have that answer."""
        self._leave()

    def tick(self) -> None:
        now_s = self._loop.time()
        if self._left and self._is_joined and now_s - self._ended_left_s >= END_LEFT_S:
            self._ended_left_s = now_s
            self._link.requests.ask_once(of_group.Reject(self._ref, [], 0, "", unseen=True), _unheard)
        if not self._users and not self._left and now_s - self._idle_s > LINGER_S:
            if self._is_joined:
                self._link.requests.tell_first(of_group.GroupClose(self._ref))
            self._leave()

    def _leave(self) -> None:
        self._of = None
        self._link.readings.discard(self)
        self._ended()


def _unheard(_: Outcome, __: Frame) -> None:
    """What is given back in vain comes again when its time is over."""


class HttpConsumers:
    """Owner of the consumers of one user's connection, by group."""

    def __init__(self, link: ClientLink) -> None:
        self._link = link
        self._open: dict[tuple[str, str], HttpConsumer] = {}

    def of(self, group: tuple[str, str]) -> HttpConsumer:
        """Raises Problem if there are too many."""
        found = self._open.get(group)
        if found is None:
            if len(self._open) >= MOST_CONSUMED:
                text = f"this user consumes {MOST_CONSUMED} groups at a time"
                raise Problem(
                    429, "too-many-groups", text, f"leave one alone for {LINGER_S:.0f} s", {"Retry-After": "5"}
                )
            found = self._open[group] = HttpConsumer(self._link, group, lambda: self._forget(group))
        return found

    def _forget(self, group: tuple[str, str]) -> None:
        self._open.pop(group, None)


async def consumer_of(connection: StoreConnection, group: tuple[str, str]) -> HttpConsumer:
    """The consumer of a group, by its name and filter in the log. Raises Problem, ClientError."""
    if not isinstance(connection.consumers, HttpConsumers):
        connection.consumers = HttpConsumers(await connection.link())
    return connection.consumers.of(group)
