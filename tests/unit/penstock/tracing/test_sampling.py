"""Which messages are traced, and how many."""

from __future__ import annotations

import random

import pytest

from penstock.tracing.sampling import RateBound, Sampler


@pytest.mark.parametrize("size", [1, 7, 1_000])
@pytest.mark.parametrize("ratio", [0.001, 0.1, 0.9])
def test_each_message_is_chosen_with_the_same_probability(ratio: float, size: int) -> None:
    sampler = Sampler(ratio, random.Random(7).random)
    total = 200_000 // size * size
    chosen = [at + number for at in range(0, total, size) for number in sampler.chosen(size)]
    assert len(chosen) == pytest.approx(total * ratio, rel=0.15 if ratio < 0.01 else 0.03)
    assert len(set(chosen)) == len(chosen)
    assert all(0 <= number < total for number in chosen)


def test_all_and_none() -> None:
    assert Sampler(1).chosen(3) == [0, 1, 2]
    assert Sampler(0).chosen(10_000_000) == []
    assert Sampler(1).chosen(0) == []


def test_so_many_a_second() -> None:
    now_s = 0.0
    bound = RateBound(10, lambda: now_s)
    assert [bound.take() for _ in range(12)] == [True] * 10 + [False] * 2
    now_s = 0.25
    assert [bound.take() for _ in range(3)] == [True, True, False]
    now_s = 100.0
    assert sum(bound.take() for _ in range(100)) == 10
    assert bound.is_used_up
