"""The rules of replication in a simulated cluster, with whatever faults a seed leads to; and each rule broken once.

A run that fails is repeated by its seed: `ClusterSimulation(SEED).run()`.
"""

import pytest

from store.errors import StoreError
from store.replication.replica import Replica
from tests.support.cluster_broken import BROKEN
from tests.support.cluster_checks import BrokenPromise
from tests.support.cluster_simulation import ClusterSimulation
from tests.support.cluster_store import SimulatedStore

BY_DAY = 30  # times the chunks
BY_NIGHT, CHUNKS_BY_NIGHT = 500, 40
ENOUGH = 120  # seeds in which a broken rule is noticed


def fails(seed: int, replica: type[Replica] = Replica, store: type[SimulatedStore] = SimulatedStore) -> str:
    """What a run breaks; empty if it breaks nothing."""
    try:
        ClusterSimulation(seed, replica, store).run()
    except (BrokenPromise, StoreError, ValueError) as error:
        return f"seed {seed}: {type(error).__name__}: {error}"
    return ""


@pytest.mark.catalogue("L42", "L43")
@pytest.mark.parametrize("seed", range(5))
def test_whatever_fails_the_rules_hold(seed: int) -> None:
    seeds = range(seed * BY_DAY, (seed + 1) * BY_DAY)
    assert [failed for each in seeds if (failed := fails(each))] == []


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(CHUNKS_BY_NIGHT))
def test_the_rules_hold_in_20000_runs(chunk: int, seed: int) -> None:
    """Other runs with another PENSTOCK_CRASH_SEED."""
    first = (seed * CHUNKS_BY_NIGHT + chunk) * BY_NIGHT
    assert [failed for each in range(first, first + BY_NIGHT) if (failed := fails(each))] == []


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_noticed(rule: str) -> None:
    replica, store = BROKEN[rule]
    assert any(fails(seed, replica, store) for seed in range(ENOUGH)), f"no seed notices that {rule}"


def test_a_seed_is_repeatable() -> None:
    first, second = ClusterSimulation(5).run(), ClusterSimulation(5).run()
    assert first.kafka.records == second.kafka.records
    assert first.checks.acknowledged == second.checks.acknowledged
