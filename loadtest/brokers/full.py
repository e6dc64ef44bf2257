"""The full comparison, whose results are in docs/benchmarks.md: its workloads and their brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from loadtest.brokers.compare import Comparison, Cores
from loadtest.brokers.kinds import KINDS, BrokerKind
from loadtest.devices.steps import Progress
from loadtest.report.results import Results, Row
from loadtest.workloads.workload import Workload, load

OURS = ("penstock", "penstock-sync", "penstock-apart")
FAST = ("penstock", "mosquitto")
MQTT = (*OURS, "mosquitto", "mosquitto-safe", "amqtt", "rabbitmq")
ALL = (*MQTT, "redis", "redis-sync")

HALF_RATE = "half rate"
HIGHEST_OF = ("point to point", "Mosquitto")
PLAN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("point-to-point", ALL),
    ("qos0", MQTT),
    ("qos0-1-10", FAST),
    ("qos0-100-100", FAST),
    ("qos1-4-1-w1000", ("penstock", "penstock-sync", "mosquitto")),
    ("qos1-100-100-w20", ("penstock", "penstock-sync", "mosquitto")),
    ("qos0-10-10", FAST),
    ("qos1-10-10", FAST),
    ("qos0-1-100", FAST),
    ("backlog", (*OURS, "mosquitto")),
    ("queues-thousand", ("penstock",)),
    ("queues-million", ("penstock",)),
    ("wildcards-few", FAST),
    ("wildcards", FAST),
    ("idle", ("penstock", "penstock-apart", "mosquitto")),
    (HALF_RATE, FAST),
    ("pairs", MQTT),
    ("fan-out", (*FAST, "penstock-apart")),
    ("fan-in", (*OURS, "mosquitto")),
    ("retained", FAST),
    ("storm", (*FAST, "penstock-apart")),
    ("mixed-sizes", FAST),
    ("vehicles", FAST),
)
"""In order of importance: a comparison that runs out of time has the first ones."""

SHORT_S, WARM_UP_S, DRAIN_S, STEP_S = 3.0, 0.5, 20.0, 60.0


def compare(
    minutes: float,
    repeats: int,
    duration_s: float,
    shown: Callable[[str], Progress],
    finished: Callable[[Results, list[Row]], None],
    names: Sequence[str] = (),
) -> Comparison:
    """Run the plan as far as time allows; `names`: brokers, if not all.

    `finished` gets the results so far, and the rows of the newest workload.
    """
    end_s = time.monotonic() + minutes * 60
    kinds = {name: kind for name, kind in KINDS.items() if kind.is_installed and (not names or name in names)}
    comparison = Comparison(list(kinds.values()), repeats, Cores.apart(), lambda: time.monotonic() > end_s)
    comparison.results.left_out += [
        f"{name}: {kind.program} is not installed" for name, kind in KINDS.items() if not kind.is_installed
    ]
    comparison.measure_worth(shown("what survives SIGKILL"))
    for name, brokers in PLAN:
        workload = _half_rate(comparison) if name == HALF_RATE else load(name)
        if workload is not None:
            rows = comparison.run(_short(workload, duration_s), shown, _these(kinds, brokers))
            finished(comparison.results, rows)
    return comparison


def _these(kinds: dict[str, BrokerKind], names: Sequence[str]) -> list[BrokerKind]:
    return [kinds[name] for name in names if name in kinds]


def _short(workload: Workload, duration_s: float) -> Workload:
    timing = replace(workload.timing, warm_up_s=WARM_UP_S, duration_s=duration_s, drain_s=DRAIN_S, step_s=STEP_S)
    return replace(workload, timing=timing)


def _half_rate(comparison: Comparison) -> Workload | None:
    """The workload for comparing latency, at half of the slower broker's highest rate, which both can keep up."""
    highest = comparison.results.row(*HIGHEST_OF)
    if highest is None:
        return None
    workload = load("pairs")
    rate = round(highest.delivered_per_s / 2)
    publishers = [replace(group, rate=rate) for group in workload.publishers]
    text = f"100 publishers and 100 subscribers, a topic for each pair, QoS 1, {rate:,} messages/s in all."
    return replace(workload, name=HALF_RATE, text=text, publishers=publishers)
