"""One Spark session for all tests of this folder (it takes some ten seconds), and a server whose folder they read."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.server_process import ROOT, PenstockServer, ServeOptions
from tests.spark.fleet import Fleet

DEBIAN_JAVA = Path("/usr/lib/jvm/java-17-openjdk-amd64")
CONFIG: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if not (shutil.which("java") or os.environ.get("JAVA_HOME") or DEBIAN_JAVA.exists()):
        pytest.skip("java is missing; apt-get install openjdk-17-jre-headless")
    with pytest.MonkeyPatch.context() as patch:
        if DEBIAN_JAVA.exists() and "JAVA_HOME" not in os.environ:
            patch.setenv("JAVA_HOME", str(DEBIAN_JAVA))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # where Spark's Python processes find the source
        builder = SparkSession.builder.master("local[2]").config(map=CONFIG)
        session = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse"))).getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A server with small segments that has what `fleet.published` says, and goes on running."""
    folder = tmp_path_factory.mktemp("fleet")
    small = {"store.segment_bytes": 65536, "gateway.maximum_packet_size_bytes": 30000}
    options = ServeOptions({"flush": "async"}, small)
    server = PenstockServer(folder / "data", folder / "server.log", options)
    try:
        yield Fleet(server)
    finally:
        server.kill()
