"""Requests of peers about consumer groups: calls to Consumers, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from lightqueue.errors import LightQueueError
from lightqueue.groups.group_queue import GroupQueue
from lightqueue.groups.popped import PoppedMessages
from notify.errors import GroupRefused
from notify.local.consumers import Consumers
from notify.local.own_names import OwnNames
from notify.local.polls import Consumer, PopReceiver, PopRequest
from notify.requests.contents import filter_fault
from notify.requests.permissions import plain_permission
from notify.requests.users import ConnectionPermits, Permission
from store.errors import StoreError, StoreFull
from store.namespaces import DEFAULT
from store.state.group_states import GroupKey, Maker
from store.state.offset_ranges import as_ranges
from store.wire import group_messages as wire
from store.wire.base import MOST_ITEMS, WireMessage
from store.wire.messages import Failed, FailureCode
from store.wire.tier_messages import TierFault

Answer = Callable[[WireMessage, bytes], None]
Told = TypeVar("Told")

FAILURES = (GroupRefused, LightQueueError, StoreError)
SHOWN_CONSUMERS = 100
RECEIPTS_AT_ONCE, MESSAGES_AT_ONCE = 128, 2_048
"""To settle a message takes some 0.1 µs where it is one of many, and 2 µs by a receipt of its own."""
LIST_BYTES = 128 << 10  # of one GroupsListed, about: a frame has room for more
CONSUMER_BYTES = 600
INFO_BYTES = 200


class Requester(PopReceiver, Protocol):
    """The connection of a peer."""

    @property
    def permits(self) -> ConnectionPermits:
        """The permissions of its user."""


class GroupRequests:
    """Owner of the refs of consumers."""

    def __init__(
        self,
        consumers: Consumers,
        most_bytes: int,
        clock: Callable[[], float],
        name_for: Callable[[str, str], str],
    ) -> None:
        """`most_bytes`: of the records in an answer; `name_for`: how a peer may see the name of another one; empty: it
        may not.
        """
        self._name_for = name_for
        self.consumers = consumers
        self._most_bytes = most_bytes
        self._clock = clock
        self._of: dict[str, dict[int, Consumer]] = {}  # by peer and ref
        self._refs: dict[Consumer, int] = {}
        self._last_ref = 0

    def left(self, peer: str) -> None:
        """Forget a peer that is gone."""
        self.forget_refs(peer)
        self.consumers.left(peer)

    def forget_refs(self, peer: str) -> None:
        """Forget the refs of a peer's groups: it opens them again, as the same consumers."""
        for consumer in self._of.pop(peer, {}).values():
            self._refs.pop(consumer, None)

    def open_of(self, peer: str) -> list[GroupQueue]:
        """The groups that a peer has open, once for each of its consumers."""
        return [consumer.queue for consumer in self._of.get(peer, {}).values()]

    def handle(self, peer: str, receiver: Requester, message: WireMessage, answer: Answer) -> Iterator[None] | None:
        """Answer a request, now or later. What is left to do of it, in steps."""
        topic_filter = getattr(message, "topic_filter", None)
        fault = filter_fault(topic_filter) if topic_filter is not None else ""
        if fault:
            answer(Failed(FailureCode.BAD_REQUEST, f"topic filter {fault}"), b"")
            return None
        try:
            steps = _HANDLERS[type(message)](self, peer, receiver, message, answer)
        except FAILURES as error:
            answer(_failed(error), b"")
            return None
        return _going_on(steps, answer) if steps is not None else None

    # --- requests

    def _located(
        self, group: GroupKey, start: str, answer: Answer, then: Callable[[str], None], is_new: bool = False
    ) -> None:
        """Go on with `start`, once the tier has said where that is if it has to."""

        def located(found: str | TierFault) -> None:
            if isinstance(found, TierFault):
                answer(Failed(FailureCode.UNAVAILABLE, found.why), b"")
                return
            try:
                then(found)
            except FAILURES as error:
                answer(_failed(error), b"")

        if not self.consumers.locate(group, start, located, is_new):
            then(start)

    def _open(self, peer: str, receiver: Requester, message: wire.GroupOpen, answer: Answer) -> None:
        def opens(start: str) -> None:
            if not receiver.is_closing:
                self._open_at(peer, receiver, message, start, answer)

        self._located((message.group, message.topic_filter), message.start, answer, opens, is_new=True)

    def _open_at(self, peer: str, receiver: Requester, message: wire.GroupOpen, start: str, answer: Answer) -> None:
        group = (message.group, message.topic_filter)
        key = (peer, message.consumer)
        user = receiver.permits.user
        maker = Maker(user.name) if user is not None else Maker(message.user, message.if_new is not None)
        consumer = self.consumers.open(
            key, group, message.settings, start, message.if_new, maker, message.or_refuse, message.tag, message.lasting
        )
        if consumer not in self._refs:
            self._last_ref += 1
            self._refs[consumer] = self._last_ref
            self._of.setdefault(peer, {})[self._last_ref] = consumer
        answer(wire.GroupOpened(self._refs[consumer], consumer.queue.settings), b"")

    def _close(self, peer: str, _: PopReceiver, message: wire.GroupClose, __: Answer) -> None:
        consumer = self._of.get(peer, {}).pop(message.ref, None)
        if consumer is not None:
            del self._refs[consumer]
            self.consumers.close(consumer, message.seen)

    def _consumer(self, peer: str, ref: int) -> Consumer:
        consumer = self._of.get(peer, {}).get(ref)
        if consumer is None:
            raise GroupRefused(f"ref {ref} is no consumer; open its group first, again if the store was restarted")
        return consumer

    def _pop(self, peer: str, receiver: PopReceiver, message: wire.Pop, answer: Answer) -> None:
        def dealt(found: PoppedMessages) -> None:
            answer(
                wire.Popped([(each.serial, each.deliveries, each.first, each.number) for each in found.ranges]),
                found.records,
            )

        until_s = self._clock() + message.wait_ms / 1000
        max_bytes = min(message.max_bytes, self._most_bytes)
        consumer = self._consumer(peer, message.ref)
        self.consumers.pop(
            PopRequest(consumer, receiver, message.most, max_bytes, message.invisible_ms, until_s, dealt)
        )

    def _ack(self, peer: str, _: PopReceiver, message: wire.Ack, answer: Answer) -> Iterator[None] | None:
        queue = self._consumer(peer, message.ref).queue
        return self._settle(queue, message.receipts, queue.ack, answer)

    def _change_invisible(
        self, peer: str, _: PopReceiver, message: wire.ChangeInvisible, answer: Answer
    ) -> Iterator[None] | None:
        consumer = self._consumer(peer, message.ref)
        due_ms = self.consumers.now_ms() + message.invisible_ms
        change = partial(consumer.queue.change_invisible, due_ms=due_ms, consumer=consumer.key)
        return self._settle(consumer.queue, message.receipts, change, answer)

    def _reject(self, peer: str, _: PopReceiver, message: wire.Reject, answer: Answer) -> Iterator[None] | None:
        consumer = self._consumer(peer, message.ref)
        if message.unseen:  # it would be handed what it gives back, and others what follows that
            self.consumers.end_polls(consumer)
        queue, now_ms = consumer.queue, self.consumers.now_ms()
        reject = partial(
            queue.reject, now_ms=now_ms, delay_ms=message.delay_ms, dead=message.dead, unseen=message.unseen
        )
        return self._settle(queue, message.receipts, reject, answer)

    def _settle(
        self,
        queue: GroupQueue,
        receipts: list[wire.Receipt],
        settle: Callable[[int, int, int], list[int]],
        answer: Answer,
    ) -> Iterator[None] | None:
        number = sum(each.number for each in receipts)
        if number > MOST_ITEMS:
            answer(Failed(FailureCode.BAD_REQUEST, f"more than {MOST_ITEMS} messages at a time"), b"")
            return None
        stale: list[wire.Receipt] = []

        def steps() -> Iterator[None]:
            for serial, first, count in _pieces(receipts):
                stale.extend(_receipts(serial, settle(serial, first, count)))
                yield
            self.consumers.said(queue, then)

        def then(error: StoreError | None) -> None:
            answer(_failed(error) if error is not None else wire.Settled(stale), b"")

        if len(receipts) > RECEIPTS_AT_ONCE or number > MESSAGES_AT_ONCE:
            return steps()
        for _ in steps():
            pass
        return None

    def _where(self, peer: str, _: PopReceiver, message: wire.GroupWhere, answer: Answer) -> None:
        queue = self._consumer(peer, message.ref).queue
        answer(wire.GroupIs(queue.state.began, queue.group.acked_offset), b"")

    def _tell_work(self, peer: str, _: PopReceiver, message: wire.TellWork, answer: Answer) -> None:
        consumer = self._consumer(peer, message.ref)
        queue = consumer.queue
        if (assignment := queue.group.consumers.get(consumer.key)) is not None:
            assignment.work = message.work
        answer(wire.WorkNoted(queue.state.paused), b"")

    def _list_work(self, _: str, receiver: Requester, message: wire.ListWork, answer: Answer) -> Iterator[None]:
        def told(queue: GroupQueue) -> tuple[wire.GroupWork, str] | None:
            work = queue.group.work
            return None if work is None else (wire.GroupWork(*queue.state.key, work), work.error)

        found, more = yield from self._some(receiver, message, told)
        answer(wire.WorkListed(found, more), b"")

    def _list_tags(self, _: str, receiver: Requester, message: wire.ListTags, answer: Answer) -> Iterator[None]:
        def told(queue: GroupQueue) -> tuple[wire.GroupTags, str] | None:
            tag = queue.state.tag
            return (wire.GroupTags(*queue.state.key, tag), tag) if tag else None

        found, more = yield from self._some(receiver, message, told)
        answer(wire.TagsListed(found, more), b"")

    def _some(
        self,
        receiver: Requester,
        message: wire.ListWork | wire.ListTags,
        told: Callable[[GroupQueue], tuple[Told, str] | None],
    ) -> Generator[None, None, tuple[list[Told], bool]]:
        """What is told of groups, and whether more follow. `told`: of one that has it, with its longest text.

        A step looks at one group, which the rules judge.
        """
        found: list[Told] = []
        left_bytes, skip = LIST_BYTES, message.skip
        for queue in self.consumers.listed(message.group):
            yield
            one = told(queue)
            if one is None or not _sees(receiver, queue):
                continue
            if skip:
                skip -= 1
                continue
            size = INFO_BYTES + sum(len(text.encode()) for text in (*queue.state.key, one[1]))
            if found and size > left_bytes:
                return found, True
            left_bytes -= size
            found.append(one[0])
        return found, False

    def _list(
        self, peer: str, receiver: Requester, message: wire.GroupList | wire.PausedGroups, answer: Answer
    ) -> Iterator[None]:
        """A step looks at one group, which the rules judge."""
        found: list[wire.GroupInfo] = []
        left_bytes, skip, more = LIST_BYTES, message.skip, False
        for queue in self.consumers.listed(message.group):
            yield
            name = queue.state
            if (isinstance(message, wire.PausedGroups) and not name.paused) or not _sees(receiver, queue):
                continue
            if skip:
                skip -= 1
                continue
            shown = min(SHOWN_CONSUMERS, len(queue.group.consumers))
            size = INFO_BYTES + len(name.topic_filter.encode()) + len(name.name.encode()) + shown * CONSUMER_BYTES
            more = bool(found) and size > left_bytes
            if more:
                break
            left_bytes -= size
            found.append(info(queue, shown, partial(self._name_for, peer)))
        answer(wire.GroupsListed(found, more), b"")

    def _reset(self, _: str, __: PopReceiver, message: wire.GroupReset, answer: Answer) -> None:
        group = (message.group, message.topic_filter)

        def moves(to: str) -> None:
            answer(wire.GroupDone(self.consumers.reset(group, to)), b"")

        self._located(group, message.to, answer, moves)

    def _pause(self, _: str, __: PopReceiver, message: wire.GroupPause, answer: Answer) -> None:
        group = (message.group, message.topic_filter)
        answer(wire.GroupDone(self.consumers.pause(group, message.paused)), b"")

    def _drop(self, _: str, __: PopReceiver, message: wire.GroupDrop, answer: Answer) -> None:
        self.consumers.drop((message.group, message.topic_filter))
        answer(wire.GroupDone(0), b"")


