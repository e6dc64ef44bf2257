"""Days that are made, not recorded. Each is the shipped day, varied by a seed.

What a forecast does on them shows how the rules work. It does not show what a forecast saves at somebody's site.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from loadtest.model.scaling import DAY_S, LoadPoint, read_load

Factor = Callable[[float], float]

STEP_S = 60
HISTORY_DAYS = 14
LEVEL, NOISE = 0.05, 0.02  # standard deviation of a day's level, and of each minute
GROWTH = 0.01  # a day
WEEKEND = 0.75  # of the level of the other days
SHIFT_S = 600  # by which a day may be early or late


class MadeDays(NamedTuple):
    """Days before, of which a forecast knows, and the day that is replayed. Times go on from one to the other."""

    before: list[LoadPoint]
    day: list[LoadPoint]


def _surge(at_s: float, begin_s: float, rise_s: float, most: float) -> float:
    """A factor: from 1 to `most` within `rise_s` from `begin_s` on, and after an hour back within half an hour."""
    rising, falling = (at_s - begin_s) / rise_s, (at_s - begin_s - 3_600) / 1_800
    return 1 + (most - 1) * (max(0.0, min(1.0, rising)) - max(0.0, min(1.0, falling)))


def _plain(_: float) -> float:
    return 1.0


def _peak(at_s: float) -> float:
    return _surge(at_s, 13 * 3_600, 180, 3)


def _shift(at_s: float) -> float:
    return _surge(at_s, 4 * 3_600, 60, 12)


def _holiday(_: float) -> float:
    return 0.4


LAST_DAYS: Mapping[str, tuple[Factor, Factor]] = MappingProxyType(
    {
        "as before": (_plain, _plain),
        "a shift at 4:00, as before": (_shift, _shift),
        "an unforeseen peak": (_plain, _peak),
        "a holiday": (_plain, _holiday),
        "the shift is off": (_shift, _plain),
    }
)
"""By what is special of the last day: a factor of the load by the second of the day, of the days before and of it."""


def made_days(last: str, seed: int = 1) -> MadeDays:
    """Days of one seed; `last`: a key of LAST_DAYS."""
    drawn, shape = random.Random(seed), read_load("day")
    usual, special = LAST_DAYS[last]
    before = [point for day in range(HISTORY_DAYS) for point in _day(day, drawn, shape, usual)]
    return MadeDays(before, list(_day(HISTORY_DAYS, drawn, shape, special)))


def _day(day: int, drawn: random.Random, shape: list[LoadPoint], factor: Factor) -> Iterator[LoadPoint]:
    level = drawn.gauss(1, LEVEL) * (1 + GROWTH * day) * (WEEKEND if day % 7 >= 5 else 1.0)
    shift_s = drawn.uniform(-SHIFT_S, SHIFT_S)
    for at_s in range(0, DAY_S, STEP_S):
        like = shape[int((at_s + shift_s) % DAY_S / STEP_S) % len(shape)]
        much = level * factor(at_s) * drawn.gauss(1, NOISE)
        yield LoadPoint(day * DAY_S + at_s, like.connections * much, like.messages * much)
