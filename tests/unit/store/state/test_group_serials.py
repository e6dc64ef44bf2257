"""Serials of leases: those of stores that led one after another are never the same."""

from __future__ import annotations

import pytest

from store.replication.epochs import is_same_epoch, number_of_serial
from store.state.group_leases import Entry
from store.state.group_settings import GroupSettings
from store.state.groups import Group

NOW_MS = 1_800_000_000_000
A = ("peer", "a")


def group(epoch: int, entries: dict[int, Entry] | None = None) -> Group:
    made = Group(GroupSettings(), [0], entries or {}, epoch)
    made.join(A)
    return made


def serial_of(dealt: Group, first: int = 0, now_ms: int = NOW_MS) -> int:
    return dealt.hand_out_new(A, range(first, first + 1), now_ms, now_ms + 1_000).serial


def test_without_a_cluster_a_serial_is_a_number_alone() -> None:
    assert serial_of(group(0)) < 1 << 52


@pytest.mark.parametrize("later", [6, 2_047, 2_048, 2_049])
def test_leaders_with_one_clock_give_different_serials(later: int) -> None:
    old, new = serial_of(group(5)), serial_of(group(later))
    assert old != new
    assert number_of_serial(old) == number_of_serial(new)
    assert not is_same_epoch(old, new)
    assert new < 1 << 63


def test_a_receipt_of_an_old_leader_settles_nothing() -> None:
    old = serial_of(group(5))
    dealt = group(6)
    new = serial_of(dealt)
    assert dealt.ack(old, 0, 1) == [0]
    assert dealt.ack(new, 0, 1) == []


def test_a_delivery_that_a_consumer_was_not_told_of_does_not_count() -> None:
    """The consumer says the last serial that it was told: one of this leader, or of a store that led before."""
    for is_of_this_leader in (True, False):
        dealt = group(6)
        serials = [serial_of(dealt, first) for first in range(3)]
        dealt.leave(A, NOW_MS, serials[1] if is_of_this_leader else serial_of(group(5)))
        leases = [dealt.lease(offset) for offset in range(3)]
        assert [lease.deliveries for lease in leases if lease is not None] == (
            [1, 1, 0] if is_of_this_leader else [0, 0, 0]
        )


def test_a_clock_that_is_far_ahead_leaves_the_epoch_alone() -> None:
    dealt = group(6)
    ahead = serial_of(dealt, 0, 1 << 60)
    assert is_same_epoch(ahead, serial_of(dealt, 1))
    assert serial_of(dealt, 2) > ahead