_HANDLERS: dict[type[WireMessage], Callable[..., Iterator[None] | None]] = {
    wire.GroupOpen: GroupRequests._open,
    wire.GroupClose: GroupRequests._close,
    wire.Pop: GroupRequests._pop,
    wire.Ack: GroupRequests._ack,
    wire.ChangeInvisible: GroupRequests._change_invisible,
    wire.Reject: GroupRequests._reject,
    wire.GroupWhere: GroupRequests._where,
    wire.TellWork: GroupRequests._tell_work,
    wire.ListWork: GroupRequests._list_work,
    wire.ListTags: GroupRequests._list_tags,
    wire.GroupList: GroupRequests._list,
    wire.PausedGroups: GroupRequests._list,
    wire.GroupPause: GroupRequests._pause,
    wire.GroupReset: GroupRequests._reset,
    wire.GroupDrop: GroupRequests._drop,
}
REQUESTS: Iterable[type[WireMessage]] = _HANDLERS.keys()


def _sees(receiver: Requester, queue: GroupQueue) -> bool:
    user = receiver.permits.user
    names = OwnNames(user.namespace).names if user is not None else DEFAULT
    wanted = Permission("subscribe", queue.state.topic_filter, queue.state.name)
    return receiver.permits.sees(plain_permission(wanted, names))


