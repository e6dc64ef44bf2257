"""`make bench-pipelines`: the programs of examples/spark on a large fleet, each in a process of its own, timed."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "spark"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--minutes", type=int, default=120)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-pipelines-") as name:
        folder = Path(name)
        data = str(folder / "data")
        _run("generate.py", data, "--machines", str(options.machines), "--minutes", str(options.minutes))
        _run("telemetry.py", data, str(folder / "telemetry"))
        _run("offline.py", data, str(folder / "offline"))
        for work in ("scores", "train", "detect"):
            _run("anomalies.py", work, data, str(folder / "anomalies"))
        _run("quality.py", data, "--out", str(folder / "quality.md"))
        _run("trips.py", data, str(folder / "trips"))
        _run(None, "-m", "penstock.spark.export", data, str(folder / "exported"))
    return 0


def _run(program: str | None, *arguments: str) -> None:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, *([str(EXAMPLES / program)] if program else []), *arguments]
    start = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
    )
    said = done.stdout.strip().splitlines()[-1:] or [""]
    shown = f"{program} {arguments[0]}" if program == "anomalies.py" else program or "export"
    print(f"{shown:22} {time.perf_counter() - start:6.1f} s  {said[0]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
