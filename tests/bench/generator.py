"""The load generator beside mqload, a small C program: what a message costs each, and how many one core could do.

Both in turn on the same broker (Penstock, flush async, on the first core), each on the second. A message is sent and
delivered once; with QoS 1 it is acknowledged on both ways. MQLOAD names mqload's source or binary, as for `make bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from loadtest.brokers.compare import Cores
from loadtest.brokers.kinds import KINDS, RunningBroker, running
from loadtest.devices.run import run
from loadtest.workloads.workload import Publishers, Subscribers, Timing, Workload
from tests.bench.run import LOAD_CORE, mqload_binary

SECONDS = 2.0


class Work(NamedTuple):
    name: str
    mqload: str
    publishers: Publishers
    goal: float


WORKS = (
    Work("QoS 0, 1 → 1", "-n 2000000 -q 0", Publishers(["bench/{i}"]), 1.5e6),
    Work("QoS 1, 4 → 1, window 100", "-P 4 -n 250000 -q 1 -w 100", Publishers(["bench/{i}"], 4, 1, window=100), 0.7e6),
)


class Figures(NamedTuple):
    rate: float
    cpu_us: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, list[Figures]]] = {}
    cores = Cores.apart()
    with tempfile.TemporaryDirectory() as name, running(KINDS["penstock"], Path(name) / "b", cores.brokers) as broker:
        mqload = mqload_binary(Path(name))
        if cores.generator:
            os.sched_setaffinity(0, cores.generator)
        print(
            "| work | generator | messages/s | its CPU for each | so one core does | goal |\n|---|---|---|---|---|---|"
        )
        for work in WORKS:
            runs: dict[str, list[Figures]] = {"penstock bench": [], "mqload": []}
            for _ in range(options.repeats):
                runs["penstock bench"].append(_ours(work, broker))
                runs["mqload"].append(_mqload(work, broker, mqload))
            for generator, figures in runs.items():
                print(_line(work, generator, figures), flush=True)
            found[work.name] = runs
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


def _line(work: Work, generator: str, figures: list[Figures]) -> str:
    rate, cpu_us = (statistics.median(each) for each in zip(*figures, strict=True))
    return f"| {work.name} | {generator} | {rate:,.0f} | {cpu_us:.3f} µs | {1e6 / cpu_us:,.0f}/s | {work.goal:,.0f}/s |"


def _ours(work: Work, broker: RunningBroker) -> Figures:
    subscribers = [Subscribers(["bench/#"], qos=work.publishers.qos)]
    workload = Workload(work.name, "", [work.publishers], subscribers, timing=Timing(0.2, SECONDS))
    found = run(workload, broker.address, [], lambda *_: None)
    return Figures(found.delivered_per_s, 1e6 * found.generator_cores / found.delivered_per_s)


def _mqload(work: Work, broker: RunningBroker, mqload: Path) -> Figures:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["taskset", "-c", LOAD_CORE, str(mqload), "-p", str(broker.address.port), *work.mqload.split()]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = work.mqload.split()
    messages = int(words[words.index("-n") + 1]) * (int(words[words.index("-P") + 1]) if "-P" in words else 1)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rate = float(said.partition("deliver_rate=")[2].split("/")[0])
    return Figures(rate, 1e6 * cpu_s / messages)


if __name__ == "__main__":
    sys.exit(main())
