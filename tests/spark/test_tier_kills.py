"""Exactly once over the seam of tier and log: the driver is killed as a whole, while retention and the tier go on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.folder import LogFolder
from tests.conftest import ServerFactory
from tests.spark.driver_process import KILLS, Driver
from tests.spark.fleet import Sent, publish
from tests.tier.tier_process import SMALL

PER_ROUND = 100
PAYLOAD_BYTES = 3_000
ROWS = 120  # of a batch


class Publisher:
    """Numbers from 0 on, to topic `n`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.count = 0

    def more(self) -> None:
        numbers = range(self.count, self.count + PER_ROUND)
        publish(self._port, [Sent("n", b"%d".ljust(PAYLOAD_BYTES) % number) for number in numbers])
        self.count = numbers.stop


@pytest.fixture
def start_driver(spark_environment: None, tmp_path: Path) -> Iterator[Callable[[Path, str], Driver]]:
    """Starts drivers that go on with each other's work; none is left at the end."""
    started: list[Driver] = []

    def start(data: Path, tier: str) -> Driver:
        env = {"DRAIN_TIER": tier, "DRAIN_ROWS": str(ROWS)}
        started.append(Driver(str(data), tmp_path / "work", "local[2]", env=env))
        return started[-1]

    yield start
    for driver in started:
        if driver.process.poll() is None:
            driver.kill()


def drop(data: Path, publisher: Publisher, share_of_it: int) -> None:
    """Publish until retention has dropped so much more."""
    base = LogFolder(str(data)).base()
    while LogFolder(str(data)).base() < base + share_of_it:
        publisher.more()


@pytest.mark.nightly
@pytest.mark.catalogue("N51")
def test_kill_the_driver_over_the_seam(
    spark: SparkSession, start_driver: Callable[[Path, str], Driver], penstock_server: ServerFactory, tmp_path: Path
) -> None:
    tier = str(tmp_path / "fleet")
    server = penstock_server(settings=SMALL | {"tier.url": tier, "tier.commit_s": 1}, flush="async")
    publisher, chance = Publisher(server.port), random.Random(5)
    drop(server.data, publisher, 600_000)
    for number in range(KILLS):
        driver = start_driver(server.data, tier)
        driver.wait_for_batches(driver.batches() + 2)
        publisher.more()
        if number % 2:
            driver.wait_until_sunk()
        else:
            time.sleep(chance.uniform(0, 0.5))  # anywhere in a batch
        driver.kill()
        drop(server.data, publisher, 300_000)
    driver = start_driver(server.data, tier)
    driver.wait_for_batches(driver.batches() + 1)
    driver.finish()
    rows = spark.read.parquet(str(tmp_path / "work" / "sink")).collect()
    found = sorted((row.queue_offset, int(bytes(row.payload))) for row in rows)
    assert found == [(number, number) for number in range(publisher.count)]
