"""A comparison at a glance: deliveries of each workload by each broker, as bars."""

from __future__ import annotations

from matplotlib.figure import Figure

from loadtest.report.results import Results, Row
from loadtest.report.svg import as_svg

WIDTH_INCHES, ROW_INCHES, HEAD_INCHES = 8.6, 0.42, 1.3
BESIDE = 0.8  # share of a workload's height for its bars


def drawn(results: Results) -> str:
    """An SVG. Workloads with a fixed rate are left out, since every broker that keeps up delivers the same."""
    works = {name: _measured(rows) for name, rows in results.by_workload().items() if _is_race(rows)}
    works = {name: rows for name, rows in works.items() if len(rows) > 1}
    names = list(dict.fromkeys(row.subject.name for rows in works.values() for row in rows))
    height = HEAD_INCHES + ROW_INCHES * sum(map(_room, works.values()))
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    axes = figure.subplots()
    ticks = []
    at = 0.0
    shown: set[str] = set()
    for name, rows in works.items():
        room = _room(rows)
        ticks.append((at + room / 2, name))
        for place, row in enumerate(rows):
            subject = row.subject.name
            axes.barh(
                at + room * (1 - BESIDE) / 2 + room * BESIDE * (place + 0.5) / len(rows),
                row.delivered_per_s,
                room * BESIDE / len(rows),
                color=f"C{names.index(subject) % 10}",
                label="_nolegend_" if subject in shown else subject,
            )
            shown.add(subject)
        at += room
    axes.set_yticks([place for place, _ in ticks], [name for _, name in ticks])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="delivered/s (logarithmic)")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if shown:
        figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return as_svg(figure)


def _measured(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.runs and row.delivered_per_s > 0]


def _room(rows: list[Row]) -> float:
    """Height of a workload's bars together, in rows of the figure."""
    return max(1.0, len(rows) / 2)


def _is_race(rows: list[Row]) -> bool:
    """Whether a publisher has no fixed rate."""
    return any(not group.rate for group in rows[0].workload.publishers)
