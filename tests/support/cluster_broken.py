"""Rules of a cluster, each broken in one way: a simulation has to notice every one of them."""

from __future__ import annotations

from store.replication.actions import AcceptedTo
from store.replication.clocks import LeaderLease, LeaderSilence, ReplicaTimes
from store.replication.frames import FrameKind, Leader, LogFrame, ReadFrame
from store.replication.judging import NOTHING_ACCEPTED, FrameJudge, JudgedFrame, ReplicaMark, Verdict
from store.replication.replica import Actions, Candidacy, Replica
from store.replication.sending import LeaderFrames, SendLimits
from tests.support.cluster_store import SimulatedStore, append_bytes

# --- frames


class PartsCountAlone(FrameJudge):
    def _accept(self, offset: int, frame: LogFrame) -> JudgedFrame:
        self.accepted = frame.end
        return JudgedFrame(Verdict.ACCEPTED, frame.base, frame.data)

    def _is_next(self, frame: LogFrame) -> bool:
        return frame.epoch == self.epoch and frame.base == self.accepted


class OpenPartsStay(FrameJudge):
    def _begin(self, frame: LogFrame) -> JudgedFrame:
        self.epoch, self.leader = frame.epoch, frame.leader
        return JudgedFrame(Verdict.BEGINS, self.accepted)


# --- the partition's order decides


class AnyEpoch(FrameJudge):
    """Late frames of an old leader count if they fit."""

    def _is_next(self, frame: LogFrame) -> bool:
        return frame.base == self.accepted + self._parts_bytes and frame.part == len(self._parts)


class AnyBase(FrameJudge):
    def _is_next(self, frame: LogFrame) -> bool:
        return frame.epoch == self.epoch and frame.part == len(self._parts)


class SameEpochAgain(FrameJudge):
    """The last candidate wins, not the first."""

    def _is_next_epoch(self, frame: LogFrame) -> bool:
        return self.epoch <= frame.epoch <= self.epoch + 1


class Judges(Replica):
    """A Replica with another judge."""

    judge_class: type[FrameJudge] = FrameJudge

    def __init__(
        self,
        me: Leader,
        now_s: float,
        mark: ReplicaMark = NOTHING_ACCEPTED,
        times: ReplicaTimes | None = None,
        limits: SendLimits | None = None,
    ) -> None:
        super().__init__(me, now_s, mark, times, limits)
        self._judge = self.judge_class(mark)


def judging(judge: type[FrameJudge]) -> type[Replica]:
    return type(f"With{judge.__name__}", (Judges,), {"judge_class": judge})


class BelievesAnswers(Replica):
    """A leader takes whatever Kafka stored for accepted, without judging what stands before it."""

    def produced(self, now_s: float, frame: LogFrame, offset: int) -> Actions:
        sent = self._sent(frame)
        if sent is None or offset <= self.position:
            return super().produced(now_s, frame, offset)
        if frame.is_last:
            self._frames.accepted(frame)
            self._judge.accepted = frame.end
        self._judge.position = offset + 1
        return [AcceptedTo(self.epoch, self.accepted), *self._next(now_s)]


# --- a leader acknowledges only what is accepted


class AcknowledgesSent(SimulatedStore):
    def send(self, frame: LogFrame, value: bytes) -> None:
        super().send(frame, value)
        if frame.kind is FrameKind.DATA and frame.is_last:
            self.acknowledge(frame.epoch, frame.end)


class ForgetsUnanswered(Replica):
    """After a lost answer the place of a frame is given to other bytes."""

    def _send_again(self) -> Actions:
        self._reads_to_end = False
        size = len(b"".join(self._frames.appends()))
        others = [append_bytes(7, size - 8)] if size else []
        self._frames = LeaderFrames(self.epoch, self.accepted, self.limits, others)
        return []


class CutsOtherFrames(Replica):
    """What is sent again is cut into frames anew."""

    def _send_again(self) -> Actions:
        self._reads_to_end = False
        number = self._frames._number
        self._frames = LeaderFrames(self.epoch, self.accepted, self.limits, self._frames.appends())
        self._frames._number = number
        return []


# --- state is applied at append, and all else stops at accepted


class DeliversAppended(SimulatedStore):
    def deliver(self) -> None:
        self._deliver_to(len(self.log))


class IndexesAppended(SimulatedStore):
    def may_write_index(self, cut: int) -> bool:
        return True


class KeepsItsLog(SimulatedStore):
    """It led, and goes on with what was not accepted."""

    def discard(self, log_offset: int) -> None:
        self.pending.clear()


class OpensItsWholeLog(SimulatedStore):
    def open_log(self) -> None:
        self.log = bytearray(self.disk.log)
        self.known_to = self.disk.mark.accepted


