"""Leases and silence: an old leader stops before a standby takes over."""

import pytest

from store.replication.clocks import LeaderLease, LeaderSilence, ReplicaTimes

TIMES = ReplicaTimes()


def answered(silence: LeaderSilence, start_s: float, end_s: float) -> None:
    """Fetches are answered several times a second, with nothing."""
    for at in range(int(10 * start_s), int(10 * end_s) + 1):
        silence.answered(at / 10)


def test_a_lease_counts_from_when_the_accepted_frame_was_sent() -> None:
    lease = LeaderLease(TIMES, 10.0)
    assert lease.holds(11.9)
    assert not lease.holds(12.0)
    lease.accepted(11.5)
    lease.accepted(11.0)  # a part that was sent earlier
    assert lease.holds(13.4)
    assert not lease.holds(13.5)


def test_a_standby_waits_while_it_hears_frames() -> None:
    silence = LeaderSilence(TIMES, 0.0)
    answered(silence, 0, 5)
    assert silence.is_over(5.0)
    silence.heard(5.0)
    answered(silence, 5, 7.9)
    assert not silence.is_over(7.9)
    answered(silence, 8, 8)
    assert silence.is_over(8.0)


def test_time_without_an_answer_is_no_silence() -> None:
    """After Kafka was away the leader has two more heartbeats' time."""
    silence = LeaderSilence(TIMES, 0.0)
    answered(silence, 0, 5)
    silence.heard(5.0)
    assert not silence.is_over(20.0)
    answered(silence, 20, 23.9)
    assert not silence.is_over(23.9)
    answered(silence, 24, 24)
    assert silence.is_over(24.0)


def test_a_standby_that_stood_still_does_not_take_over() -> None:
    silence = LeaderSilence(TIMES, 0.0)
    answered(silence, 0, 3.5)
    silence.answered(60.0)  # it wakes up, and finds an answer from before
    assert not silence.is_over(60.0)


def test_a_leader_that_says_so_need_not_be_waited_for() -> None:
    silence = LeaderSilence(TIMES, 0.0)
    silence.answered(10.0)
    silence.heard(10.0)
    silence.stops()
    assert silence.is_over(10.0)
    assert silence.leader_is_over_s < 10.0


def test_a_leader_that_says_so_knows_nothing_of_the_one_before_it() -> None:
    silence = LeaderSilence(TIMES, 0.0)
    silence.heard(9.0)
    silence.begins(10.0)  # another one has taken over; the one before it may not know yet
    silence.answered(10.1)
    silence.stops()
    assert silence.is_over(10.1)
    assert silence.leader_is_over_s == 12.0


def test_a_frame_that_was_shown_late_still_counts() -> None:
    silence = LeaderSilence(TIMES, 0.0)
    silence.heard(9.0)
    assert silence.leader_is_over_s == 12.0


def test_times_leave_room_for_heartbeats() -> None:
    with pytest.raises(ValueError, match=r"failover_s 1\.5 is too short"):
        ReplicaTimes(failover_s=1.5)
