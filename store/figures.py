"""Metrics of Penstock: name, text, and the function that reads the value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar, cast

from store.log.durations import BOUNDS_S, Durations

Source = TypeVar("Source")


class Times(NamedTuple):
    """A histogram of durations: counts for each bound and above the last one, and the sum of all."""

    counts: list[int]
    sum_s: float
    bounds_s: tuple[float, ...]

    @classmethod
    def of(cls, durations: Durations) -> Self:
        """A copy of the durations so far."""
        return cls(list(durations.counts), durations.sum_s, BOUNDS_S)

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative buckets as Prometheus has them: (bound, number that took that long at most)."""
        bounds = [*map(str, self.bounds_s), "+Inf"]
        return list(zip(bounds, accumulate(map(float, self.counts)), strict=True))


Value = float | Mapping[str, float] | Times | Mapping[str, Times]
"""One number, or one for each value of the metric's label; the same of times."""


@dataclass(frozen=True, slots=True)
class Figure(Generic[Source]):
    """One metric: its name, its text, and the function that reads its value."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    doc: str
    read: Callable[[Source], Value]
    label: str = ""


Reading: TypeAlias = "tuple[Figure[Any], Value]"
Sections: TypeAlias = Mapping[str, "tuple[Figure[Source], ...]"]
"""Figures of one source, by the heading that docs/operations.md gives them."""


def readings(sections: Sections[Source], source: Source | None) -> Iterator[Reading]:
    """All figures of a source with their values, which are the caller's own; none where there is no source."""
    if source is not None:
        for figure in (figure for section in sections.values() for figure in section):
            value = figure.read(source)
            yield figure, cast(Value, dict(value)) if isinstance(value, Mapping) else value


def joined(steps: Iterable[list[Reading]]) -> list[Reading]:
    """The readings of all steps, each metric once with all its labels."""
    found: dict[str, Reading] = {}
    for figure, value in (reading for step in steps for reading in step):
        before = found[figure.name][1] if figure.name in found else None
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = cast(Value, {**before, **value})  # of the same kind: it is the same metric
        found[figure.name] = figure, value
    return list(found.values())


def samples(reading: Reading) -> Iterator[tuple[str, dict[str, str], float]]:
    """A figure as Prometheus has it in text: name, labels and value of each sample."""
    figure, value = reading
    labelled = value.items() if isinstance(value, Mapping) else [("", value)]
    for label, each in labelled:
        labels = {figure.label: label} if figure.label else {}
        if isinstance(each, Times):
            for bound, count in each.buckets:
                yield f"{figure.name}_bucket", labels | {"le": bound}, count
            yield f"{figure.name}_count", labels, float(sum(each.counts))
            yield f"{figure.name}_sum", labels, each.sum_s
        else:
            yield figure.name, labels, float(each)
