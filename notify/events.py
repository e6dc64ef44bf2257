"""What the store's end of a connection says without being asked: queues that grew, how far the log is safe, takeovers.

Events are positions, so a peer that does not read misses nothing: the next one says all that the ones before it did.
"""

from __future__ import annotations

from collections.abc import Callable

from lightqueue._queues import Queue
from notify.figures import Figures
from notify.lookup import name_of
from notify.peers import Peer
from notify.push import Push
from notify.reads import Answer, read
from store.wire import messages as wire
from store.wire.messages import Message, Welcome

GREW_BYTES = 16  # at most, of one queue in a Grew
FRAME_ROOM_BYTES = 64  # of a frame with records: its head, its padding, and what its lists do not grow


class Events:
    """Owner of what one peer was told on one connection."""

    def __init__(
        self,
        peer: Peer,
        welcome: Welcome,
        figures: Figures,
        max_frame_bytes: int,
        tell: Callable[[Message, bytes], None],
    ) -> None:
        self.push = Push()
        self.told_end = 0 if peer.refs else welcome.log_end  # of all before it the peer knows in which queues it is
        self.taken_over: dict[str, None] = {}  # sessions, to be told of
        self._peer = peer
        self._figures = figures
        self._room_bytes = max_frame_bytes - FRAME_ROOM_BYTES
        self._tell = tell
        self._told_safe = 0
        self._has_all_ends_to_tell = welcome.resumed  # events may have got lost with the last connection

    @property
    def most_ends(self) -> int:
        """Queues that one frame can name by their refs."""
        return min(wire.MOST_ITEMS, self._room_bytes // GREW_BYTES)

    def read(self, request: wire.Read, limit_bytes: int) -> Answer:
        """What a peer asked for; first it is told of all queues that grew. Raises a StoreError.

        A message may be in several queues: who has it from one and does not know of the others would deliver it twice.
        """
        peer = self._peer
        answer, records = read(peer.member, peer.queues, request, limit_bytes)
        if isinstance(answer, wire.Ranges):
            self.push.was_read(peer.queues, answer.ranges)
        self.tell()
        return answer, records

    def tell(self) -> None:
        """Say what is new.

        Only the last frame about queues says where the log ends: who knows that takes all queues for known up to there.
        """
        peer = self._peer
        grown = peer.member.take_grown()
        if self._has_all_ends_to_tell:
            grown = list(peer.refs)
            self._has_all_ends_to_tell = False
        safe, end = peer.member.safe, peer.member.end
        refs = [peer.refs[queue] for queue in grown if queue in peer.refs]
        named, others = peer.member.take_named()
        if named or others:
            self._tell_named(named, others, self.told_end if refs else end)
        if refs:
            self._tell_grown(refs, end, safe)
        if safe > self._told_safe and peer.refs:
            self._told_safe = safe
            self._tell(wire.Safe(safe), b"")
        for client_id in self.taken_over:
            self._tell(wire.TakenOver(client_id), b"")
        self.taken_over.clear()

    def _tell_grown(self, refs: list[int], end: int, safe: int) -> None:
        """Tell of the ends first: what is pushed may be delivered at once, and a message may be in several queues."""
        peer = self._peer
        pushed = self.push.take(peer.member, peer.queues, refs, self._room_bytes)
        ends = [(ref, peer.queues[ref].next_offset) for ref in pushed.rest]
        most = self.most_ends
        for at in range(0, len(ends), most):
            self._figures.events += 1
            if at + most >= len(ends) and not pushed.ranges:
                self.told_end = end
            self._tell(wire.Grew(ends[at : at + most], self.told_end), b"")
        if pushed.ranges:
            self._figures.pushes += 1
            self.told_end, self._told_safe = end, safe
            self._tell(wire.Pushed(pushed.ranges, end, safe), pushed.records)

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
