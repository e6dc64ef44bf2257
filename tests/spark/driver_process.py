"""A Spark program in a process group of its own, with its JVM and workers, to be killed as a whole."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.server_process import ROOT

TIMEOUT_S = 300
KILLS = int(os.environ.get("PENSTOCK_SPARK_KILLS", "1"))
"""Of drivers, in a test; `make kill-spark` has 20."""


def _newest(folder: Path) -> int:
    """The highest number of a batch that has a file there; -1: none has."""
    found = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
    return max(found, default=-1)


class Driver:
    """`python -m PROGRAM DATA WORK MASTER`. WORK has its checkpoint, and the file by which it ends."""

    def __init__(
        self,
        data: str,
        work: Path,
        master: str,
        program: str = "tests.spark.drain",
        env: Mapping[str, str] | None = None,
    ) -> None:
        work.mkdir(exist_ok=True)
        self._work = work
        with (work / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", program, data, str(work), master],
                cwd=ROOT,
                env=os.environ | (env or {}),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def batches(self) -> int:
        """How many it, and those before it, have committed."""
        commits = self._work / "checkpoint" / "commits"
        return sum(path.name.isdecimal() for path in commits.iterdir()) if commits.is_dir() else 0

    def wait_for_batches(self, count: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self.batches() < count:
            self.check(deadline)

    def wait_until_sunk(self) -> None:
        """Until a batch is in the file sink's metadata, and not in the commit log so far."""
        deadline = time.monotonic() + TIMEOUT_S
        sunk, committed = self._work / "sink" / "_spark_metadata", self._work / "checkpoint" / "commits"
        while _newest(sunk) <= _newest(committed):
            self.check(deadline, every_s=0.001)

    def wait_for_file(self, name: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not (self._work / name).exists():
            self.check(deadline)

    def check(self, deadline: float, every_s: float = 0.02) -> None:
        assert self.process.poll() is None, self.log()
        assert time.monotonic() < deadline, self.log()
        time.sleep(every_s)

    def log(self) -> str:
        return (self._work / "driver.log").read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT_S)

    def finish(self) -> None:
        (self._work / "stop").touch()
        assert self.process.wait(TIMEOUT_S) == 0, self.log()
