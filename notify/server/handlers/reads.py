"""Requests that read what is stored, delayed or retained, and those about the rights to read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from lightqueue.reading import replay
from notify.requests import client_requests, reads
from notify.requests.contents import failure_code
from notify.requests.permissions import show
from notify.requests.rights_requests import Question, RightsRequests
from notify.server.handlers.connected import Connected, Handlers
from store.errors import StoreError
from store.wire import log_messages as of_log
from store.wire import messages as wire
from store.wire import rights_messages as of_rights
from store.wire.frames import Frame
from store.wire.messages import FailureCode, WireMessage

TOPICS_AT_ONCE = 16


class ReadHandlers:
    """Handles what the peer of one connection reads."""

    def __init__(self, connected: Connected, is_judged: Callable[[bool], None]) -> None:
        """`is_judged`: whether the frames after wait for another server, which says what the user may do."""
        self._connected = connected
        self._is_judged = is_judged

    def client_read(self, frame: Frame, message: client_requests.Question) -> None:
        connected, store = self._connected, self._connected.peer.store
        question = store.tier_reads.question(message, reads.ANSWER_BYTES)
        if question is None or connected.filter_fault(message):
            connected.reply(frame, lambda limit: client_requests.read(store, message, limit))
        else:
            connected.figures.reads += 1
            answer = partial(connected.answer, frame.request_id)
            store.tier_reads.ask(message, question, connected.room_bytes, answer, connected.is_ready)

    def read_at(self, frame: Frame, message: wire.ReadAt) -> None:
        connected, store = self._connected, self._connected.peer.store
        places = store.tier_reads.not_in_log(message.log_offsets)

        def came(found: dict[int, bytes] | str) -> None:
            if isinstance(found, str):
                connected.answer(frame.request_id, wire.Failed(FailureCode.UNAVAILABLE, found))
            else:
                connected.reply(frame, partial(reads.read_positions, store, message, of_tier=found))

        if places:
            store.tier_reads.read_places(places, connected.room_bytes, came, connected.is_ready)
        else:
            connected.reply(frame, partial(reads.read_positions, store, message))

    def find_retained(self, frame: Frame, message: wire.Retained) -> None:
        self._connected.reply(frame, partial(reads.find_retained_messages, self._connected.peer.store, message))

    def list_delayed(self, frame: Frame, message: wire.ListDelayed) -> Iterator[None]:
        connected = self._connected
        answer, _ = connected.found(message, partial(reads.list_delayed, connected.peer.store, message))
        return show(answer, connected.permits, connected.peer.own.names, partial(connected.answer, frame.request_id))

    def cancel_delayed(self, frame: Frame, message: wire.CancelDelayed) -> None:
        """The answer waits until it is as safe as what is appended."""
        self._connected.answer_when_safe(frame.request_id, self._cancelled(message))

    def _cancelled(self, message: wire.CancelDelayed) -> WireMessage:
        peer = self._connected.peer
        dispatching = peer.hub.messages.dispatching
        try:
            is_own = peer.own.has_topic(dispatching.topic_of(message.due_ms, message.log_offset))
            return wire.DelayedCancelled(is_own and dispatching.cancel(message.due_ms, message.log_offset))
        except StoreError as error:
            return wire.Failed(failure_code(error), str(error))

    def hold_log(self, frame: Frame, message: of_log.HoldLog) -> None:
        answer = client_requests.hold_log(self._connected.peer.store, message)
        self._connected.answer_when_safe(frame.request_id, answer)

    def count(self, frame: Frame, message: of_log.QueueOffsets) -> Iterator[None]:
        self._connected.figures.reads += 1
        return self._queue_offsets(frame, message)

    def _queue_offsets(self, frame: Frame, message: of_log.QueueOffsets) -> Iterator[None]:
        """Count the messages of topics before a log_offset, in steps; they do not change between the steps."""
        connected, found = self._connected, []
        try:
            for number, topic in enumerate(message.topics, 1):
                found.append(replay.count_before(connected.peers.hub.messages, topic, message.before))
                if number % TOPICS_AT_ONCE == 0:
                    yield
        except StoreError as error:
            connected.answer(frame.request_id, wire.Failed(failure_code(error), str(error)))
        else:
            connected.answer(frame.request_id, of_log.QueueOffsetsFound(found))

    def tell_rights(self, frame: Frame, message: Question) -> Iterator[None]:
        connected = self._connected

        def done(answer: WireMessage) -> None:
            self._is_judged(False)
            connected.answer(frame.request_id, answer)
            connected.wake()

        waits = partial(self._is_judged, True)
        return RightsRequests(connected.permits, connected.peer.own, waits).do(message, done)


HANDLERS: Handlers = {
    wire.ReadAt: ReadHandlers.read_at,
    wire.Retained: ReadHandlers.find_retained,
    wire.ListDelayed: ReadHandlers.list_delayed,
    wire.CancelDelayed: ReadHandlers.cancel_delayed,
    wire.Scan: ReadHandlers.client_read,
    wire.Seek: ReadHandlers.client_read,
    wire.Get: ReadHandlers.client_read,
    wire.GetDelayed: ReadHandlers.client_read,
    wire.Find: ReadHandlers.client_read,
    **dict.fromkeys(client_requests.LOG_REQUESTS, ReadHandlers.client_read),
    of_log.HoldLog: ReadHandlers.hold_log,
    of_log.QueueOffsets: ReadHandlers.count,
    of_rights.Rights: ReadHandlers.tell_rights,
    of_rights.Permitted: ReadHandlers.tell_rights,
    of_rights.ReadableFilters: ReadHandlers.tell_rights,
}
