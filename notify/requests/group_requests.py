"""Requests of peers about consumer groups: calls to Consumers, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Protocol

from lightqueue.errors import LightQueueError
from lightqueue.groups.groups import GroupQueue
from lightqueue.groups.popped import PoppedMessages
from notify.errors import GroupRefused
from notify.local.consumers import Consumer, Consumers, PopReceiver, PopRequest
from notify.local.own_names import OwnNames
from notify.requests.contents import filter_fault
from notify.requests.permissions import plain_permission
from notify.requests.users import Permission, Permits
from store.errors import StoreError, StoreFull
from store.namespaces import DEFAULT
from store.state.group_states import Maker
from store.state.offset_ranges import as_ranges
from store.wire import group_messages as wire
from store.wire.base import MOST_ITEMS, WireMessage
from store.wire.messages import Failed, FailureCode

Answer = Callable[[WireMessage, bytes], None]

SHOWN_CONSUMERS = 100
LIST_BYTES = 128 << 10  # of one GroupsListed, about: a frame has room for more
CONSUMER_BYTES = 600
INFO_BYTES = 200


class Requester(PopReceiver, Protocol):
    """The connection of a peer."""

    @property
    def permits(self) -> Permits:
        """The permissions of its user."""


class GroupRequests:
    """Owner of the refs of consumers."""

    def __init__(
        self,
        consumers: Consumers,
        most_bytes: int,
        clock: Callable[[], float],
        shows: Callable[[str, str], bool],
    ) -> None:
        """`most_bytes`: of the records in an answer; `shows`: whether a peer may see the name of another one."""
        self._shows = shows
        self.consumers = consumers
        self._most_bytes = most_bytes
        self._clock = clock
        self._by_key: dict[tuple[str, int], Consumer] = {}
        self._refs: dict[Consumer, int] = {}
        self._last_ref = 0

    def left(self, peer: str) -> None:
        """Forget a peer that is gone."""
        for key in [key for key in self._by_key if key[0] == peer]:
            self._refs.pop(self._by_key.pop(key), None)
        self.consumers.left(peer)

    def handle(self, peer: str, receiver: Requester, message: WireMessage, answer: Answer) -> None:
        """Answer a request, now or later."""
        topic_filter = getattr(message, "topic_filter", None)
        fault = filter_fault(topic_filter) if topic_filter is not None else ""
        if fault:
            answer(Failed(FailureCode.BAD_REQUEST, f"topic filter {fault}"), b"")
            return
        try:
            _HANDLERS[type(message)](self, peer, receiver, message, answer)
        except GroupRefused as error:
            answer(Failed(FailureCode.NOT_ALLOWED, str(error)), b"")
        except LightQueueError as error:
            answer(Failed(FailureCode.NO_SUCH_POSITION, str(error)), b"")
        except StoreError as error:
            answer(_failed(error), b"")

    # --- requests

    def _open(self, peer: str, receiver: Requester, message: wire.GroupOpen, answer: Answer) -> None:
        group = (message.group, message.topic_filter)
        key = (peer, message.consumer)
        user = receiver.permits.user
        maker = Maker(user.name) if user is not None else Maker(message.user, message.if_new is not None)
        start, or_refuse = message.start, message.or_refuse
        consumer = self.consumers.open(key, group, message.settings, start, message.if_new, maker, or_refuse)
        if consumer not in self._refs:
            self._last_ref += 1
            self._refs[consumer] = self._last_ref
            self._by_key[peer, self._last_ref] = consumer
        answer(wire.GroupOpened(self._refs[consumer], consumer.queue.settings), b"")

    def _close(self, peer: str, _: PopReceiver, message: wire.GroupClose, __: Answer) -> None:
        consumer = self._by_key.pop((peer, message.ref), None)
        if consumer is not None:
            del self._refs[consumer]
            self.consumers.close(consumer, message.seen)

    def _consumer(self, peer: str, ref: int) -> Consumer:
        consumer = self._by_key.get((peer, ref))
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

    def _ack(self, peer: str, _: PopReceiver, message: wire.Ack, answer: Answer) -> None:
        queue = self._consumer(peer, message.ref).queue
        self._settle(queue, message.receipts, queue.ack, answer)

    def _change_invisible(self, peer: str, _: PopReceiver, message: wire.ChangeInvisible, answer: Answer) -> None:
        consumer = self._consumer(peer, message.ref)
        due_ms = self.consumers.now_ms() + message.invisible_ms
        change = partial(consumer.queue.change_invisible, due_ms=due_ms, consumer=consumer.key)
        self._settle(consumer.queue, message.receipts, change, answer)

    def _reject(self, peer: str, _: PopReceiver, message: wire.Reject, answer: Answer) -> None:
        queue = self._consumer(peer, message.ref).queue
        now_ms = self.consumers.now_ms()
        reject = partial(
            queue.reject, now_ms=now_ms, delay_ms=message.delay_ms, dead=message.dead, unseen=message.unseen
        )
        self._settle(queue, message.receipts, reject, answer)

    def _settle(
        self,
        queue: GroupQueue,
        receipts: list[wire.Receipt],
        settle: Callable[[int, int, int], list[int]],
        answer: Answer,
    ) -> None:
        if sum(each.number for each in receipts) > MOST_ITEMS:
            answer(Failed(FailureCode.BAD_REQUEST, f"more than {MOST_ITEMS} messages at a time"), b"")
            return
        stale = [each for receipt in receipts for each in _receipts(receipt.serial, settle(*receipt))]

        def then(error: StoreError | None) -> None:
            answer(_failed(error) if error is not None else wire.Settled(stale), b"")

        self.consumers.said(queue, then)

    def _list(
        self, peer: str, receiver: Requester, message: wire.GroupList | wire.PausedGroups, answer: Answer
    ) -> None:
        found: list[wire.GroupInfo] = []
        left_bytes = LIST_BYTES
        listed = self.consumers.listed(message.group)
        if isinstance(message, wire.PausedGroups):
            listed = [each for each in listed if each.state.paused]
        groups = [each for each in listed if _sees(receiver, each)][message.skip :]
        for queue in groups:
            name = queue.state
            size = INFO_BYTES + len(name.topic_filter.encode()) + len(name.name.encode())
            shown = min(SHOWN_CONSUMERS, len(queue.group.consumers))
            if found and size + shown * CONSUMER_BYTES > left_bytes:
                break
            left_bytes -= size + shown * CONSUMER_BYTES
            found.append(info(queue, shown, partial(self._shows, peer)))
        answer(wire.GroupsListed(found, more=len(found) < len(groups)), b"")

    def _reset(self, _: str, __: PopReceiver, message: wire.GroupReset, answer: Answer) -> None:
        answer(wire.GroupDone(self.consumers.reset((message.group, message.topic_filter), message.to)), b"")

    def _pause(self, _: str, __: PopReceiver, message: wire.GroupPause, answer: Answer) -> None:
        group = (message.group, message.topic_filter)
        answer(wire.GroupDone(self.consumers.pause(group, message.paused)), b"")

    def _drop(self, _: str, __: PopReceiver, message: wire.GroupDrop, answer: Answer) -> None:
        self.consumers.drop((message.group, message.topic_filter))
        answer(wire.GroupDone(0), b"")


_HANDLERS: dict[type[WireMessage], Callable[..., None]] = {
    wire.GroupOpen: GroupRequests._open,
    wire.GroupClose: GroupRequests._close,
    wire.Pop: GroupRequests._pop,
    wire.Ack: GroupRequests._ack,
    wire.ChangeInvisible: GroupRequests._change_invisible,
    wire.Reject: GroupRequests._reject,
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


def info(queue: GroupQueue, shown: int, shows: Callable[[str], bool]) -> wire.GroupInfo:
    """A group, with the first of its consumers, and the names of those peers that `shows` allows."""
    state, group = queue.state, queue.group
    some = [
        wire.ConsumerInfo(key[0] if shows(key[0]) else "", key[1], consumer.in_flight, sorted(consumer.partitions))
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


def _receipts(serial: int, offsets: list[int]) -> Iterator[wire.Receipt]:
    ranges = as_ranges(offsets)
    for first, number in zip(ranges[::2], ranges[1::2], strict=True):
        yield wire.Receipt(serial, first, number)


def _failed(error: StoreError) -> Failed:
    code = FailureCode.STORE_FULL if isinstance(error, StoreFull) else FailureCode.UNAVAILABLE
    return Failed(code, str(error))
