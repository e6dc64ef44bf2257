"""Events that the store's end of a connection sends by itself: queues that grew, how far the log is safe, takeovers.

Events are positions, so a peer that does not read misses nothing: the next one says all that the ones before it did.
Of many queues a peer is told in a round of several turns. Pushed are records that it gets without asking: the rest of
queues that it has read to their ends, as they grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from lightqueue.queues._queues import Queue
from notify.events.lookup import name_of
from notify.local.store import LocalStore
from notify.requests.reads import ANSWER_BYTES, MOST_RANGES, Answer, check_begun, read
from notify.server.line import WireCounters
from notify.server.peers import Peer
from store.wire import messages as wire
from store.wire.messages import Role, Welcome, WireMessage

PUSHED_RECORDS = 8_192
GREW_BYTES = 16  # at most, of one queue in a Grew
FRAME_ROOM_BYTES = 64  # of a frame with records: its head, its padding, and what its lists do not grow
MOST_TOLD = 2_048  # queues that a peer is told of at a time: some 0.6 ms

Range = tuple[int, int, int]  # (ref, queue_offset of the first record, number of records)
A = TypeVar("A", bound=WireMessage)


class PushedRanges(NamedTuple):
    """Ranges that go out now with their records, and the refs of queues of which only the end is told."""

    ranges: list[Range]
    records: bytes
    rest: list[int]


class Push:
    """Owner of how far one connection was given its queues. It begins with none: what was asked for goes on."""

    def __init__(self) -> None:
        self._given: dict[int, int] = {}  # by ref: the queue_offset after it

    def was_read(self, queues: Mapping[int, Queue], ranges: Iterable[Range]) -> None:
        """Note that the peer was sent these ranges as an answer."""
        for ref, first, count in ranges:
            if first + count == queues[ref].next_offset:
                self._given[ref] = first + count

    def stop(self, refs: Iterable[int]) -> None:
        """Push no more of these queues before the peer has read them to their ends again."""
        for ref in refs:
            self._given.pop(ref, None)

    def pass_over(self, queues: Mapping[int, Queue], refs: Iterable[int]) -> None:
        """Tell only the ends of these queues: the peer asks for the records, unless it was sent them already."""
        if self._given:
            self.stop([ref for ref in refs if ref in self._given and self._given[ref] != queues[ref].next_offset])

    def take(self, store: LocalStore, queues: Mapping[int, Queue], grown: list[int], limit_bytes: int) -> PushedRanges:
        """The ranges to push of queues that grew. The peer asks for those that are too much for one push."""
        given = self._given
        wanted = [(ref, given[ref]) for ref in grown if ref in given and given[ref] < queues[ref].next_offset]
        if not wanted:
            return PushedRanges([], b"", grown)
        asked = wire.Read(wanted[:MOST_RANGES], PUSHED_RECORDS, ANSWER_BYTES)
        answer, records = read(store, queues, asked, limit_bytes)
        assert isinstance(answer, wire.Ranges)
        ranges = [each for each in answer.ranges if each[2]]  # nothing is what stands for a record that is too large
        self.was_read(queues, ranges)
        whole = {ref for ref, first, count in ranges if first + count == given[ref]}
        rest = [ref for ref in grown if ref not in whole]
        self.pass_over(queues, rest)
        return PushedRanges(ranges, records, rest)


class _Round:
    """Queues that grew, by their names and by their refs, and where the log ended when they were taken."""

    __slots__ = ("_at", "end", "grown", "is_large", "named", "others")

    def __init__(self, named: list[Queue], others: bool, grown: list[Queue], end: int) -> None:
        self.named = named
        self.others = others
        self.grown = grown
        self.end = end
        self.is_large = len(named) + len(grown) > MOST_TOLD
        self._at = 0  # of both together

    @property
    def is_over(self) -> bool:
        return self._at >= len(self.named) + len(self.grown)

    def next(self) -> tuple[list[Queue], list[Queue]]:
        """The next of both: so many as are told of at a time, but for names that may be others' by now."""
        start, self._at = self._at, self._at + MOST_TOLD
        first = len(self.named)
        named = [queue for queue in self.named[start : self._at] if queue.watchers]
        return named, self.grown[max(0, start - first) : max(0, self._at - first)]


