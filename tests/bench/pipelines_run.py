"""`make bench-pipelines`: the programs of examples/spark on a large fleet, each in a process of its own, timed.

What each finds is compared with what was generated (tests/bench/pipelines_truth.py).
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "spark"
sys.path[:0] = [str(ROOT), str(EXAMPLES)]

generate = importlib.import_module("generate")
Truth = importlib.import_module("tests.bench.pipelines_truth").Truth


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--minutes", type=int, default=120)
    options = parser.parse_args()
    fleet = generate.Fleet(options.machines, options.minutes, int(time.time()))
    truth = Truth(generate, fleet)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-pipelines-") as name:
        folder = Path(name)
        data = str(folder / "data")
        size = ["--machines", str(fleet.machines), "--minutes", str(fleet.minutes), "--end", str(fleet.end_s)]
        made = _run("generate.py", data, *size)
        rows = int(made.split()[0].replace(",", ""))
        assert rows == truth.count, (rows, truth.count)
        for program, before, name, check in (
            ("telemetry.py", (data,), "telemetry", truth.check_telemetry),
            ("offline.py", (data,), "offline", truth.check_offline),
            ("anomalies.py", ("scores", data), "anomalies", truth.check_scores),
            ("anomalies.py", ("train", data), "anomalies", truth.check_train),
            ("anomalies.py", ("detect", data), "anomalies", truth.check_detect),
            ("quality.py", (data, "--out"), "quality.md", truth.check_quality),
            ("trips.py", (data,), "trips", truth.check_trips),
            (None, ("-m", "penstock.spark.export", data), "exported", truth.check_exported),
        ):
            _run(program, *before, str(folder / name), rows=rows)
            check(folder / name)
    print("each found what was generated")
    return 0


def _run(program: str | None, *arguments: str, rows: int = 0) -> str:
    """Run it and print what it took, the start of Spark included. Returns the last line that it said."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, *([str(EXAMPLES / program)] if program else []), *arguments]
    start = time.perf_counter()
    running = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
    cpu = CpuSeconds(running.pid)
    said = (running.communicate()[0].strip().splitlines() or [""])[-1]
    if running.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with {running.returncode}")
    seconds = time.perf_counter() - start
    shown = f"{program} {arguments[0]}" if program == "anomalies.py" else program or "export"
    rate = f"{rows / seconds:9,.0f} rows/s" if rows else " " * 16
    print(f"{shown:22} {seconds:6.1f} s, CPU {cpu.taken():6.1f} s {rate}  {said}", flush=True)
    return said


class CpuSeconds:
    """Of a process and all below it, looked at ten times a second until it ends."""

    def __init__(self, pid: int) -> None:
        self._by_process: dict[tuple[int, float], float] = {}
        self._root = psutil.Process(pid)
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def taken(self) -> float:
        self._watching.join()
        return sum(self._by_process.values())

    def _watch(self) -> None:
        with suppress(psutil.NoSuchProcess):
            while self._root.status() != psutil.STATUS_ZOMBIE:
                for process in (self._root, *self._root.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess):
                        times = process.cpu_times()
                        self._by_process[process.pid, process.create_time()] = times.user + times.system
                time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
