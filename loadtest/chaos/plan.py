"""The plan of faults; it depends only on the seed and the options."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from loadtest.errors import LoadTestError

TOGETHER = 0.25
"""Share of steps with a second fault during the first."""
ALLOWANCE_S = 0.5
"""Seconds that a step takes at least for recovery and checks. A step that would end after the duration is left out."""


class FaultKind(NamedTuple):
    """A kind of fault. Two kinds of one group never hit the same target at the same time."""

    name: str
    text: str
    group: str
    lasts_s: tuple[float, float]
    amount: tuple[int, int] = (0, 0)
    unit: str = ""


KINDS = {
    kind.name: kind
    for kind in (
        FaultKind("kill", "SIGKILL, and started again", "process", (0.0, 2.0)),
        FaultKind("term", "SIGTERM, and started again once it has ended", "process", (0.0, 1.0)),
        FaultKind("stop", "SIGSTOP, then SIGCONT", "process", (1.0, 8.0)),
        FaultKind("cut", "connections are reset, and refused", "relay", (0.3, 6.0)),
        FaultKind("silence", "a relay passes nothing on", "relay", (2.0, 8.0)),
        FaultKind("delay", "a relay holds everything up", "relay", (3.0, 8.0), (50, 500), "ms"),
        FaultKind("partition", "all packets are lost", "packets", (2.0, 8.0)),
        FaultKind("loss", "some packets are lost", "packets", (3.0, 8.0), (20, 80), "%"),
        FaultKind("full-disk", "somebody else takes all room", "disk", (2.0, 6.0), (0, 50), "% of the reserve left"),
        FaultKind("slow-disk", "writes are throttled", "disk", (3.0, 8.0), (32, 256), "KiB/s"),
        FaultKind("clock", "the time of day jumps, and jumps back", "clock", (2.0, 6.0), (-7_200, 7_200), "s"),
    )
}

SERVER = "server"
STORE = "store"
REDIS = "Redis"
EVERYTHING = "everything"
DISK = "disk"
STORE_LINKS = "gateways to store"
REDIS_LINK = "gateways to Redis"


class Fault(NamedTuple):
    kind: str
    target: str
    after_s: float
    """From the beginning of its step."""
    lasts_s: float
    amount: int

    def __str__(self) -> str:
        unit = KINDS[self.kind].unit
        amount = f" {self.amount:+d} {unit}" if self.kind == "clock" else f" {self.amount} {unit}" if unit else ""
        return f"{self.kind} {self.target}{amount}, {self.lasts_s:.1f} s"


class ChaosStep(NamedTuple):
    """A calm time, then a fault, or two that overlap."""

    calm_s: float
    faults: tuple[Fault, ...]

    @property
    def ends_s(self) -> float:
        """Seconds from its beginning to its last fault's end, without the recovery."""
        return self.calm_s + max(fault.after_s + fault.lasts_s for fault in self.faults)

    def __str__(self) -> str:
        first, *others = self.faults
        return "; ".join([str(first), *(f"{other.after_s:.1f} s after it: {other}" for other in others)])


class Options(NamedTuple):
    """The inputs of the plan."""

    seed: int
    duration_s: float
    kinds: tuple[str, ...]
    gateways: int
    has_redis: bool


def plan(options: Options) -> list[ChaosStep]:
    """Make the plan. Raises LoadTestError if no requested fault applies to such a deployment."""
    rng = random.Random(options.seed)
    targets = {name: _targets(name, options.gateways, options.has_redis) for name in sorted(options.kinds)}
    targets = {name: found for name, found in targets.items() if found}
    if not targets:
        raise LoadTestError(f"no fault of {', '.join(options.kinds)} applies to this deployment; see --faults")
    kinds = _dealt(rng, list(targets))
    of = {name: _dealt(rng, found) for name, found in targets.items()}
    steps: list[ChaosStep] = []
    left_s = options.duration_s
    while True:
        calm_s = _round(rng.uniform(0.5, 3.0))
        faults = [_fault(rng, next(kinds), of, 0.0)]
        if rng.random() < TOGETHER:
            second = _fault(rng, next(kinds), of, _round(rng.uniform(0.0, faults[0].lasts_s)))
            if not _collide(faults[0], second):
                faults.append(second)
        step = ChaosStep(calm_s, tuple(faults))
        left_s -= step.ends_s + ALLOWANCE_S
        if left_s < 0 and steps:
            return steps
        steps.append(step)


def _targets(kind: str, gateways: int, has_redis: bool) -> list[str]:
    each = range(1, gateways + 1)
    ours = [STORE, *(f"gateway {i}" for i in each)] if gateways else [SERVER]
    redis = [REDIS] if has_redis else []
    links = [*(f"gateway {i} to store" for i in each), *([STORE_LINKS] if gateways > 1 else [])]
    links += [REDIS_LINK] * has_redis
    clients = [f"clients to gateway {i}" for i in each] if gateways else [f"clients to {SERVER}"]
    match KINDS[kind].group:
        case "process":
            everything = [EVERYTHING] if kind == "kill" and gateways else []
            return ours if kind == "term" else ours + redis + everything
        case "relay":
            return links
        case "packets":
            return links + clients
        case "disk":
            return [DISK]
        case _:
            return ours


def _dealt(rng: random.Random, cards: list[str]) -> Iterator[str]:
    """All of them in random order, then again in another."""
    return chain.from_iterable(rng.sample(cards, len(cards)) for _ in iter(int, 1))


def _fault(rng: random.Random, name: str, of: dict[str, Iterator[str]], after_s: float) -> Fault:
    kind = KINDS[name]
    return Fault(name, next(of[name]), after_s, _round(rng.uniform(*kind.lasts_s)), rng.randint(*kind.amount))


def _collide(one: Fault, other: Fault) -> bool:
    group = KINDS[one.kind].group
    if group != KINDS[other.kind].group:
        return False
    return group != "process" or one.target == other.target or EVERYTHING in (one.target, other.target)


def _round(seconds: float) -> float:
    return round(seconds, 1)
