"""Consumers of groups in a store in another process: notify.api.GroupConsumer as requests. No I/O.

A store that was restarted knows no consumer: each is opened again, and what it waits for is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from notify.api import GroupConsumer, LeasedMessages, Receipt
from notify.handed import HandedConsumer
from store.errors import RequestRefused, StoreAway
from store.records._records import ranges_from
from store.state.changes import GroupAdvanced
from store.state.group_settings import LATEST, GroupSettings
from store.state.group_states import GroupKey
from store.wire import group_messages as wire
from store.wire.base import ITEMS_PER_FRAME
from store.wire.frames import Frame

if TYPE_CHECKING:
    from store.wire.client.requests import Outcome, PendingRequests

WAIT_MS = 60_000
OF_OLD_CONSUMERS = (wire.GroupOpen, wire.GroupClose, wire.Pop, wire.Ack, wire.ChangeInvisible, wire.Reject)
Then = Callable[[GroupConsumer | str], None]


class RemoteGroups:
    """Owner of this gateway's consumers."""

    def __init__(self, requests: PendingRequests) -> None:
        self.ask, self.tell = requests.ask, requests.tell
        self.consumers: dict[RemoteConsumer, None] = {}

    def join(
        self,
        group: GroupKey,
        consumer: str,
        if_new: GroupSettings,
        start: str,
        handed: Callable[[LeasedMessages], None],
        then: Then,
        user: str | None = None,
    ) -> None:
        request = wire.GroupOpen(*group, consumer, None, start, if_new, user, start != LATEST)
        joined = RemoteConsumer(self, request, handed, then)
        self.consumers[joined] = None
        joined.open()

    def handed(self) -> list[HandedConsumer]:
        """All consumers. Raises StoreAway if the store has not said of one that it may be."""
        return [joined.handed() for joined in self.consumers]

    def places(self) -> Mapping[GroupConsumer, int]:
        """The place of each consumer in the list that handed() gives."""
        return {joined: place for place, joined in enumerate(self.consumers)}

    def take_over(self, handed: HandedConsumer, handed_to: Callable[[LeasedMessages], None]) -> RemoteConsumer:
        """A consumer that another process had."""
        joined = RemoteConsumer(self, handed.request, handed_to, None)
        joined.take_over(handed)
        self.consumers[joined] = None
        return joined

    def restart(self) -> None:
        """The store is another process now."""
        for joined in self.consumers:
            joined.open()

    def clear(self) -> None:
        """The store gave up on this gateway, and on its consumers with it."""
        for joined in self.consumers:
            joined.is_closed = True
            joined.forget()
        self.consumers.clear()

    def will_take(self, _: list[GroupAdvanced]) -> None:
        """The store finds it in the append."""


