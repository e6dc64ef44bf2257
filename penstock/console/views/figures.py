"""The figures of a server at one look, and what is called wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from store.wire.operator_messages import ServerShown


class Figures:
    """Samples of one look, by name."""

    def __init__(self, server: ServerShown, samples: list[tuple[str, dict[str, str], float]]) -> None:
        self.server = server
        self._by_name: dict[str, list[tuple[dict[str, str], float]]] = {}
        for name, labels, value in samples:
            self._by_name.setdefault(name, []).append((labels, value))

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of a metric's samples with these labels; None: this process does not have the metric."""
        samples = self._by_name.get(name)
        if samples is None:
            return None
        return sum(value for found, value in samples if labels.items() <= found.items())

    def by(self, name: str, label: str) -> list[tuple[str, float]]:
        return [(labels.get(label, ""), value) for labels, value in self._by_name.get(name, ())]

    def buckets(self, name: str) -> dict[float, float]:
        """Of a histogram, since the start: by each bound how many were not above it."""
        return {float(labels["le"]): value for labels, value in self._by_name.get(f"{name}_bucket", ())}

    def quantile_s(self, name: str, quantile: float) -> float | None:
        """The upper bound of the bucket of a histogram, since the start; None: nothing was counted."""
        found = self._by_name.get(f"{name}_bucket", ())
        buckets = sorted((float(labels["le"]), value) for labels, value in found)
        if not buckets or not buckets[-1][1]:
            return None
        return next(bound for bound, value in buckets if value >= quantile * buckets[-1][1])


@dataclass(frozen=True, slots=True)
class Trouble:
    """`page`: the address of a page about it; empty: there is none."""

    what: str
    remedy: str
    page: str = ""
