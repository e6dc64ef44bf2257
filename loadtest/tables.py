"""Results as Markdown, for docs."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.report import cores, duration, megabytes, number
from loadtest.results import Results, Row, percentile

HEAD = ("broker", "sent/s", "delivered/s (lowest–highest)", "ratio", "p50", "p99", "p99.99", "broker", "memory")


def markdown(results: Results) -> str:
    machine = results.machine
    lines = [
        f"Measured {results.begun[:10]} on {machine.processor}, {machine.cores} cores, "
        f"{machine.memory_bytes / 2**30:.0f} GiB, {machine.system}, Python {machine.python}; load average before it "
        f"{machine.load_average}. Medians; ratios are of deliveries/s to those of the first broker in a table.",
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
        ]
    return "\n".join(lines) + "\n"


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


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(head), "|" + "---|" * len(head), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
