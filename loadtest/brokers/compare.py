"""Runs workloads on several brokers, in turn, on the same cores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from loadtest.brokers import streams, worth
from loadtest.brokers.kinds import BrokerKind, RunningBroker, running
from loadtest.devices.run import run
from loadtest.devices.steps import Progress
from loadtest.errors import LoadTestError
from loadtest.report.results import Results, Row, Subject
from loadtest.workloads.workload import Workload

ATTEMPTS = 2
"""To start a broker, each attempt with its own ports and folder."""
OUT_OF_TIME = "left out, as the time that was given was over"


class Cores(NamedTuple):
    """The cores of the brokers, and those of the load generator; empty: all."""

    brokers: set[int]
    generator: set[int]

    @classmethod
    def apart(cls) -> Cores:
        """The first allowed core for brokers, the second for the load; with a single core, no division."""
        allowed = sorted(os.sched_getaffinity(0))
        return cls({allowed[0]}, {allowed[1]}) if len(allowed) > 1 else cls(set(), set())


class Comparison:
    """Runs each workload `repeats` times on each broker. A failure is noted, and the other brokers go on."""

    def __init__(
        self, kinds: Sequence[BrokerKind], repeats: int, cores: Cores, is_time_over: Callable[[], bool] = lambda: False
    ) -> None:
        """`is_time_over`: a run that has not begun by then is left out, and its row says so."""
        self._repeats = repeats
        self._cores = cores
        self._kinds = kinds
        self._is_time_over = is_time_over
        self._subjects = {kind.name: Subject(kind.name, "", kind.version_text(), kind.settings) for kind in kinds}
        self.results = Results.begin()

    def measure_worth(self, progress: Progress) -> None:
        """Measure how many acknowledged messages survive a SIGKILL of each broker. Call it before any workload."""
        for at, kind in enumerate(self._kinds):
            if self._is_time_over():
                return
            progress(f"killing {kind.name}", at / len(self._kinds))
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                try:
                    with running(kind, Path(folder) / "broker", self._cores.brokers) as broker:
                        found = worth.measure(broker)
                except (LoadTestError, OSError):
                    continue
            subject = self._subjects[kind.name]
            self._subjects[kind.name] = Subject(subject.name, "", subject.version, subject.settings, found)

    def run(
        self, workload: Workload, shown: Callable[[str], Progress], kinds: Sequence[BrokerKind] | None = None
    ) -> list[Row]:
        """The rows of a workload. `shown` makes a Progress for a run with this title; `kinds`: some of the
        given kinds.
        """
        allowed = os.sched_getaffinity(0)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as brokers:
            rows = []
            for kind in self._kinds if kinds is None else kinds:
                row = Row(workload, self._subjects[kind.name], [])
                rows.append((row, self._started(kind, Path(folder) / kind.name, row, brokers)))
            if self._cores.generator:
                os.sched_setaffinity(0, self._cores.generator)
            try:
                for number in range(self._repeats):
                    for row, broker in rows:
                        progress = shown(f"{workload.name} {number + 1}/{self._repeats} on {row.subject.name}")
                        self._run_once(row, broker, progress)
            finally:
                os.sched_setaffinity(0, allowed)
        found = [row for row, _ in rows]
        self.results.rows += found
        return found

    def _started(self, kind: BrokerKind, folder: Path, row: Row, brokers: ExitStack) -> RunningBroker | None:
        if not kind.speaks_mqtt and not streams.fits(row.workload):
            row.fault = "no MQTT; only where each message goes to one subscriber, as in point-to-point"
            return None
        if self._is_time_over():
            row.fault = OUT_OF_TIME
            return None
        for attempt in range(ATTEMPTS):
            try:
                place = folder.with_name(f"{folder.name}-{attempt}")
                started = brokers.enter_context(running(kind, place, self._cores.brokers))
                row.fault = ""
                return started
            except LoadTestError as error:
                row.fault = str(error)
        return None

    def _run_once(self, row: Row, broker: RunningBroker | None, progress: Progress) -> None:
        if broker is None or row.fault:
            return
        if self._is_time_over():
            row.fault = "" if row.runs else OUT_OF_TIME
            return
        try:
            work = run if broker.kind.speaks_mqtt else streams.run
            row.runs.append(work(row.workload, broker.address, broker.pids, progress))
        except (LoadTestError, OSError) as error:
            row.fault = str(error)