# --- who may lead


class CountsFromAnswers(LeaderLease):
    """The lease begins when a frame is known to be accepted."""

    heard_s = 0.0

    def accepted(self, sent_s: float) -> None:
        super().accepted(self.heard_s)


class LeaseFromAnswers(Replica):
    def _take(self, now_s: float, offset: int, read: ReadFrame) -> Actions:
        CountsFromAnswers.heard_s = now_s
        return super()._take(now_s, offset, read)

    def _lead(self, now_s: float, frame: LogFrame, candidacy: Candidacy | None) -> Actions:
        actions = super()._lead(now_s, frame, candidacy)
        self._lease = CountsFromAnswers(self.times, now_s)
        return actions


class LooksAtTheEnd(SimulatedStore):
    """Whether it leads was asked in the turn before."""

    served = False

    def serves(self, now_s: float) -> bool:
        before, self.served = self.served, super().serves(now_s)
        return before and self.is_leading and not self.replica._stop_is_sent


class ImpatientSilence(LeaderSilence):
    """Time without an answer of Kafka counts as the leader's silence."""

    def _is_answered(self, now_s: float) -> bool:
        return True

    @property
    def leader_is_over_s(self) -> float:
        return 0.0


class TakesOverUnanswered(Replica):
    def __init__(
        self,
        me: Leader,
        now_s: float,
        mark: ReplicaMark = NOTHING_ACCEPTED,
        times: ReplicaTimes | None = None,
        limits: SendLimits | None = None,
    ) -> None:
        super().__init__(me, now_s, mark, times, limits)
        self._silence = ImpatientSilence(self.times, now_s)


class LeadsAtOnce(Replica):
    """It leads before it has seen what stands in front of its EPOCH frame, and whether that counts."""

    def _ask_to_lead(self, now_s: float) -> Actions:
        actions = super()._ask_to_lead(now_s)
        if actions and self._candidacy is not None:
            self._judge.epoch, self._judge.leader = self.epoch + 1, self.me
            candidacy, self._candidacy = self._candidacy, None
            actions += self._lead(now_s, candidacy.frame, candidacy)
        return actions


class KnownByAddress(Replica):
    """A store that starts again goes on as the leader that it was before."""

    def _is_me(self, leader: Leader) -> bool:
        return leader.address == self.me.address


class StopsSilently(Replica):
    """A leader that stops on purpose serves until its lease ends, after it said that it stops."""

    def serves(self, now_s: float) -> bool:
        self._stop_is_sent, was_sent = False, self._stop_is_sent
        holds = super().serves(now_s)
        self._stop_is_sent = was_sent
        return holds


# --- only the leader appends


class StandbyAppends(SimulatedStore):
    """Timers and retention of a standby write to its log."""

    def write(self, base: int, data: bytes) -> None:
        super().write(base, data)
        if self.around.chance.random() < 0.01:
            self.log += append_bytes(3, 8)


BROKEN: dict[str, tuple[type[Replica], type[SimulatedStore]]] = {
    "parts count one by one": (judging(PartsCountAlone), SimulatedStore),
    "an EPOCH frame leaves parts open": (judging(OpenPartsStay), SimulatedStore),
    "frames of any epoch count": (judging(AnyEpoch), SimulatedStore),
    "frames count wherever they begin": (judging(AnyBase), SimulatedStore),
    "an epoch begins twice": (judging(SameEpochAgain), SimulatedStore),
    "a leader believes answers": (BelievesAnswers, SimulatedStore),
    "a leader acknowledges what it sent": (Replica, AcknowledgesSent),
    "a place in the log gets other bytes": (ForgetsUnanswered, SimulatedStore),
    "frames are cut anew": (CutsOtherFrames, SimulatedStore),
    "users are shown what was appended": (Replica, DeliversAppended),
    "the index has what was appended": (Replica, IndexesAppended),
    "a deposed leader keeps its log": (Replica, KeepsItsLog),
    "a store opens its whole log": (Replica, OpensItsWholeLog),
    "a lease begins with the answer": (LeaseFromAnswers, SimulatedStore),
    "a turn does not begin with the lease": (Replica, LooksAtTheEnd),
    "a standby takes over while Kafka does not answer": (TakesOverUnanswered, SimulatedStore),
    "a candidate leads at once": (LeadsAtOnce, SimulatedStore),
    "a process is known by its address": (KnownByAddress, SimulatedStore),
    "a leader that has stopped serves": (StopsSilently, SimulatedStore),
    "a standby appends": (Replica, StandbyAppends),
}
"""What is broken: the rules of a store, and what the store makes of them."""
