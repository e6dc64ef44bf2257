"""Results as Markdown, for docs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from loadtest.report.goals import reached
from loadtest.report.page import cores, duration, megabytes, number
from loadtest.report.results import Results, Row, percentile

WIDTH = 120
HEAD = ("broker", "sent/s", "delivered/s (lowest–highest)", "ratio", "p50", "p99", "p99.99", "broker", "memory")


def markdown(results: Results) -> str:
    machine = results.machine
    lines = [
        *_wrapped(
            f"Measured {results.begun[:10]} on {machine.processor}, {machine.cores} cores, "
            f"{machine.memory_bytes / 2**30:.0f} GiB, {machine.system}, Python {machine.python}; load average before "
            f"it {machine.load_average}. Medians; ratios are of deliveries/s to those of the first broker in a table."
        ),
        "",
        *_subjects(results),
    ]
    for name, rows in results.by_workload().items():
        text = " ".join(rows[0].workload.text.split())
        lines += [
            "",
            f"## {name[0].upper()}{name[1:]}",
            "",
            text,
            "",
            *_table(HEAD, [_cells(row, rows[0]) for row in rows]),
            *(_steps(rows) if rows[0].workload.steps else []),
        ]
    return "\n".join(lines) + "\n"


def benchmarks(results: Results, source: str, figure: str) -> str:
    """The page of the full comparison; `source`: the place of its JSON; `figure`: its overview, if there is one."""
    goals = reached(results)
    met = {True: "met", False: "not met", None: "–"}
    brokers = ", ".join({row.subject.name: None for row in results.rows})
    lines = [
        "# Benchmarks",
        "",
        *_wrapped(
            "Made by `make bench-compare`; do not edit. How it is measured, and how to repeat it with another broker "
            f"or workload: [load tests](loadtest.md). All figures, with histograms: [{source}]({source})."
        ),
        "",
        *_wrapped(
            f"Compared: {brokers}. Brokers ran on one core and the load on another, in turn; a row is the median of up "
            f"to {max((len(row.runs) for row in results.rows), default=0)} runs."
        ),
        *(["", *_wrapped("Left out: " + "; ".join(results.left_out) + ".")] if results.left_out else []),
        "",
        "## Goals",
        "",
        *_table(("work", "goal", "measured", ""), [(each[0], each[1], each[2], met[each.is_met]) for each in goals]),
        "",
        *(["## At a glance", "", f"![Deliveries/s of each workload by each broker]({figure})", ""] if figure else []),
        "## Where, and with what",
        "",
        markdown(results).rstrip(),
    ]
    return "\n".join(lines) + "\n"


def _steps(rows: Sequence[Row]) -> list[str]:
    """For workloads with steps: the seconds of the measured steps, and the connections made in them."""
    cells = []
    for row in rows:
        if row.runs:
            seconds = row.median(lambda run: run.seconds)
            cells.append(
                (
                    row.subject.name,
                    f"{seconds:.2f} s",
                    number(row.median(lambda run: run.joined_per_s)),
                    "; ".join(f"{each.do} {each.seconds:.2f} s" for each in row.runs[-1].steps),
                )
            )
    return ["", *_table(("broker", "measured steps", "connected/s", "steps of the last run"), cells)]


def _subjects(results: Results) -> list[str]:
    subjects = {row.subject.name: row.subject for row in results.rows}.values()
    rows = []
    for each in subjects:
        survived = "not tried" if each.worth is None else f"{each.worth.survived:,} of {each.worth.acknowledged:,}"
        rows.append((each.name, each.version, each.settings, survived))
    return _table(("broker", "version", "settings", "acknowledged messages that survived SIGKILL"), rows)


def _cells(row: Row, first: Row) -> tuple[str, ...]:
    if not row.runs:
        return (row.subject.name, f"did not go: {row.fault}", *[""] * (len(HEAD) - 2))
    lowest, highest = row.spread(lambda run: run.delivered_per_s)
    lost = row.median(lambda run: run.lost)
    delivered = f"{number(row.delivered_per_s)} ({number(lowest)}–{number(highest)})"
    return (
        row.subject.name,
        number(row.median(lambda run: run.sent_per_s)),
        delivered + (f", {number(lost)} lost" if lost else ""),
        f"{row.delivered_per_s / first.delivered_per_s:.2f}" if first.delivered_per_s else "",
        *(duration(row.median(percentile(name))) for name in ("p50", "p99", "p99_99")),
        cores(row.median(lambda run: run.broker_cores)),
        megabytes(row.median(lambda run: run.broker_resident_bytes)),
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(head), "|" + "---|" * len(head), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
