"""How messages become Publishes, and their answers receipts. No I/O.

What is published in one turn of the loop goes out together, and so does what comes while MOST_PUBLISHES are without an
answer. A batch of the caller's stays whole: it is a Publish of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, repeat
from math import inf
from typing import NamedTuple, Protocol

from penstock.sdk.errors import ClientError, NotPermitted
from penstock.sdk.message import Cancel, DelayedReceipt, Receipt
from penstock.sdk.message_id import StorePlace
from penstock.sdk.outgoing import Outgoing
from store.records.records import KEPT_CHANGES, TOPIC_UNIT_BYTES, RecordFlag
from store.wire import messages as wire
from store.wire.client.requests import Outcome, PendingRequests
from store.wire.frames import Frame

PACK_BYTES = 256 << 10  # of messages that go out together because they happen to wait together
PACK_CHANGES = 1_029  # as long as no store has said how many: the least that one may allow
FLAGS_AT, TOPIC_LENGTH_AT = 25, 26  # bytes of a record
KEPT = int(RecordFlag.RETAIN | RecordFlag.DELAYED)
FRAME_ROOM_BYTES = 8_192  # of a frame, or of an append, for what is not a client's records

Done = Callable[[Receipt | Exception], None]


class Together(Protocol):
    """Messages that are one Publish."""

    @property
    def records(self) -> bytes: ...

    @property
    def wait(self) -> wire.Wait: ...

    def receipts(self, published: wire.Published, place: StorePlace) -> list[Receipt]: ...


class Entry(NamedTuple):
    """A message, and who is told what became of it."""

    message: Outgoing
    done: Done


class Outbox:
    """Owner of messages that wait to become Publishes, and of their sequence."""

    def __init__(
        self,
        requests: PendingRequests,
        place: Callable[[], StorePlace],
        wake: Callable[[], None],
        cancel: Cancel,
        answered: Callable[[Sequence[Entry]], None] = lambda _: None,
    ) -> None:
        """`wake`: have flush() called soon; `cancel`: what receipts of delayed messages have; `answered`: called
        once these entries, or a batch, have been told what became of them."""
        self.unanswered_bytes = 0
        self._on_answered = answered
        self._requests = requests
        self._place = place
        self._wake = wake
        self._cancel = cancel
        self._sequence = 0
        self._waiting: deque[Entry] = deque()

    def add(self, entry: Entry) -> None:
        """A message, to go out with those that wait as well."""
        self._waiting.append(entry)
        self.unanswered_bytes += len(entry.message.record)
        self._wake()

    def add_whole(self, whole: Together, done: Callable[[list[Receipt] | Exception], None]) -> None:
        """Messages that are stored together, or not at all."""
        self.flush(everything=True)
        self.unanswered_bytes += len(whole.records)

        def answered(outcome: Outcome, _: Frame) -> None:
            self.unanswered_bytes -= len(whole.records)
            if isinstance(outcome, wire.Published):
                done(whole.receipts(outcome, self._place()))
            else:
                done(_error(outcome))
            self._settled(())

        self._sequence += 1
        self._requests.ask(wire.Publish(self._sequence, whole.wait), answered, whole.records)

    def flush(self, everything: bool = False) -> None:
        """Make Publishes of what waits, as many as may be sent now; of `everything` if that is wanted."""
        if len(self._waiting) == 1 and (everything or self._requests.has_window):
            self._publish([self._waiting.popleft()])
        elif self._waiting:
            self._publish_packs(everything)

    def _publish_packs(self, everything: bool) -> None:
        most_bytes = min(PACK_BYTES, batch_bytes(self._requests.welcome))
        most_changes = pack_changes(self._requests.welcome)
        while self._waiting and (everything or self._requests.has_window):
            wait = self._waiting[0].message.wait
            pack: list[Entry] = []
            size_bytes = changes = 0
            topic = None
            while self._waiting:
                message = self._waiting[0].message
                size_bytes += len(message.record)
                if message.topic != topic or message.record[FLAGS_AT] & KEPT:
                    changes += changes_of(message)
                    topic = message.topic if message.due_ms is None else None
                if pack and (size_bytes > most_bytes or changes > most_changes or message.wait is not wait):
                    break
                pack.append(self._waiting.popleft())
            self._publish(pack)

    def _publish(self, entries: Sequence[Entry]) -> None:
        def answered(outcome: Outcome, _: Frame) -> None:
            self._answered(entries, outcome)

        self._sequence += 1
        records = b"".join([entry.message.record for entry in entries])
        self._requests.ask(wire.Publish(self._sequence, entries[0].message.wait), answered, records)

    def _answered(self, entries: Sequence[Entry], outcome: Outcome) -> None:
        topics = dict.fromkeys(entry.message.topic for entry in entries) if isinstance(outcome, NotPermitted) else {}
        if len(topics) > 1:  # only because they went out together: each is judged by itself
            for topic in topics:
                self._publish([entry for entry in entries if entry.message.topic == topic])
            return
        self.unanswered_bytes -= sum(len(entry.message.record) for entry in entries)
        if isinstance(outcome, wire.Published):
            found = receipts([entry.message for entry in entries], outcome, self._place())
            for entry, receipt in zip(entries, found, strict=True):
                due_ms = entry.message.due_ms
                entry.done(receipt if due_ms is None else DelayedReceipt.of(receipt, due_ms, self._cancel))
        else:
            for entry in entries:
                entry.done(_error(outcome))
        self._settled(entries)

    def _settled(self, entries: Sequence[Entry]) -> None:
        self._on_answered(entries)
        if self._waiting:
            self._wake()

    def fail_all(self, error: Exception) -> None:
        """The messages that wait here will not be sent."""
        waiting, self._waiting = self._waiting, deque()
        for entry in waiting:
            self.unanswered_bytes -= len(entry.message.record)
            entry.done(error)
        self._on_answered(waiting)


def _error(outcome: Outcome) -> Exception:
    return outcome if isinstance(outcome, Exception) else ClientError(f"{type(outcome).__name__} to a Publish")


def batch_bytes(welcome: wire.Welcome | None) -> int:
    """How much of messages one Publish can have: what the store says, and little before it has said so."""
    return (welcome.max_frame_bytes if welcome is not None else PACK_BYTES) - FRAME_ROOM_BYTES


def pack_changes(welcome: wire.Welcome | None) -> float:
    """The most work that one Publish may be, in changes; an older store does not say, and takes all."""
    if welcome is None:
        return PACK_CHANGES
    return welcome.max_changes or inf


def changes_of(message: Outgoing) -> int:
    """Its work, in changes, after a message of another topic."""
    record = message.record
    topic_bytes = record[TOPIC_LENGTH_AT] | record[TOPIC_LENGTH_AT + 1] << 8
    return (KEPT_CHANGES if record[FLAGS_AT] & KEPT else 1) + topic_bytes // TOPIC_UNIT_BYTES


def receipts(messages: Sequence[Outgoing], published: wire.Published, place: StorePlace) -> list[Receipt]:
    """Where each of the messages of a Publish is: one after the other, and in runs of one topic in its queue."""
    if len(messages) == 1:
        queue_offset = published.queue_offsets[0] if published.queue_offsets else -1
        return [Receipt(place, messages[0].topic, published.log_offset, queue_offset if queue_offset >= 0 else None)]
    log_offsets = accumulate((len(message.record) for message in messages[:-1]), initial=published.log_offset)
    runs = [(message.topic, message.due_ms is not None) for message in messages]
    topics = [message.topic for message in messages]
    return list(map(Receipt, repeat(place), topics, log_offsets, in_runs(runs, published.queue_offsets)))


def in_runs(keys: Iterable[object], firsts: Iterable[int]) -> Iterable[int | None]:
    """Where each message is in its queue: of each run of one key the first one's queue_offset is known, or -1."""
    starts = iter(firsts)
    last: object = None
    queue_offset = -1
    for key in keys:
        if key != last:
            last, queue_offset = key, next(starts, -1)
        elif queue_offset >= 0:
            queue_offset += 1
        yield queue_offset if queue_offset >= 0 else None