class RemoteConsumer:
    """A consumer. It has no ref before the store has said that it may be one."""

    def __init__(
        self,
        groups: RemoteGroups,
        request: wire.GroupOpen,
        handed: Callable[[LeasedMessages], None],
        then: Then | None,
    ) -> None:
        self.is_closed = False
        self.settings = GroupSettings()
        self._groups = groups
        self._request = request
        self._handed = handed
        self._then = then
        self._ref: int | None = None
        self._process = 0  # counts the stores that it was opened in
        self._wanted: tuple[int, int, int] | None = None
        self._unsettled: dict[int, tuple[list[wire.Receipt], Callable[[], None] | None]] = {}
        self._last_ack = 0
        self._seen = 0  # the last serial that came from the store

    def handed(self) -> HandedConsumer:
        if self._ref is None:
            raise StoreAway(f"it has not said that {self._request.consumer} may consume {self._request.group}")
        return HandedConsumer(ref=self._ref, request=self._request, settings=self.settings, seen=self._seen)

    def take_over(self, handed: HandedConsumer) -> None:
        self._ref, self.settings, self._seen = handed.ref, handed.settings, handed.seen

    def forget(self) -> None:
        """The store knows no such consumer."""
        self._ref = None

    def open(self) -> None:
        self._ref = None
        self._process += 1
        process = self._process

        def answered(answer: Outcome, _: Frame) -> None:
            if process == self._process:
                self._opened(answer)

        self._groups.ask(self._request, answered)

    def _opened(self, answer: Outcome) -> None:
        then, self._then = self._then, None
        if not isinstance(answer, wire.GroupOpened):
            if then is not None:
                self._groups.consumers.pop(self, None)
                then(str(answer) if isinstance(answer, RequestRefused) else type(answer).__name__)
            return
        if self.is_closed:
            self._groups.tell(wire.GroupClose(answer.ref))
            return
        self._ref, self.settings = answer.ref, answer.settings
        self._request = replace(self._request, or_refuse=False)  # it was let in: another store is not to refuse it
        if then is not None:
            then(self)
        for number in list(self._unsettled):
            self._ask_ack(number)
        if self._wanted is not None:
            self._pop()

    def want(self, most: int, max_bytes: int, invisible_ms: int) -> None:
        self._wanted = most, max_bytes, invisible_ms
        if self._ref is not None:
            self._pop()

    def _pop(self) -> None:
        assert self._ref is not None
        assert self._wanted is not None
        self._groups.ask(wire.Pop(self._ref, *self._wanted, WAIT_MS), self._popped)

    def stop(self) -> None:
        self._wanted = None

    def _popped(self, answer: Outcome, frame: Frame) -> None:
        if self.is_closed:
            return
        if isinstance(answer, wire.Popped) and answer.handed:
            self._seen = answer.handed[-1][0]
        if self._wanted is None:
            if isinstance(answer, wire.Popped) and answer.handed:
                self._reject([(serial, first, number) for serial, _, first, number in answer.handed], unseen=True)
            return
        if isinstance(answer, wire.Popped) and answer.handed:
            self._wanted = None
            (records,) = ranges_from(frame.records, [(0, sum(each[3] for each in answer.handed))])
            self._handed(LeasedMessages(records, answer.handed))
        elif isinstance(answer, wire.Popped) and self._ref is not None:
            self._pop()
        elif isinstance(answer, RequestRefused):
            self.open()  # it is no consumer there any more

    def ack(self, receipts: list[Receipt], then: Callable[[], None] | None = None) -> None:
        parts = list(_parts(receipts))
        left = len(parts)

        def settled() -> None:
            nonlocal left
            left -= 1
            if not left and then is not None:
                then()

        for part in parts:
            self._last_ack += 1
            self._unsettled[self._last_ack] = part, settled
            if self._ref is not None:
                self._ask_ack(self._last_ack)

    def _ask_ack(self, number: int) -> None:
        assert self._ref is not None

        def answered(answer: Outcome, _: Frame) -> None:
            settled = self._unsettled.pop(number, None)
            then = settled[1] if settled is not None else None
            if then is not None and isinstance(answer, wire.Settled):
                then()

        self._groups.ask(wire.Ack(self._ref, self._unsettled[number][0]), answered)

    def extend(self, receipts: list[Receipt], invisible_ms: int) -> None:
        if self._ref is not None:
            for part in _parts(receipts):
                self._groups.ask(wire.ChangeInvisible(self._ref, part, invisible_ms), _nothing)

    def give_back(self, receipts: list[Receipt]) -> None:
        self._reject(receipts, unseen=False)

    def _reject(self, receipts: list[Receipt], unseen: bool) -> None:
        if self._ref is not None:
            for part in _parts(receipts):
                self._groups.ask(wire.Reject(self._ref, part, 0, "", unseen), _nothing)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._groups.consumers.pop(self, None)
            if self._ref is not None:
                self._groups.tell(wire.GroupClose(self._ref, self._seen))


def _parts(receipts: list[Receipt]) -> Iterator[list[wire.Receipt]]:
    """The receipts in parts, each small enough for the store to decode it quickly."""
    for at in range(0, len(receipts), ITEMS_PER_FRAME):
        yield [wire.Receipt(*each) for each in receipts[at : at + ITEMS_PER_FRAME]]


def _nothing(_: Outcome, __: Frame) -> None:
    """Receipts that are stale belong to another consumer by now."""
