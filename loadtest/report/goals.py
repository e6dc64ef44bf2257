"""The goals of this project, and whether a full comparison shows that it reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from loadtest.devices.run import WorkloadRun
from loadtest.report.results import Results, Row, percentile
from loadtest.workloads.workload import Workload

PENSTOCK, SYNC, MOSQUITTO = "Penstock", "Penstock sync", "Mosquitto"
ENGINE = ("QoS 0", "point to point", "QoS 0, 1 → 10", "QoS 0, 100 → 100")
SYNCED = ("QoS 1, 4 → 1, window 1,000", "QoS 1, 100 → 100, window 20")
FLASHMQ = (("QoS 0, 10 → 10", 1_200_000), ("QoS 1, 10 → 10", 700_000), ("QoS 0, 1 → 100", 4_700_000))
"""FlashMQ's best published rates in messages/s: one core each for broker and generator."""
RATIO, RATIO_SYNC, RATIO_QUEUES, RATIO_FILTERS = 8.0, 5.0, 0.9, 0.8
BACKLOG_PER_S = 300_000
QUEUE_BYTES, CONNECTION_BYTES = 150, 2_500


class Reached(NamedTuple):
    """A goal; `is_met` is None if it was not measured."""

    work: str
    goal: str
    measured: str
    is_met: bool | None


def reached(results: Results) -> list[Reached]:
    return [*_ratios(results), *_rates(results), *_itself(results), *_memory(results), _latency(results)]


def _ratios(results: Results) -> Iterator[Reached]:
    rows = [(work, PENSTOCK, RATIO) for work in ENGINE] + [(work, SYNC, RATIO_SYNC) for work in SYNCED]
    for work, name, goal in rows:
        ours, theirs = results.row(work, name), results.row(work, MOSQUITTO)
        text = f"≥ {goal:g} × Mosquitto in memory"
        yield _ratio(f"{work}, {name}", text, (ours, theirs), goal)


def _rates(results: Results) -> Iterator[Reached]:
    for work, rate in (*FLASHMQ, ("backlog", BACKLOG_PER_S)):
        row = results.row(work, PENSTOCK)
        than = "" if work == "backlog" else " (FlashMQ, measured elsewhere)"
        if row is None:
            yield Reached(work, f"≥ {rate:,}/s{than}", "not measured", None)
        else:
            yield Reached(work, f"≥ {rate:,}/s{than}", f"{row.delivered_per_s:,.0f}/s", row.delivered_per_s >= rate)


def _itself(results: Results) -> Iterator[Reached]:
    for work, other, goal in (
        ("a million queues", "a thousand queues", RATIO_QUEUES),
        ("wildcards", "few wildcards", RATIO_FILTERS),
    ):
        ours, fewer = results.row(work, PENSTOCK), results.row(other, PENSTOCK)
        text = f"≥ {goal:g} × {other}"
        yield _ratio(work, text, (ours, fewer), goal)


def _memory(results: Results) -> Iterator[Reached]:
    many, few = results.row("a million queues", PENSTOCK), results.row("a thousand queues", PENSTOCK)
    goal = f"≤ {QUEUE_BYTES} bytes"
    if many is None or few is None:
        yield Reached("memory of an idle queue", goal, "not measured", None)
    else:
        more = _topics(many.workload) - _topics(few.workload)
        each = ((many.median(_resident) or 0) - (few.median(_resident) or 0)) / more
        yield Reached("memory of an idle queue", goal, f"{each:,.0f} bytes", each <= QUEUE_BYTES)
    idle = results.row("idle", PENSTOCK)
    goal = f"≤ {CONNECTION_BYTES:,} bytes"
    if idle is None:
        yield Reached("memory of an idle connection with a subscription", goal, "not measured", None)
    else:
        each = (idle.runs[0].broker_resident_bytes or 0) - (idle.runs[0].broker_empty_bytes or 0)
        each /= idle.workload.devices
        yield Reached(
            "memory of an idle connection with a subscription", goal, f"{each:,.0f} bytes", each <= CONNECTION_BYTES
        )


def _latency(results: Results) -> Reached:
    ours, theirs = results.row("half rate", PENSTOCK), results.row("half rate", MOSQUITTO)
    work, goal = "p99 at half of Mosquitto's highest rate, QoS 1", "≤ Mosquitto's"
    at = [row.median(percentile("p99")) for row in (ours, theirs) if row is not None]
    if len(at) < 2 or at[0] is None or at[1] is None:
        return Reached(work, goal, "not measured", None)
    return Reached(work, goal, f"{at[0] / 1000:.2f} ms, Mosquitto {at[1] / 1000:.2f} ms", at[0] <= at[1])


def _ratio(work: str, goal: str, rows: tuple[Row | None, Row | None], least: float) -> Reached:
    ours, theirs = rows
    if ours is None or theirs is None or not theirs.delivered_per_s:
        return Reached(work, goal, "not measured", None)
    ratio = ours.delivered_per_s / theirs.delivered_per_s
    rates = f"{ours.delivered_per_s:,.0f} and {theirs.delivered_per_s:,.0f}/s"
    return Reached(work, goal, f"{ratio:.2f} × ({rates})", ratio >= least)


def _topics(workload: Workload) -> int:
    return sum(group.count * group.each * len(group.topics) for group in workload.publishers)


def _resident(run: WorkloadRun) -> float | None:
    return run.broker_resident_bytes
