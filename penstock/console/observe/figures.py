"""The figures of a process at one look."""

from __future__ import annotations

from collections.abc import Iterable

from store.wire.operator_messages import Sample


class Figures:
    """Samples of one look, by name."""

    def __init__(self, samples: Iterable[Sample]) -> None:
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
        return {_bound(labels.get("le", "")): value for labels, value in self._by_name.get(f"{name}_bucket", ())}


def _bound(text: str) -> float:
    """As a process writes it; what is no number counts as no bound."""
    try:
        return float(text)
    except ValueError:
        return float("inf")
