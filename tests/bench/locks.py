"""Locks around one buffer, side by side with a single writer: `python -m tests.bench.locks [SECONDS [ROUNDS]]`.

Other stores append under a lock that spins, backs off and blocks. Penstock has one writer and no lock; this says what
that costs or saves. It prints the table of docs/performance.md. Nothing else may run meanwhile.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TRIES = (10, 100, 1_000, 10_000)
KINDS = (("mutex", 0), ("spin", 0), *(("backoff", k) for k in TRIES), ("adaptive", 1_000), ("writer", 0))
THREADS = (2, 8)
BODY_BYTES = (2, 1_024)


class Result(NamedTuple):
    appends_per_s: float
    cpu_ns: float  # for each append, of all threads
    median_ns: float
    most_ns: float  # p99.99


def main(seconds: float = 1.0, rounds: float = 5) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "locks"
        source = Path(__file__).with_name("locks.c")
        subprocess.run(["cc", "-O2", "-std=c11", "-pthread", source, "-o", program], check=True)
        print("| bodies | threads | lock | appends/s | beside the mutex | CPU of an append | p50 | p99.99 |")
        print("|---|---|---|---|---|---|---|---|")
        for body in BODY_BYTES:
            for threads in THREADS:
                found: dict[tuple[str, int], list[Result]] = {kind: [] for kind in KINDS}
                for _ in range(int(rounds)):  # in turn, as other programs may run
                    for kind, k in KINDS:
                        words = [str(program), kind, str(k), str(threads), str(body), str(seconds)]
                        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
                        found[kind, k].append(Result(*map(float, said)))
                _print(body, threads, found)


def _print(body: int, threads: int, found: dict[tuple[str, int], list[Result]]) -> None:
    medians = {
        kind: Result(*(statistics.median(column) for column in zip(*results, strict=True)))
        for kind, results in found.items()
    }
    mutex = medians["mutex", 0].appends_per_s
    for (kind, k), each in medians.items():
        name = f"{kind}, k = {k:,}" if k else kind
        print(
            f"| {body:,} B | {threads} | {name} | {each.appends_per_s:,.0f} | {each.appends_per_s / mutex:.2f} "
            f"| {each.cpu_ns:,.0f} ns | {each.median_ns / 1e3:,.2f} µs | {each.most_ns / 1e3:,.0f} µs |"
        )


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
