"""Appends and Publishes of a peer: numbered, so that each is stored once however often it is sent.

A large one is copied and checked in some turns of the loop, and stored in another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Protocol

from msgspec.structs import replace

from lightqueue.message_store import MessageStore
from notify.local.hub import Hub
from notify.local.members import Member
from notify.local.own_names import OwnNames
from notify.local.store import LocalStore
from notify.requests import contents
from notify.requests.client_requests import published, stands_at
from notify.requests.contents import ContentLimits, Fenced, add_held_by, add_records, failure_code
from store.errors import RecordTooLarge, StoreError
from store.records._records import RecordBatch, topic_runs
from store.records.records import RECORD_HEADER_BYTES
from store.state.changes import (
    Change,
    GroupAdvanced,
    PeerAppended,
    PeerOwner,
    SessionClosed,
    SessionOpened,
    encode_change,
)
from store.wire import messages as wire
from store.wire.messages import FailureCode, Role

UNSAFE_NOTED = 64  # Appends of a peer; with so many it is looked at which of them are safe by now
CLOCKS_DIFFER_S = 60
MOST_RANGES = 64
REFUSED_BY_DISK = (FailureCode.STORE_FULL, FailureCode.UNAVAILABLE)

Begun = tuple[RecordBatch, list[Change]]


class RefusedAppends:
    """Ranges of refused sequences, in order, and whether later Appends are refused as well.

    A gateway sends on before it learns that the disk is full. If one of these Appends were stored because there is room
    again, a publisher's later messages would come before those that it sends again, and a session's changes would lack
    earlier ones.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges = tuple(ranges)
        """(first, last)."""
        self.stops_from = 0
        """Not 0: the sender of the next Appends may not know that this sequence was refused."""

    def has(self, sequence: int, stops: bool = False) -> bool:
        """Whether a sequence was refused, and so is again; `stops` as in add()."""
        found = bool(self.ranges) and any(first <= sequence <= last for first, last in self.ranges)
        if found and stops and not self.stops_from:
            self.stops_from = sequence
        return found

    def add(self, sequence: int, stops: bool = False) -> None:
        """Note a refused sequence; `stops`: refuse all later ones until the peer knows."""
        if stops and not self.stops_from:
            self.stops_from = sequence
        if self.ranges and self.ranges[-1][1] == sequence - 1:
            self.ranges = (*self.ranges[:-1], (self.ranges[-1][0], sequence))
        else:
            self.ranges = (*self.ranges, (sequence, sequence))

    def known(self, sequence: int) -> None:
        """Forget refusals up to this sequence, which the peer knows."""
        self.ranges = tuple((max(first, sequence + 1), last) for first, last in self.ranges if last > sequence)
        if self.stops_from <= sequence:
            self.stops_from = 0

    def lost_line(self) -> None:
        """Accept again: on the next connection the peer repeats every Append without an answer, from the first refusal
        on.
        """
        self.stops_from = 0


def begun(records: memoryview, role: Role, limits: ContentLimits, holder: str = "") -> Begun:
    """A batch that begins with a peer's records as one group, and the state changes among them. Raises ValueError.

    `holder`: of the sessions that a gateway opens; empty: they have the one that the records say.
    """
    batch = RecordBatch()
    batch.begin_atomic()
    return batch, _added(batch, records, role, limits, holder)


def in_time(changes: list[Change], is_others: Callable[[str], bool]) -> tuple[list[Change], set[str]]:
    """A gateway's changes without the ends of sessions that others have by now, which are no fault; and whose those
    are. Raises Fenced for another change of such a session."""
    named = {change.client_id for change in changes if not isinstance(change, GroupAdvanced)}  # type: ignore[attr-defined]
    others = {client_id for client_id in named if is_others(client_id)}
    if not others:
        return changes, others
    found: list[Change] = []
    late: set[str] = set()
    for change in changes:
        if isinstance(change, GroupAdvanced) or change.client_id not in others:  # type: ignore[attr-defined]
            found.append(change)
        elif isinstance(change, SessionClosed):
            late.add(change.client_id)
        else:
            raise Fenced(change.client_id)  # type: ignore[attr-defined]
    return found, late


def limits_of(messages: MessageStore, role: Role | None, size_bytes: int) -> ContentLimits:
    """The limits of a peer's records. Its clock may differ somewhat."""
    settings = messages.settings
    latest_due_ms = messages.now_ms() + 1_000 * (settings.max_delay_s + CLOCKS_DIFFER_S)
    return ContentLimits(size_bytes, latest_due_ms, settings.max_plain_bytes, role is Role.GATEWAY)


