"""Results as one HTML page with its plots."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from loadtest.devices.latency import curve
from loadtest.report.results import Results, Row, percentile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.6em } h2 { font-size: 1.25em; margin-top: 2.2em }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .3em .9em .3em 0; text-align: right }
th { border-bottom: 1px solid #999; font-weight: 600 } th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto } .fine { color: #666; font-size: 13px }
"""
FIGURE_INCHES = (8.6, 3.2)
NINES = (50.0, 90.0, 99.0, 99.9, 99.99)


def page(results: Results) -> str:
    """The whole document."""
    machine = results.machine
    parts = [
        f"<!doctype html><meta charset=utf-8><title>Load test</title><style>{STYLE}</style><h1>Load test</h1>",
        f"<p class=fine>{escape(results.begun)} · {escape(machine.processor)}, {machine.cores} cores, "
        f"{machine.memory_bytes / 2**30:.0f} GiB · {escape(machine.system)} · load average {machine.load_average}</p>",
        *(_section(rows) for rows in results.by_workload().values()),
        "<p class=fine>Medians of all runs; latencies count from when a message should have been sent.</p>",
    ]
    return "\n".join(parts) + "\n"


def _section(rows: list[Row]) -> str:
    workload = rows[0].workload
    return "\n".join(
        [
            f"<h2>{escape(workload.name)}</h2><p>{escape(workload.text.strip())}</p>",
            _table(rows),
            _latency_plot(rows),
            _rate_plot(rows),
        ]
    )


def _table(rows: list[Row]) -> str:
    head = ("", "sent/s", "delivered/s", "p50", "p99", "p99.9", "lost", "broker", "generator", "memory")
    lines = [
        (
            row.subject.name,
            number(row.median(lambda run: run.sent_per_s)),
            number(row.median(lambda run: run.delivered_per_s)),
            duration(row.median(percentile("p50"))),
            duration(row.median(percentile("p99"))),
            duration(row.median(percentile("p99_9"))),
            number(row.median(lambda run: run.lost)),
            cores(row.median(lambda run: run.broker_cores)),
            cores(row.median(lambda run: run.generator_cores)),
            megabytes(row.median(lambda run: run.broker_resident_bytes)),
        )
        for row in rows
    ]
    cells = ["<tr>" + "".join(f"<th>{escape(each)}" for each in head)]
    cells += ["<tr>" + "".join(f"<td>{escape(each)}" for each in line) for line in lines]
    return f"<table>{''.join(cells)}</table>"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def duration(us: float | None) -> str:
    if us is None:
        return ""
    return f"{us:.0f} µs" if us < 1_000 else f"{us / 1_000:.1f} ms" if us < 1_000_000 else f"{us / 1_000_000:.1f} s"


def cores(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} cores"


def megabytes(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:,.0f} MB"


# --- plots


def _latency_plot(rows: list[Row]) -> str:
    """Latencies of the median run of each row, so that a curve is a measured one."""

    def draw(axes: Axes) -> None:
        for row in rows:
            delivery = sorted((run.delivery for run in row.runs if run.delivery), key=lambda each: each.p99)
            if delivery:
                measured = curve(delivery[len(delivery) // 2].histogram)
                points = [(100 / (100 - at), us / 1_000) for at, us in measured if at < 100]
                axes.plot(*zip(*points, strict=True), label=row.subject.name)
        axes.set(xscale="log", yscale="log", xlabel="percentile", ylabel="latency (ms)")
        axes.set_xticks([100 / (100 - nines) for nines in NINES], [f"{nines:g}" for nines in NINES])

    return _svg(draw) if any(run.delivery for row in rows for run in row.runs) else ""


def _rate_plot(rows: list[Row]) -> str:
    def draw(axes: Axes) -> None:
        for row in rows:
            slices = row.runs[-1].slices
            axes.plot([each.at_s for each in slices], [each.delivered_per_s for each in slices], label=row.subject.name)
        axes.set(xlabel="seconds", ylabel="delivered/s", ylim=(0, None))

    return _svg(draw)


def _svg(draw: Callable[[Axes], None]) -> str:
    from matplotlib.figure import Figure

    from loadtest.report.svg import as_svg

    figure = Figure(figsize=FIGURE_INCHES, layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    return as_svg(figure).partition("<svg")[2].join(("<svg", ""))
