"""The results of a load test: a JSON document for other programs, and medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from loadtest.devices.run import WorkloadRun
from loadtest.errors import LoadTestError
from loadtest.machine import Machine
from loadtest.workloads.workload import Workload

FORMAT = 1


class Worth(msgspec.Struct, frozen=True):
    """Of QoS 1 messages to an absent session: how many the broker acknowledged before a kill, and how many survived."""

    acknowledged: int
    survived: int


class Subject(msgspec.Struct, frozen=True):
    """A broker with its settings; `worth`: of its acknowledgements, if measured."""

    name: str
    url: str = ""
    version: str = ""
    settings: str = ""
    worth: Worth | None = None


class Row(msgspec.Struct):
    """One workload on one broker; `fault`: why it could not run."""

    workload: Workload
    subject: Subject
    runs: list[WorkloadRun]
    fault: str = ""

    def median(self, figure: Callable[[WorkloadRun], float | None]) -> float | None:
        """The median over the runs that have the figure."""
        found = [value for run in self.runs if (value := figure(run)) is not None]
        return statistics.median(found) if found else None

    def spread(self, figure: Callable[[WorkloadRun], float]) -> tuple[float, float]:
        """The lowest and the highest value; zeros if nothing was measured."""
        found = [figure(run) for run in self.runs]
        return min(found, default=0), max(found, default=0)

    @property
    def delivered_per_s(self) -> float:
        """The median, by which brokers are compared."""
        return self.median(lambda run: run.delivered_per_s) or 0


def percentile(name: str) -> Callable[[WorkloadRun], float | None]:
    """A percentile of the delivery latency, such as `p99` (µs)."""
    return lambda run: getattr(run.delivery, name) if run.delivery is not None else None


class Results(msgspec.Struct):
    format: int
    begun: str
    machine: Machine
    rows: list[Row]
    left_out: list[str] = []
    """Measurements that were left out, and why."""

    def by_workload(self) -> dict[str, list[Row]]:
        """The rows, grouped by workload."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.workload.name, []).append(row)
        return found

    def row(self, workload: str, subject: str) -> Row | None:
        """The row of a workload and a broker, by name; None if nothing was measured."""
        found = [each for each in self.rows if (each.workload.name, each.subject.name) == (workload, subject)]
        return found[0] if found and found[0].runs else None

    @classmethod
    def begin(cls) -> Results:
        return cls(FORMAT, datetime.now(UTC).isoformat(timespec="seconds"), Machine.here(), [])


def write(results: Results, path: Path) -> None:
    """Read results. Raises LoadTestError."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    except OSError as error:
        raise LoadTestError(f"{path}: {error.strerror}; name a file that can be written") from None


def read(path: Path) -> Results:
    """Read results. Raises LoadTestError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except OSError as error:
        raise LoadTestError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise LoadTestError(f"{path}: not the results of a load test ({error})") from None