class Events:
    """Owner of what one peer was told on one connection."""

    def __init__(
        self,
        peer: Peer,
        welcome: Welcome,
        figures: WireCounters,
        max_frame_bytes: int,
        tell: Callable[[WireMessage, bytes], None],
    ) -> None:
        self.push = Push()
        self.told_end = (
            0 if peer.followed.refs else welcome.log_end
        )  # of all before it the peer knows in which queues it is
        self.taken_over: dict[str, None] = {}  # sessions, to be told of
        self._peer = peer
        self._figures = figures
        self._room_bytes = max_frame_bytes - FRAME_ROOM_BYTES
        self._tell = tell
        self._told_safe = 0
        self._has_all_ends_to_tell = welcome.resumed  # events may have got lost with the last connection
        self._round: _Round | None = None  # which is not over
        self._rounds = 0
        self.has_more = False  # call tell() again, in a turn to come
        self._is_current = False  # whether the last call of tell() told of all that grew before it

    @property
    def most_ends(self) -> int:
        """Queues that one frame can name by their refs."""
        return min(wire.MOST_ITEMS, self._room_bytes // GREW_BYTES)

    def read(self, request: wire.Read, limit_bytes: int) -> Answer:
        """The records that a peer asked for; first it is told of all queues that grew. Raises a StoreError.

        A message may be in several queues: who has it from one and does not know of the others would deliver it twice.
        """
        peer = self._peer
        if peer.role is Role.CLIENT:
            check_begun(request, peer.followed.by_ref, peer.followed.began)
        try:
            answer, records = read(peer.store, peer.followed.by_ref, request, limit_bytes)
            if isinstance(answer, wire.Ranges):
                self.push.was_read(peer.followed.by_ref, answer.ranges)
        finally:
            self._tell_all()
        return answer, records

    def catch_up(self, then: Callable[[], object]) -> Iterator[None] | None:
        """Do something at once, or in steps after the end of a round that is too large for once."""
        self._round = self._round or self._begin()
        if self._round.is_large:
            return self._steps_of_round(then)
        then()
        return None

    def _steps_of_round(self, then: Callable[[], object]) -> Iterator[None]:
        number = self._rounds
        while self.is_behind and self._rounds == number:
            self.tell()
            yield
        then()

    @property
    def is_behind(self) -> bool:
        """Whether the peer knows of some of the queues of a round only."""
        return self._round is not None

    def up_to(self, answer: A) -> A:
        """An answer after tell(), with a `log_end` that is no later than where the peer knows all queues."""
        return answer if self._is_current or not hasattr(answer, "log_end") else replace(answer, log_end=self.told_end)

    def _begin(self) -> _Round:
        peer = self._peer
        grown = peer.store.queues.collect_grown()
        if self._has_all_ends_to_tell:
            grown = list(peer.followed.refs)
            self._has_all_ends_to_tell = False
        self._rounds += 1  # large or not
        return _Round(*peer.member.collect_named(), grown, peer.store.queues.end)

    def _tell_all(self) -> None:
        while self._round is not None and self._round.is_large:  # it began before
            self.tell()
        self.tell()
        while self.is_behind:
            self.tell()

    def tell(self) -> None:
        """Say what is new: of MOST_TOLD queues, the others are told of by the next calls.

        Only the last frame of a round says where the log ends: who knows that takes all queues for known up to there.
        So what grows meanwhile belongs to the next round, and how far the log is safe is said after the last one.
        """
        peer, round_ = self._peer, self._round
        is_new = round_ is None
        round_ = round_ or self._begin()
        self.has_more = is_large = round_.is_large
        named, grown = round_.next() if is_large else (round_.named, round_.grown)
        self._round = round_ if is_large and not round_.is_over else None
        self._is_current = is_new and self._round is None
        safe, end = peer.store.queues.safe, round_.end
        if is_large:
            safe, end = min(safe, end), end if self._round is None else self.told_end
        refs = [peer.followed.refs[queue] for queue in grown if queue in peer.followed.refs]
        if named or round_.others:
            self._tell_named(named, round_.others, self.told_end if refs else end)
            round_.others = False
        if refs:
            self._tell_grown(refs, end, safe, is_whole=not is_large)
        if is_large and self.told_end < end:  # the last queues are followed no more
            self._tell_ends([], end)
        if safe > self._told_safe and peer.followed.refs and self._round is None:
            self._told_safe = safe
            self._tell(wire.Safe(safe), b"")
        if self.taken_over:
            for client_id in self.taken_over:
                self._tell(wire.TakenOver(client_id), b"")
            self.taken_over.clear()

    def _tell_grown(self, refs: list[int], end: int, safe: int, is_whole: bool) -> None:
        """Tell of the ends first: what is pushed may be delivered at once, and a message may be in several queues.

        So nothing is pushed unless `is_whole`: the peer knows by then of all queues that grew.
        """
        peer = self._peer
        if not is_whole:
            self.push.pass_over(peer.followed.by_ref, refs)
            self._tell_ends(refs, end)
            return
        pushed = self.push.take(peer.store, peer.followed.by_ref, refs, self._room_bytes)
        if pushed.rest:
            self._tell_ends(pushed.rest, self.told_end if pushed.ranges else end)
        if pushed.ranges:
            self._figures.pushes += 1
            self.told_end, self._told_safe = end, safe
            self._tell(wire.Pushed(pushed.ranges, end, safe), pushed.records)

    def _tell_ends(self, refs: list[int], end: int) -> None:
        """`end`: of the log, for the last frame."""
        queues, most = self._peer.followed.by_ref, self.most_ends
        for at in range(0, max(1, len(refs)), most):
            self._figures.events += 1
            if at + most >= len(refs):
                self.told_end = end
            self._tell(wire.Grew([(ref, queues[ref].next_offset) for ref in refs[at : at + most]], self.told_end), b"")

    def _tell_named(self, grown: list[Queue], others: bool, end: int) -> None:
        portion: list[tuple[bytes, int]] = []
        left_bytes = self._room_bytes
        for queue in grown:
            name = name_of(queue)
            left_bytes -= len(name) + GREW_BYTES
            if left_bytes < 0:
                self._figures.named_events += 1
                self._tell(wire.GrewNamed(portion, False, self.told_end), b"")
                portion, left_bytes = [], self._room_bytes - len(name) - GREW_BYTES
            portion.append((name, queue.next_offset))
        self._figures.named_events += 1
        self.told_end = end
        self._tell(wire.GrewNamed(portion, others, end), b"")
