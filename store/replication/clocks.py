"""Rules by the clock about who may lead. What is accepted never depends on clocks.

All times are seconds of a monotonic clock of this machine.
"""

from __future__ import annotations

from dataclasses import dataclass

LEASE_MARGIN_S = 1.0
"""A leader stops so much earlier than a standby may take over."""


@dataclass(frozen=True)
class ReplicaTimes:
    """The times of a cluster; the same in all of its stores."""

    failover_s: float = 3.0
    """A standby takes over after so long without a frame."""
    heartbeat_s: float = 0.5
    """An idle leader sends a frame so often; fetches and produces are expected to be answered within two of them."""

    def __post_init__(self) -> None:
        if self.failover_s < LEASE_MARGIN_S + 2 * self.heartbeat_s or self.heartbeat_s <= 0:
            raise ValueError(f"failover_s {self.failover_s} is too short for heartbeats every {self.heartbeat_s} s")

    @property
    def lease_s(self) -> float:
        """A leader serves for so long after it sent its last accepted frame."""
        return self.failover_s - LEASE_MARGIN_S

    @property
    def patience_s(self) -> float:
        """An answer of Kafka that takes longer means that it was away."""
        return 2 * self.heartbeat_s


class LeaderLease:
    """The time for which a leader serves."""

    def __init__(self, times: ReplicaTimes, sent_s: float) -> None:
        self._times = times
        self._sent_s = sent_s

    def accepted(self, sent_s: float) -> None:
        """A frame was accepted that was first sent at that time."""
        self._sent_s = max(self._sent_s, sent_s)

    def holds(self, now_s: float) -> bool:
        return now_s < self._sent_s + self._times.lease_s


class LeaderSilence:
    """Whether a standby has heard nothing of its leader for long enough, while Kafka answered it."""

    def __init__(self, times: ReplicaTimes, now_s: float) -> None:
        """The listener begins at `now_s`, so frames may have come until then."""
        self._times = times
        self._heard_s = self._answered_s = now_s
        self._over_s = now_s + self._longer_s
        self._earlier_over_s = now_s + times.failover_s  # of leaders of earlier epochs

    @property
    def _longer_s(self) -> float:
        """The failover time after an outage: two heartbeats longer, so that the leader can find Kafka again."""
        return self._times.failover_s + 2 * self._times.heartbeat_s

    def answered(self, now_s: float) -> None:
        """A fetch was answered, with whatever."""
        if not self._is_answered(now_s):
            self._over_s = max(self._over_s, now_s + self._longer_s)
        self._answered_s = now_s

    def heard(self, now_s: float) -> None:
        """A frame was accepted."""
        self._heard_s = now_s
        self._over_s = max(self._over_s, now_s + self._times.failover_s)

    def begins(self, now_s: float) -> None:
        """Another leader's epoch began. The one before it may not know, and serve on."""
        self._earlier_over_s = max(self._earlier_over_s, self._heard_s + self._times.failover_s)
        self.heard(now_s)

    def _is_answered(self, now_s: float) -> bool:
        return now_s - self._answered_s <= self._times.patience_s

    def is_over(self, now_s: float) -> bool:
        """Whether a standby takes over."""
        return self._is_answered(now_s) and now_s >= self._over_s

    def stops(self) -> None:
        """The leader said that it serves no more. Of those before it that is not known."""
        self._heard_s = self._over_s = float("-inf")

    @property
    def leader_is_over_s(self) -> float:
        """No frame that was heard lets its leader serve from then on, even if Kafka was slow to show it."""
        return max(self._earlier_over_s, self._heard_s + self._times.failover_s)