def info(queue: GroupQueue, shown: int, name_of: Callable[[str], str]) -> wire.GroupInfo:
    """A group, with the first of its consumers; `name_of`: how to show the name of a peer."""
    state, group = queue.state, queue.group
    some = [
        wire.ConsumerInfo(name_of(key[0]), key[1], consumer.in_flight, sorted(consumer.partitions))
        for key, consumer in islice(group.consumers.items(), shown)
    ]
    return wire.GroupInfo(
        state.name,
        state.topic_filter,
        group.settings,
        group.acked_offset,
        queue.queue.next_offset,
        queue.lag,
        group.in_flight,
        group.waiting,
        state.dead_letters,
        len(group.consumers),
        some,
    )


def _going_on(steps: Iterator[None], answer: Answer) -> Iterator[None]:
    try:
        yield from steps
    except FAILURES as error:
        answer(_failed(error), b"")


def _pieces(receipts: list[wire.Receipt]) -> Iterator[tuple[int, int, int]]:
    for serial, first, number in receipts:
        for at in range(0, number, MESSAGES_AT_ONCE):
            yield serial, first + at, min(MESSAGES_AT_ONCE, number - at)


def _receipts(serial: int, offsets: list[int]) -> Iterator[wire.Receipt]:
    ranges = as_ranges(offsets)
    for first, number in zip(ranges[::2], ranges[1::2], strict=True):
        yield wire.Receipt(serial, first, number)


def _failed(error: Exception) -> Failed:
    if isinstance(error, GroupRefused):
        return Failed(FailureCode.NOT_ALLOWED, str(error))
    if isinstance(error, LightQueueError):
        return Failed(FailureCode.NO_SUCH_POSITION, str(error))
    code = FailureCode.STORE_FULL if isinstance(error, StoreFull) else FailureCode.UNAVAILABLE
    return Failed(code, str(error))
