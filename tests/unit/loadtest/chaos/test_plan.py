"""The plan of faults follows from the seed and the options alone, and covers what was asked for."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest

from loadtest.chaos.plan import KINDS, Options, plan
from loadtest.errors import LoadTestError

ALL = tuple(KINDS)
HOUR_S = 3_600.0


def test_the_same_seed_gives_the_same_plan() -> None:
    options = Options(7, HOUR_S, ALL, 2, True)
    assert plan(options) == plan(options)
    assert plan(options) != plan(options._replace(seed=8))


def test_plan_is_the_same_in_another_process() -> None:
    """Nothing of it hangs on the order of a set, say."""
    program = "from loadtest.chaos.plan import *; print(plan(Options(7, 600.0, tuple(KINDS), 2, True)))"
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert there.strip() == str(plan(Options(7, 600.0, ALL, 2, True)))


def test_the_order_in_which_kinds_are_named_is_nothing() -> None:
    assert plan(Options(7, HOUR_S, ALL[::-1], 2, True)) == plan(Options(7, HOUR_S, ALL, 2, True))


@pytest.mark.parametrize("gateways", [0, 1, 2])
@pytest.mark.parametrize("has_redis", [False, True])
def test_every_kind_comes_as_often(gateways: int, has_redis: bool) -> None:
    steps = plan(Options(1, HOUR_S, ALL, gateways, has_redis and gateways > 0))
    counts = Counter(step.faults[0].kind for step in steps) + Counter(
        fault.kind for step in steps for fault in step.faults[1:]
    )
    assert counts.keys() == set(ALL) - ({"cut", "silence", "delay"} if not gateways else set())
    assert max(counts.values()) < 2 * min(counts.values())


def test_every_target_is_met() -> None:
    steps = plan(Options(1, HOUR_S, ("kill",), 2, True))
    targets = {fault.target for step in steps for fault in step.faults}
    assert targets == {"store", "gateway 1", "gateway 2", "Redis", "everything"}


def test_plan_fits_into_the_time() -> None:
    for seed in range(20):
        steps = plan(Options(seed, 60.0, ALL, 2, True))
        assert 2 <= len(steps) <= 20
        assert sum(step.ends_s for step in steps) < 60


def test_an_hour_has_more_than_a_hundred_faults() -> None:
    assert sum(len(step.faults) for step in plan(Options(1, HOUR_S, ALL, 2, True))) > 300


def test_overlapping_faults_do_not_collide() -> None:
    steps = [step for seed in range(10) for step in plan(Options(seed, HOUR_S, ALL, 2, True)) if len(step.faults) > 1]
    assert len(steps) > 100
    for step in steps:
        for one, other in pairwise(step.faults):
            assert other.after_s <= one.lasts_s
            if KINDS[one.kind].group == KINDS[other.kind].group:
                assert KINDS[one.kind].group == "process"
                assert one.target != other.target
                assert "everything" not in (one.target, other.target)


def test_faults_that_apply_to_no_part_are_refused() -> None:
    with pytest.raises(LoadTestError, match="no fault of cut, delay applies to this deployment"):
        plan(Options(1, 60.0, ("cut", "delay"), 0, False))
