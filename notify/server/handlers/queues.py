"""Requests about queues and groups over them: follow, read, how far a peer has come, consumers of groups.

Frames with thousands of items are dealt with some items at a time: what is after them waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from notify.requests import group_requests
from notify.requests.contents import failure_code
from notify.requests.reads import locate
from notify.server.handlers.connected import Connected, Handlers
from store.errors import StoreError
from store.wire import messages as wire
from store.wire.frames import Frame
from store.wire.handshake import HOLDING_VERSION
from store.wire.messages import FailureCode, Hello, Role, WireMessage

ITEMS_AT_ONCE = 128


class QueueHandlers:
    """Handles what the peer of one connection asks of queues."""

    def __init__(self, connected: Connected, hello: Hello) -> None:
        self._connected = connected
        self._knows_tier = HOLDING_VERSION in hello.versions
        self._events = connected.events

    def follow(self, frame: Frame, message: wire.Follow) -> None:
        self._events.tell()  # the answer says where the log ends
        self._connected.answer(frame.request_id, self._events.up_to(self._following(message)))

    def _following(self, message: wire.Follow) -> WireMessage:
        peer = self._connected.peer
        if peer.role is Role.CLIENT and (message.history or message.spills):
            return wire.Failed(
                FailureCode.NOT_ALLOWED, "a client follows what comes from now on; read() has what is stored"
            )
        try:
            return peer.followed.follow(message, peer.role, self._knows_tier)
        except StoreError as error:
            return wire.Failed(failure_code(error), str(error))

    def unfollow(self, _: Frame, message: wire.Unfollow) -> Iterator[None]:
        for at in range(0, len(message.refs), ITEMS_AT_ONCE):
            refs = message.refs[at : at + ITEMS_AT_ONCE]
            self._events.push.stop(refs)
            self._connected.peer.followed.unfollow(refs)
            yield

    def enough(self, _: Frame, message: wire.Enough) -> Iterator[None]:
        for at in range(0, len(message.refs), ITEMS_AT_ONCE):
            self._events.push.stop(message.refs[at : at + ITEMS_AT_ONCE])
            yield

    def floors(self, _: Frame, message: wire.Floors) -> Iterator[None]:
        for at in range(0, len(message.floors), ITEMS_AT_ONCE):
            self._connected.peer.followed.set_floors(message.floors[at : at + ITEMS_AT_ONCE])
            yield

    def check(self, frame: Frame, message: wire.Check) -> Iterator[None]:
        """The answer has where these queues end, or ended some steps before."""
        connected, refs, ends = self._connected, message.refs[: self._events.most_ends], []
        for at in range(0, len(refs), ITEMS_AT_ONCE):
            ends += connected.peer.followed.ends(refs[at : at + ITEMS_AT_ONCE])
            yield
        self._events.tell()  # what is not said yet is not lost
        end = connected.peer.store.queues.end
        connected.answer(frame.request_id, self._events.up_to(wire.Checked(ends, end)))

    def read(self, frame: Frame, message: wire.Read) -> Iterator[None] | None:
        return self._events.catch_up(lambda: self._connected.reply(frame, partial(self._events.read, message)))

    def locate(self, frame: Frame, message: wire.Locate) -> None:
        locate(self._connected.peer.store, message, partial(self._connected.answer, frame.request_id))

    def ask_group(self, frame: Frame, message: WireMessage) -> Iterator[None] | None:
        connected = self._connected
        connected.wake()  # what was said may be written at once
        answer = partial(connected.answer, frame.request_id)
        return connected.peers.groups.handle(connected.peer.name, connected.receiver, message, answer)


HANDLERS: Handlers = {
    wire.Follow: QueueHandlers.follow,
    wire.Unfollow: QueueHandlers.unfollow,
    wire.Floors: QueueHandlers.floors,
    wire.Check: QueueHandlers.check,
    wire.Read: QueueHandlers.read,
    wire.Enough: QueueHandlers.enough,
    wire.Locate: QueueHandlers.locate,
    **dict.fromkeys(group_requests.REQUESTS, QueueHandlers.ask_group),
}
