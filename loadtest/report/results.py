"""What a load test found, as a JSON document that other programs read, and its medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from loadtest.devices.run import Run
from loadtest.errors import LoadTestError
from loadtest.machine import Machine
from loadtest.workloads.workload import Workload

FORMAT = 1


class Worth(msgspec.Struct, frozen=True):
    """Of messages with QoS 1 to a session that was away: how many the broker acknowledged before it was killed."""

    acknowledged: int
    survived: int


class Subject(msgspec.Struct, frozen=True):
    """A broker as it was set up; `worth`: what its acknowledgements were worth, where that was tried."""

    name: str
    url: str = ""
    version: str = ""
    settings: str = ""
    worth: Worth | None = None


class Row(msgspec.Struct):
    """One workload on one broker; `fault` says why it could not go on."""

    workload: Workload
    subject: Subject
    runs: list[Run]
    fault: str = ""

    def median(self, figure: Callable[[Run], float | None]) -> float | None:
        """Of those runs that have the figure."""
        found = [value for run in self.runs if (value := figure(run)) is not None]
        return statistics.median(found) if found else None

    def spread(self, figure: Callable[[Run], float]) -> tuple[float, float]:
        """The lowest and the highest; zeros if nothing was measured."""
        found = [figure(run) for run in self.runs]
        return min(found, default=0), max(found, default=0)

    @property
    def delivered_per_s(self) -> float:
        """The median, which brokers are compared by."""
        return self.median(lambda run: run.delivered_per_s) or 0


def percentile(name: str) -> Callable[[Run], float | None]:
    """Of the latency of deliveries, such as `p99` (µs)."""
    return lambda run: getattr(run.delivery, name) if run.delivery is not None else None


class Results(msgspec.Struct):
    format: int
    begun: str
    machine: Machine
    rows: list[Row]
    left_out: list[str] = []
    """What was not measured, and why."""

    def by_workload(self) -> dict[str, list[Row]]:
        """The rows, those of a workload together."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.workload.name, []).append(row)
        return found

    def row(self, workload: str, subject: str) -> Row | None:
        """By the names of workload and broker; None if nothing was measured."""
        found = [each for each in self.rows if (each.workload.name, each.subject.name) == (workload, subject)]
        return found[0] if found and found[0].runs else None

    @classmethod
    def begin(cls) -> Results:
        return cls(FORMAT, datetime.now(UTC).isoformat(timespec="seconds"), Machine.here(), [])


def write(results: Results, path: Path) -> None:
    """Raises LoadTestError."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    except OSError as error:
        raise LoadTestError(f"{path}: {error.strerror}; name a file that can be written") from None


def read(path: Path) -> Results:
    """Raises LoadTestError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except OSError as error:
        raise LoadTestError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise LoadTestError(f"{path}: not the results of a load test ({error})") from None