def _added(batch: RecordBatch, records: memoryview, role: Role, limits: ContentLimits, holder: str) -> list[Change]:
    """Add a piece of a peer's records. Returns the state changes among them. Raises ValueError."""
    if role is not Role.GATEWAY or not holder:
        return add_records(batch, records, role, limits)
    changes = add_records(RecordBatch(), records, role, limits)
    add_held_by(batch, records, holder, ())
    return [replace(each, holder=holder) if isinstance(each, SessionOpened) else each for each in changes]


class Prepared:
    """Owner of what the next Publish or Append of a peer stores, if that was prepared; or of the fault in it."""

    def __init__(self) -> None:
        self._made: tuple[memoryview, Begun | ValueError] | None = None

    def make(
        self, records: memoryview, cuts: list[int], role: Role, limits: ContentLimits, holder: str
    ) -> Iterator[None]:
        """Copy and check the pieces of records between `cuts` (positions in bytes, ascending), one in each step.

        `holder`: of the sessions that a gateway opens.
        """
        places = [*cuts, len(records)]
        try:
            batch, changes = begun(records[: places[0]], role, limits, holder)
            for start, end in pairwise(places):
                yield
                changes += _added(batch, records[start:end], role, limits, holder)
        except ValueError as error:
            self._made = records, error
        else:
            self._made = records, (batch, changes)
        yield

    def take(self, records: memoryview) -> Begun | None:
        """The pack that was made of these very records; it can be taken once. Raises ValueError, the fault that was
        found.
        """
        made, self._made = self._made, None
        if made is None or made[0] is not records:
            return None
        if isinstance(made[1], ValueError):
            raise made[1]
        return made[1]

    def clear(self) -> None:
        self._made = None


class Appender(Protocol):
    """A peer, as its appends see it; what they mean is said where Peer sets them."""

    name: str
    role: Role | None
    own: OwnNames
    owner: PeerOwner
    left_by: bytes
    known_topics: dict[bytes, None] | None
    counts_for: str

    @property
    def store(self) -> LocalStore: ...

    @property
    def member(self) -> Member: ...


