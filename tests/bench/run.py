"""`make bench`: Penstock beside Mosquitto (in memory), pair by pair in turn on the same cores, medians of five.

The load comes from mqload, a small C program that is not part of this project: MQLOAD names its source or its binary
(default ../shared/tools/mqload.c). The brokers run on the first core, the load on the second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench import apart, retained, transports  # noqa: E402
from tests.bench.client import consume_rates, publish_rates, read_rates  # noqa: E402
from tests.bench.indexing import keeping_up  # noqa: E402
from tests.bench.open_pages import open_pages  # noqa: E402
from tests.bench.queues import beside_queues  # noqa: E402
from tests.bench.receipts import receipts_beside_redis  # noqa: E402
from tests.bench.whole import (  # noqa: E402
    delayed_lateness,
    delayed_memory,
    gateway_start,
    idle_memory,
    offline_backlog,
    restart_time,
)
from tests.support.server_process import PenstockServer, ServeOptions, free_port, start_mosquitto  # noqa: E402

BROKER_CORE, LOAD_CORE = "0", "1"
APART_GOAL = 0.6
MOSQUITTO_CONFIG = "persistence false\nmax_queued_messages 0\nmax_inflight_messages 0\nmax_queued_bytes 0\n"


@dataclass(frozen=True)
class Work:
    """One row: what mqload is told, with which flush policy, and the least ratio to Mosquitto that is wanted."""

    name: str
    load: str
    flush: str
    goal: float
    in_flight: int = 0

    @property
    def figure(self) -> str:
        return "latency" if "-L" in self.load else "deliver_rate"


WORKS = (
    Work("QoS 0, 1 → 1", "-n 1000000 -q 0", "async", 6),
    Work("QoS 1, 4 → 1, window 100", "-P 4 -n 50000 -q 1 -w 100", "async", 8),
    Work("QoS 0, 1 → 10, deliveries", "-S 10 -n 100000 -q 0", "async", 12),
    Work("QoS 0, 1 → 100, deliveries", "-S 100 -n 40000 -q 0", "async", 12),
    Work("QoS 0, 1 → 1,000, deliveries", "-S 1000 -n 4000 -q 0", "async", 12),
    Work("QoS 0, 100 → 100, own topics", "-P 100 -S 100 -f m -n 10000 -q 0", "async", 6),
    Work("QoS 1, 100 → 100, window 20, own topics", "-P 100 -S 100 -f m -n 5000 -q 1 -w 20", "async", 6),
    Work("QoS 1, 100 → 100, window 20, deliveries", "-P 100 -S 100 -n 200 -q 1 -w 20", "async", 6),
    Work("QoS 1 sync, 4 → 1, window 100", "-P 4 -n 50000 -q 1 -w 100", "sync", 2.5, 400),
    Work("QoS 1 sync, 4 → 1, window 1,000", "-P 4 -n 50000 -q 1 -w 1000", "sync", 5, 4000),
    Work("QoS 1 sync, 100 → 100, window 20, own topics", "-P 100 -S 100 -f m -n 2000 -q 1 -w 20", "sync", 4, 2000),
    Work("5,000/s, 100 pairs, QoS 1", "-P 100 -S 100 -f m -n 250 -q 1 -r 50 -L", "async", 1),
)


def main() -> int:
    options = _arguments()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for a thousand subscribers
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as name:
        folder = Path(name)
        mqload = mqload_binary(folder)
        python = platform.python_version()
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {python}, {options.repeats} runs")
        print(f"one fdatasync of 64 KiB: {fdatasync_ms(folder):.2f} ms (median)\n")
        rows = [_compare(work, mqload, folder, options.repeats) for work in WORKS if options.only in work.name]
        rows += [
            _compare_apart(work, mqload, folder, options.repeats)
            for work in WORKS
            if work.figure != "latency" and options.only in _apart_name(work)
        ]
        rows += _whole_runs(folder, mqload, options.only)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--folder", help="where the data folders go (default: the system's temporary folder)")
    return parser.parse_args()


def mqload_binary(folder: Path) -> Path:
    source = Path(os.environ.get("MQLOAD", ROOT.parent / "shared" / "tools" / "mqload.c"))
    if not source.exists():
        sys.exit(f"{source}: not found; set MQLOAD to the load generator's C source or its binary")
    if source.suffix != ".c":
        return source
    binary = folder / "mqload"
    subprocess.run(["gcc", "-O2", "-o", binary, source], check=True)
    return binary


def fdatasync_ms(folder: Path, repeats: int = 50) -> float:
    """Median time of an append of 64 KiB and its fdatasync."""
    probe = folder / "probe"
    fd = os.open(probe, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, repeats * 65536)
    times = []
    for i in range(repeats):
        os.pwrite(fd, b"x" * 65536, i * 65536)
        start = time.perf_counter()
        os.fdatasync(fd)
        times.append((time.perf_counter() - start) * 1000)
    os.close(fd)
    probe.unlink()
    return statistics.median(times)


def _compare(work: Work, mqload: Path, folder: Path, repeats: int) -> dict[str, object]:
    """Both brokers in turn, `repeats` times; prints the row."""
    figures: dict[str, list[float]] = {"mosquitto": [], "penstock": []}
    tails: dict[str, list[float]] = {"mosquitto": [], "penstock": []}
    with _mosquitto(folder) as mosquitto_port, _penstock(folder, work.flush) as penstock_port:
        for _ in range(repeats):
            for broker, port in (("mosquitto", mosquitto_port), ("penstock", penstock_port)):
                value, tail = _measure(mqload, port, work)
                figures[broker].append(value)
                tails[broker].append(tail)
    theirs, ours = statistics.median(figures["mosquitto"]), statistics.median(figures["penstock"])
    row: dict[str, object] = {"work": work.name, "flush": work.flush, "goal": work.goal}
    row |= {"figures": figures, "p99": tails}
    if work.figure == "latency":
        p99 = statistics.median(tails["mosquitto"]), statistics.median(tails["penstock"])
        pairs = f"mosquitto p50 {theirs:.0f} p99 {p99[0]:.0f} µs, penstock p50 {ours:.0f} p99 {p99[1]:.0f} µs"
        print(f"{work.name:46} {pairs}", flush=True)
        return row | {"ratio": theirs / ours, "ratio_p99": p99[0] / p99[1]}
    spread = f"{min(figures['penstock']):,.0f}–{max(figures['penstock']):,.0f}"
    bound = f"  bound {work.in_flight / fdatasync_ms(folder) * 1000:,.0f}/s" if work.in_flight else ""
    print(
        f"{work.name:46} mosquitto {theirs:>10,.0f}/s  penstock {work.flush} {ours:>10,.0f}/s ({spread})"
        f"  ratio {ours / theirs:5.1f}  goal {work.goal:g}{bound}",
        flush=True,
    )
    return row | {"ratio": ours / theirs}


def _apart_name(work: Work) -> str:
    return f"apart: {work.name}"


def _compare_apart(work: Work, mqload: Path, folder: Path, repeats: int) -> dict[str, object]:
    """One process, and a store with two gateways, in turn; all cores are for all. Prints the row."""
    together: list[float] = []
    apart: list[float] = []
    with (
        _penstock(folder, work.flush, cores="") as one_port,
        _penstock(folder, work.flush, cores="", gateways="2") as apart_port,
    ):
        for _ in range(repeats):
            together.append(_measure(mqload, one_port, work, cores="")[0])
            apart.append(_measure(mqload, apart_port, work, cores="")[0])
    theirs, ours = statistics.median(together), statistics.median(apart)
    print(
        f"{_apart_name(work):54} {work.flush} one process {theirs:>10,.0f}/s  store and two gateways {ours:>10,.0f}/s"
        f"  ratio {ours / theirs:4.2f}  goal {APART_GOAL:g}",
        flush=True,
    )
    figures = {"together": together, "apart": apart}
    return {
        "work": _apart_name(work),
        "flush": work.flush,
        "goal": APART_GOAL,
        "figures": figures,
        "ratio": ours / theirs,
    }


def _measure(mqload: Path, port: int, work: Work, cores: str = LOAD_CORE) -> tuple[float, float]:
    """(deliveries/s, 0), or (p50, p99) in µs. `cores`: those that the load runs on; empty: all."""
    pinned = ["taskset", "-c", cores] if cores else []
    command = [*pinned, str(mqload), "-p", str(port), *work.load.split()]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{' '.join(command)}: {run.stdout}{run.stderr}")
    if work.figure == "latency":
        return _number(run.stdout, "p50"), _number(run.stdout, "p99")
    return _number(run.stdout, "deliver_rate"), 0


def _number(text: str, name: str) -> float:
    found = re.search(rf"{name}=(\d+)", text)
    assert found, text
    return float(found[1])


@contextmanager
def _mosquitto(folder: Path) -> Iterator[int]:
    port = free_port()
    process = start_mosquitto(port, folder, MOSQUITTO_CONFIG)
    subprocess.run(["taskset", "-cp", BROKER_CORE, str(process.pid)], check=True, capture_output=True)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _penstock(folder: Path, flush: str, cores: str = BROKER_CORE, **flags: str) -> Iterator[int]:
    data = Path(tempfile.mkdtemp(prefix="data-", dir=folder))
    server = PenstockServer(data, data.with_suffix(".log"), ServeOptions({"flush": flush, **flags}))
    if cores:
        subprocess.run(["taskset", "-acp", cores, str(server.process.pid)], check=True, capture_output=True)
    try:
        yield server.port
    finally:
        server.terminate()
        shutil.rmtree(data)


def _whole_runs(folder: Path, mqload: Path, only: str) -> list[dict[str, object]]:
    """The rows that measure a process as a whole, without a peer."""
    runs: tuple[tuple[str, Callable[[Path], dict[str, object]]], ...] = (
        ("memory per idle connection", idle_memory),
        ("100 offline sessions, 100,000 messages", offline_backlog),
        ("restart with a 2 GB log", restart_time),
        ("delayed: lateness", delayed_lateness),
        ("delayed: memory", delayed_memory),
        ("apart: connections", apart.connections),
        ("apart: storm", apart.storm),
        ("apart: fan-out", apart.fan_out),
        ("retained: looked up among others", retained.look_up),
        ("start of a gateway", gateway_start),
        ("TLS handshakes", transports.handshakes),
        ("messages over TCP, TLS, WebSocket", transports.messages),
        ("client reads 1,000,000 messages", read_rates),
        ("client publishes, autobatch off and on", publish_rates),
        ("index keeps up", keeping_up),
        ("queues beside Redis Streams and RabbitMQ", beside_queues),
        ("client consumes in a group", consume_rates),
        ("receipts beside Redis Streams", receipts_beside_redis),
        ("console: pages that are open", partial(open_pages, mqload)),
    )
    return [{"work": name, **run(folder)} for name, run in runs if only in name]


if __name__ == "__main__":
    sys.exit(main())
