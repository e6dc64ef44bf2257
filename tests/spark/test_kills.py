"""Exactly once under SIGKILL: of the whole driver with its workers, and of the server, while messages come in."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerFactory
from tests.server_process import ROOT, PenstockServer
from tests.spark.fleet import Sent, publish

pytestmark = [pytest.mark.slow, pytest.mark.crash]

TIMEOUT_S = 120
KILLS = 2
PER_ROUND = 200


class Publisher:
    """Publishes numbers from 0 on to topic `n`, while it runs; again those that were not acknowledged."""

    def __init__(self, server: PenstockServer) -> None:
        self._server = server
        self._stop = threading.Event()
        self.acknowledged = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            numbers = range(self.acknowledged, self.acknowledged + PER_ROUND)
            publish(self._server.port, [Sent("n", b"%d" % number) for number in numbers], "publisher")
            self.acknowledged = numbers.stop
            self._stop.wait(0.3)

    def stop(self) -> int:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        return self.acknowledged


class Driver:
    """tests/spark/drain.py in a process group of its own."""

    def __init__(self, data: Path, work: Path, master: str) -> None:
        work.mkdir(exist_ok=True)
        self._work = work
        with (work / "driver.log").open("ab") as log:
            command = [sys.executable, "-m", "tests.spark.drain", str(data), str(work), master]
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
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
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def log(self) -> str:
        return (self._work / "driver.log").read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT_S)

    def finish(self) -> None:
        (self._work / "stop").touch()
        assert self.process.wait(TIMEOUT_S) == 0, self.log()


def drained(spark: SparkSession, work: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(work / "sink")).collect()
    return sorted((row.queue_offset, int(bytes(row.payload))) for row in rows)


@pytest.fixture
def start_driver(spark_environment: None, tmp_path: Path) -> Iterator[Callable[[Path, str], Driver]]:
    """Starts drivers that go on with each other's work; none is left at the end."""
    started: list[Driver] = []

    def start(data: Path, master: str) -> Driver:
        started.append(Driver(data, tmp_path / "work", master))
        return started[-1]

    yield start
    for driver in started:
        if driver.process.poll() is None:
            driver.kill()


Start = Callable[[Path, str], Driver]


def test_kill_the_driver_under_load(
    spark: SparkSession, start_driver: Start, penstock_server: ServerFactory, tmp_path: Path
) -> None:
    server = penstock_server(flush="async")
    publisher = Publisher(server)
    randomly = random.Random(5)
    for _ in range(KILLS):
        driver = start_driver(server.data, "local[2]")
        driver.wait_for_batches(driver.batches() + 2)
        time.sleep(randomly.uniform(0, 0.5))  # anywhere in a batch
        driver.kill()
    driver = start_driver(server.data, "local[2]")
    driver.wait_for_batches(driver.batches() + 1)
    count = publisher.stop()
    driver.finish()
    assert drained(spark, tmp_path / "work") == [(number, number) for number in range(count)]


def test_kill_the_server_under_load_with_several_executors(
    spark: SparkSession, start_driver: Start, penstock_server: ServerFactory, tmp_path: Path
) -> None:
    """The workers are processes of their own, and the gateways' appends batch records of many messages."""
    server = penstock_server(flush="async", gateways="2")
    driver = start_driver(server.data, "local-cluster[2,1,1024]")
    published = 0
    for batches in (1, 2):
        numbers = range(published, published + 5 * PER_ROUND)
        publish(server.port, [Sent("n", b"%d" % number) for number in numbers], "publisher")
        published = numbers.stop
        driver.wait_for_batches(batches)
        server.restart()
    driver.finish()
    assert drained(spark, tmp_path / "work") == [(number, number) for number in range(published)]