class PeerAppends:
    """Owner of how far the Appends of one peer have come: which are in the log, safe, refused, or perhaps lost."""

    def __init__(self, peer: Appender, hub: Hub) -> None:
        self.prepared = Prepared()
        self._peer = peer
        self._hub = hub
        self._unsafe: deque[tuple[int, int]] = deque()  # (sequence, log_offset of its end), oldest first
        state = hub.messages.peers.get(peer.name)
        self._sequence = self._safe_sequence = state.sequence if state is not None else 0
        self._refused = RefusedAppends(state.refused if state is not None else ())
        self._lost = state.lost if state is not None else (1, 0)  # which may not be in the log: see PeerState

    def lost_line(self) -> None:
        """The peer's connection ended."""
        self.prepared.clear()
        self._refused.lost_line()

    @property
    def confirmed(self) -> int:
        """Every Append up to this sequence is in the log, and safe."""
        self._note_safe()
        doubtful = [first for first, last in (*self._refused.ranges[:1], self._lost) if first <= last]
        return min([self._safe_sequence, *(first - 1 for first in doubtful)])

    def _note_safe(self) -> None:
        safe = self._peer.store.appends.safe_mark
        while self._unsafe and self._unsafe[0][1] <= safe:
            self._safe_sequence = self._unsafe.popleft()[0]

    def append(self, sequence: int, records: memoryview, limit_bytes: int) -> wire.WireMessage:
        """Store what came in an Append, if it is not there already. Appended, to be said once it is safe, or Failed."""
        refused = self._refused
        if refused.ranges and refused.has(sequence, stops=self._peer.role is Role.GATEWAY):
            return wire.Failed(FailureCode.UNAVAILABLE, "it was refused already, and others were stored since")
        if sequence <= self._sequence and not self._lost[0] <= sequence <= self._lost[1]:
            return wire.Appended(0, 0)
        if refused.stops_from:
            return self._refuse(sequence, FailureCode.UNAVAILABLE, "one before it was refused")
        try:
            batch, changes = self._batch(sequence, records, limit_bytes)
            start = self._peer.store.appends.append_in_steps(batch, self._before(changes) if changes else None)
        except (ValueError, StoreError) as error:
            return self._refuse(sequence, failure_code(error), str(error))
        end = start + batch.size
        self._sequence = max(sequence, self._sequence)
        if len(self._unsafe) >= UNSAFE_NOTED:
            self._note_safe()
        self._unsafe.append((self._sequence, end))
        self._lost = (sequence + 1, self._lost[1])  # they come in order
        return wire.Appended(start, end)

    def _before(self, changes: list[Change]) -> Callable[[], None]:
        """An append with changes of state. Returns what to call once all of it is applied."""
        taken = [change for change in changes if isinstance(change, GroupAdvanced)]
        self._hub.consumers.will_take(taken)

        def applied() -> None:
            self._hub.consumers.took(taken)
            for change in changes:
                if isinstance(change, SessionOpened):
                    self._hub.claims.hold(self._peer.member, change.client_id)

        return applied

    def publish(
        self, sequence: int, records: memoryview, limit_bytes: int
    ) -> Callable[[], tuple[wire.WireMessage, int]]:
        """Like append(). Call this once all is applied: it gives an answer that says where the messages are, and the
        log_offset where they end."""
        is_again = sequence <= self._sequence and not self._lost[0] <= sequence <= self._lost[1]
        answer = self.append(sequence, records, limit_bytes)
        return lambda: self._published(sequence, records, limit_bytes, answer, is_again)

    def _published(
        self, sequence: int, records: memoryview, limit_bytes: int, answer: wire.WireMessage, is_again: bool
    ) -> tuple[wire.WireMessage, int]:
        if isinstance(answer, wire.Failed):
            return answer, 0
        messages = self._hub.messages
        if not is_again:
            assert isinstance(answer, wire.Appended)
            return published(messages, records, answer.start + RECORD_HEADER_BYTES), answer.end
        return self._published_before(sequence, records, limit_bytes), messages.end

    def _published_before(self, sequence: int, records: memoryview, limit_bytes: int) -> wire.WireMessage:
        """The answer to a Publish that was sent again. What it says need not be what it said the first time."""
        messages = self._hub.messages
        state = messages.peers.get(self._peer.name)
        place = state.place(sequence) if state is not None else None
        unknown = wire.Failed(FailureCode.NO_SUCH_POSITION, "it is stored, but nobody knows any more where")
        if place is None or not stands_at(messages, records, place - len(records)):
            return unknown
        try:
            contents.add_records(RecordBatch(), records, Role.CLIENT, self.limits(limit_bytes))
        except ValueError as error:
            return wire.Failed(FailureCode.BAD_REQUEST, str(error))
        answer = published(messages, records, place - len(records))
        is_there = all(
            queue_offset >= 0 or not is_queued
            for queue_offset, (_, _, _, is_queued) in zip(answer.queue_offsets, topic_runs(records), strict=True)
        )
        return answer if is_there else unknown

    def _batch(self, sequence: int, records: memoryview, limit_bytes: int) -> tuple[RecordBatch, list[Change]]:
        """The records and how far the peer has come with them: all of it gets into the log, or nothing."""
        assert self._peer.role is not None
        if len(records) > limit_bytes:
            raise RecordTooLarge(len(records), limit_bytes)
        batch, changes = self.prepared.take(records) or begun(records, self._peer.role, self.limits(limit_bytes))
        if changes:
            self._hub.consumers.check_taken(
                self._peer.name, [each for each in changes if isinstance(each, GroupAdvanced)]
            )
            changes, late = in_time(changes, self._is_others)
            if late or any(
                isinstance(change, SessionOpened) and change.holder != self._peer.name for change in changes
            ):
                batch = RecordBatch()
                batch.begin_atomic()
                contents.add_held_by(batch, records, self._peer.name, late)
        is_client = self._peer.role is Role.CLIENT
        if is_client and (
            fault := self._peer.own.fault_of_records(records) or contents.left_fault(records, self._peer.left_by)
        ):
            raise contents.BadContents(fault)
        user = self._peer.counts_for if is_client else ""
        counted = self._hub.quotas.take_records(user, self._peer.known_topics, records) if is_client else ()
        newest, refused = max(sequence, self._sequence), self._refused.ranges
        owner = self._peer.owner if is_client else None
        batch.append(*encode_change(PeerAppended(self._peer.name, newest, refused, is_client, user, counted, owner)))
        batch.end_atomic()
        return batch, changes

    def limits(self, size_bytes: int) -> contents.ContentLimits:
        """The limits of a peer's records."""
        return limits_of(self._hub.messages, self._peer.role, size_bytes)

    def _is_others(self, client_id: str) -> bool:
        return self._hub.claims.holder(client_id) not in (None, self._peer.member)

    def refuse(self, sequence: int, answer: wire.Failed) -> wire.Failed:
        """Note that an Append is refused, since its user may not, unless it was stored before. Returns `answer`."""
        if sequence > self._sequence:
            self._refuse(sequence, answer.code, answer.message)
        return answer

    def _refuse(self, sequence: int, code: FailureCode, why: str) -> wire.Failed:
        self._refused.add(sequence, stops=self._peer.role is Role.GATEWAY and code in REFUSED_BY_DISK)
        return wire.Failed(code, why)

    @property
    def has_too_many_refused(self) -> bool:
        return len(self._refused.ranges) > MOST_RANGES

    def knows_refused(self, sequence: int) -> None:
        """Forget refusals up to this sequence, which the peer knows."""
        self._refused.known(sequence)
