"""The rules of one store of a cluster: what it sends, what it accepts, and when it leads. No I/O.

Its owner calls it in each turn, passes what Kafka answered and the time of a monotonic clock, and does what the
returned actions say, in their order. docs/internals.md ("A cluster") says who owns what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from store.errors import FrameDamaged, NotLeading, PartitionUnusable
from store.replication.actions import (
    AcceptedTo,
    BeginLeading,
    DiscardState,
    FollowLeader,
    MayEnd,
    ReplicaAction,
    SendFrame,
    WriteAccepted,
)
from store.replication.clocks import LeaderLease, LeaderSilence, ReplicaTimes
from store.replication.frames import FrameKind, Leader, LogFrame, ReadFrame, decode_frame, epoch_frame, known_frame
from store.replication.judging import NOTHING_ACCEPTED, FrameJudge, JudgedFrame, ReplicaMark, Verdict
from store.replication.sending import LeaderFrames, SendLimits, SentFrame

Actions = list[ReplicaAction]


class ReplicaRole(Enum):
    """The role of a store in its cluster."""

    STANDBY = auto()
    LEADER = auto()


@dataclass
class Candidacy:
    """An EPOCH frame that this process sent and has not found in the partition yet."""

    frame: LogFrame
    first_sent_s: float
    last_sent_s: float


class Replica:
    """One store's part in a cluster. It begins as a standby, after the mark that it kept."""

    def __init__(
        self,
        me: Leader,
        now_s: float,
        mark: ReplicaMark = NOTHING_ACCEPTED,
        times: ReplicaTimes | None = None,
        limits: SendLimits | None = None,
    ) -> None:
        """`me`: this store's address, and random bytes that no other process has, not an earlier one of it either."""
        self.me = me
        self.role = ReplicaRole.STANDBY
        self.times = times or ReplicaTimes()
        self.limits = limits or SendLimits()
        self._judge = FrameJudge(mark)
        self._silence = LeaderSilence(self.times, now_s)
        self._lease = LeaderLease(self.times, float("-inf"))
        self._serves_from_s = 0.0
        self._frames = LeaderFrames(mark.epoch, mark.accepted, self.limits)
        self._candidacy: Candidacy | None = None
        self._last_sent_s = now_s
        self._read_to = 0  # a leader reads the partition up to this offset, since others wrote there
        self._reads_to_end = False  # an answer was lost: the partition says what became of the frames
        self._is_leaving = False
        self._stop_is_sent = False

    # --- its state

    @property
    def mark(self) -> ReplicaMark:
        """The mark for the store to keep once its log is on the disk up to `mark.accepted`."""
        return self._judge.mark

    @property
    def epoch(self) -> int:
        return self._judge.epoch

    @property
    def accepted(self) -> int:
        """log_offset up to which the log is the same in all stores, for ever: acknowledgements, readers and the index
        stop there.
        """
        return self._judge.accepted

    @property
    def end(self) -> int:
        """log_offset after what is in this store's log."""
        return self._frames.end if self.role is ReplicaRole.LEADER else self.accepted

    @property
    def leader(self) -> Leader | None:
        """The leader that began the current epoch."""
        return self._judge.leader

    @property
    def position(self) -> int:
        """Offset in the partition from which to fetch."""
        return self._judge.position

    @property
    def reads(self) -> bool:
        """Whether to fetch. A leader that gets all its answers need not."""
        is_leading = self.role is ReplicaRole.LEADER
        return not is_leading or self._reads_to_end or self._candidacy is not None or self._read_to > self.position

    def serves(self, now_s: float) -> bool:
        """Whether this store answers as the leader. Ask first in each turn: the process may have stood still."""
        if self.role is not ReplicaRole.LEADER or self._stop_is_sent or now_s < self._serves_from_s:
            return False
        return self._lease.holds(now_s)

    # --- what the store does

    def append(self, now_s: float, data: bytes) -> Actions:
        """As gather(), and send it if nothing is on its way."""
        self.gather(now_s, data)
        return self._next(now_s)

    def gather(self, now_s: float, data: bytes) -> None:
        """Take one append of the leader: bytes as they stand in its log from `end` on, headers of segments included.

        tick() sends it, with what else was gathered by then. Raises NotLeading or ReplicationBehind; then nothing was
        taken, and the store must not append either.
        """
        if not self.serves(now_s) or self._is_leaving:
            raise NotLeading(self.leader.address if self.leader is not None else "")
        self._frames.append(data, self.accepted)

    def tick(self, now_s: float) -> Actions:
        """Call this in each turn, and at least every tenth of a second."""
        if self.role is ReplicaRole.LEADER:
            return self._ask_to_lead(now_s) if self._candidacy is not None else self._next(now_s)
        if not self._is_leaving and self._silence.is_over(now_s):
            return self._ask_to_lead(now_s)
        return []

    def stop(self, now_s: float) -> Actions:
        """Stop this store on purpose: it takes no more appends, and says so once all are accepted."""
        self._is_leaving = True
        return self._next(now_s) if self.role is ReplicaRole.LEADER else [MayEnd()]

    def take_new_epoch(self, now_s: float) -> Actions:
        """Begin an epoch with other frames, as the leader, if those of this one cannot be sent again as they are: the
        topic's max.message.bytes was lowered.
        """
        return self._ask_to_lead(now_s) if self.role is ReplicaRole.LEADER else []

    # --- what Kafka answers

    def produced(self, now_s: float, frame: LogFrame, offset: int) -> Actions:
        """A frame stands in the partition at an offset. Raises PartitionUnusable."""
        sent = self._sent(frame)
        if sent is None or offset < self.position:
            return []
        if offset > self.position:  # others wrote in between
            self._read_to = max(self._read_to, offset + 1)
            return []
        return self._take(now_s, offset, known_frame(sent.frame, sent.value)) + self._next(now_s)

    def unanswered(self, now_s: float, frame: LogFrame) -> Actions:
        """Whether a frame stands in the partition is not known: its answer was an error, or did not come."""
        self._reads_to_end |= self._sent(frame) is not None
        return []

    def fetched(self, now_s: float, records: Sequence[tuple[int, bytes]], is_end: bool) -> Actions:
        """A fetch was answered: records from `position` on, each with its offset, in order; none is an answer as well.

        `is_end`: the partition had no more then. Raises PartitionUnusable.
        """
        actions: Actions = []
        self._silence.answered(now_s)
        for offset, data in records:
            if offset < self.position:
                continue  # produced() was faster
            try:
                read = decode_frame(data)
            except FrameDamaged as error:
                raise PartitionUnusable(offset, str(error)) from error
            actions += self._take(now_s, offset, read)
        if is_end and self.role is ReplicaRole.LEADER and self._reads_to_end:
            actions += self._send_again()
        return actions + self.tick(now_s)

    def _sent(self, frame: LogFrame) -> SentFrame | None:
        return self._frames.sent(frame) if self.role is ReplicaRole.LEADER else None

    # --- judging

    def _take(self, now_s: float, offset: int, read: ReadFrame) -> Actions:
        """Judge one record of the partition, and what follows from it."""
        judged = self._judge.judge(offset, read)
        if judged.verdict is Verdict.BEGINS:
            return self._epoch_begins(now_s, read.frame)
        if self.role is ReplicaRole.LEADER:
            return self._of_leader(offset, read.frame, judged)
        if judged.verdict is not Verdict.IGNORED:
            self._silence.heard(now_s)
        if judged.verdict is Verdict.STOPS:
            return self._leader_stops(now_s)
        return [WriteAccepted(judged.base, judged.data)] if judged.data else []

    def _of_leader(self, offset: int, frame: LogFrame, judged: JudgedFrame) -> Actions:
        sent = self._sent(frame)
        if judged.verdict is Verdict.IGNORED:
            is_stuck = sent is not None and frame.part >= self._judge.open_parts
            self._reads_to_end |= is_stuck  # what stood before it is missing
            return []
        if sent is None:
            if judged.data or judged.verdict is Verdict.OPEN:
                raise PartitionUnusable(
                    offset, f"bytes of epoch {frame.epoch}, which this store leads and did not send"
                )
            return []  # a heartbeat that was given up
        self._lease.accepted(sent.sent_s)
        if judged.verdict is Verdict.OPEN:
            return []
        self._frames.accepted(frame)
        if judged.verdict is Verdict.STOPS:
            return [MayEnd()]
        return [AcceptedTo(self.epoch, self.accepted)] if judged.data else []

    def _epoch_begins(self, now_s: float, frame: LogFrame) -> Actions:
        candidacy, self._candidacy = self._candidacy, None
        self._reads_to_end, self._read_to = False, 0
        if self._is_me(frame.leader):
            return self._lead(now_s, frame, candidacy)
        self._silence.begins(now_s)
        was_leading, self.role = self.role is ReplicaRole.LEADER, ReplicaRole.STANDBY
        actions: Actions = [DiscardState(self.accepted)] if was_leading else []
        actions.append(FollowLeader(frame.epoch, frame.leader))
        if was_leading and self._is_leaving:
            actions.append(MayEnd())
        return actions

    def _is_me(self, leader: Leader) -> bool:
        return leader == self.me

    def _lead(self, now_s: float, frame: LogFrame, candidacy: Candidacy | None) -> Actions:
        was_leading = self.role is ReplicaRole.LEADER
        if not was_leading:
            self._serves_from_s = max(self._serves_from_s, self._silence.leader_is_over_s)
        is_known = candidacy is not None and candidacy.frame.epoch == frame.epoch
        sent_s = candidacy.first_sent_s if candidacy is not None and is_known else float("-inf")
        self._lease = LeaderLease(self.times, sent_s)
        appends = self._frames.appends() if was_leading else []
        self._frames = LeaderFrames(frame.epoch, self.accepted, self.limits, appends)
        self.role = ReplicaRole.LEADER
        self._stop_is_sent = False
        self._last_sent_s = float("-inf")  # a frame at once: it begins a lease of its own
        return [BeginLeading(self.epoch, self.accepted), *self._next(now_s)]

    def _leader_stops(self, now_s: float) -> Actions:
        """The leader serves no more, so nothing has to be waited for."""
        self._silence.stops()
        return [] if self._is_leaving else self._ask_to_lead(now_s)

    # --- sending

    def _ask_to_lead(self, now_s: float) -> Actions:
        """Send EPOCH + 1, again if it did not come to be seen."""
        epoch = self.epoch + 1
        asked = self._candidacy
        if asked is not None and asked.frame.epoch == epoch:
            if now_s < asked.last_sent_s + self.times.patience_s:
                return []
            asked.last_sent_s = now_s
        else:
            asked = self._candidacy = Candidacy(epoch_frame(epoch, self.accepted, self.me), now_s, now_s)
        return [SendFrame(asked.frame, asked.frame.encode())]

    def _next(self, now_s: float) -> Actions:
        """The frames that the leader sends now, if none is on its way."""
        frames = self._frames
        if self.role is not ReplicaRole.LEADER or not self._may_send:
            return []
        made = frames.next_frames(now_s)
        if not made and frames.is_empty and not self._stop_is_sent:
            if self._is_leaving:
                self._stop_is_sent = True
                made = [frames.signal(FrameKind.STOP, now_s)]
            elif now_s >= self._last_sent_s + self.times.heartbeat_s:
                made = [frames.signal(FrameKind.DATA, now_s)]
        if made:
            self._last_sent_s = now_s
        return [SendFrame(sent.frame, sent.value) for sent in made]

    @property
    def _may_send(self) -> bool:
        return not self._reads_to_end and self._candidacy is None

    def _send_again(self) -> Actions:
        """The partition was read to its end after a lost answer: the same frames again, boundaries included."""
        self._reads_to_end = False
        if not self._may_send:
            return []
        return [SendFrame(sent.frame, sent.value) for sent in self._frames.again(self._judge.open_parts)]
