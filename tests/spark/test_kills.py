"""Exactly once under SIGKILL: of the whole driver with its workers, and of the server, while messages come in."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerFactory
from tests.spark.driver_process import KILLS, TIMEOUT_S, Driver
from tests.spark.fleet import Sent, publish

PER_ROUND = 200


class HasPort(Protocol):
    @property
    def port(self) -> int: ...


class Publisher:
    """Publishes numbers from 0 on to topic `n`, while it runs; again those that were not acknowledged."""

    def __init__(self, server: HasPort) -> None:
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


def drained(spark: SparkSession, work: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(work / "sink")).collect()
    return sorted((row.queue_offset, int(bytes(row.payload))) for row in rows)


@pytest.fixture
def start_driver(spark_environment: None, tmp_path: Path) -> Iterator[Callable[[Path, str], Driver]]:
    """Starts drivers that go on with each other's work; none is left at the end."""
    started: list[Driver] = []

    def start(data: Path, master: str) -> Driver:
        started.append(Driver(str(data), tmp_path / "work", master))
        return started[-1]

    yield start
    for driver in started:
        if driver.process.poll() is None:
            driver.kill()


Start = Callable[[Path, str], Driver]


@pytest.mark.catalogue("I32")
def test_kill_the_driver_under_load(
    spark: SparkSession, start_driver: Start, penstock_server: ServerFactory, tmp_path: Path
) -> None:
    server = penstock_server(flush="async")
    publisher = Publisher(server)
    randomly = random.Random(5)
    for number in range(KILLS):
        driver = start_driver(server.data, "local[2]")
        driver.wait_for_batches(driver.batches() + 2)
        if number % 2:
            driver.wait_until_sunk()
        else:
            time.sleep(randomly.uniform(0, 0.5))  # anywhere in a batch
        driver.kill()
    driver = start_driver(server.data, "local[2]")
    driver.wait_for_batches(driver.batches() + 1)
    count = publisher.stop()
    driver.finish()
    assert drained(spark, tmp_path / "work") == [(number, number) for number in range(count)]


@pytest.mark.nightly
def test_kill_the_server_under_load_with_several_executors(
    spark: SparkSession, start_driver: Start, penstock_server: ServerFactory, tmp_path: Path
) -> None:
    """The workers are processes of their own, and the gateways' appends batch records of many messages."""
    server = penstock_server(flush="async", gateways="2")
    driver = start_driver(server.data, "local-cluster[2,1,1024]")
    published = 0
    for batches in range(1, 1 + max(2, KILLS // 4)):
        numbers = range(published, published + 5 * PER_ROUND)
        publish(server.port, [Sent("n", b"%d" % number) for number in numbers], "publisher")
        published = numbers.stop
        driver.wait_for_batches(batches)
        server.restart()
    driver.finish()
    assert drained(spark, tmp_path / "work") == [(number, number) for number in range(published)]
