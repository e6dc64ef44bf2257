"""One Spark session for the tests of this folder (it takes some ten seconds), and a server whose folder they read."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loadtest.chaos.cluster import Cluster
from tests.spark.fleet import Fleet
from tests.spark.session import environment, java_is_there, session_builder
from tests.support.server_process import PenstockServer, ServeOptions


@pytest.fixture(scope="session")
def spark_environment() -> Iterator[None]:
    if not java_is_there():
        pytest.skip("java is missing; apt-get install openjdk-17-jre-headless")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_environment: None) -> Iterator[SparkSession]:
    session = session_builder("local[2]", tmp_path_factory.mktemp("warehouse")).getOrCreate()
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


@pytest.fixture(scope="session")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A store and a gateway as processes of their own, with small segments and frames."""
    small = {
        "store.segment_bytes": 262144,
        "gateway.maximum_packet_size_bytes": 30000,
        "wire.max_frame_bytes": 262144,
        "wire.credit_bytes": 262144,
        "wire.token": "s3cret",
        "gateway.store_token": "s3cret",
    }
    cluster = Cluster(tmp_path_factory.mktemp("apart"), 1, small, wires=False)
    yield cluster
    cluster.close()


DRIVERS = {"test_executors.py", "test_kills.py", "test_sink_kills.py", "test_tier_kills.py"}
"""Most of what they do is to start drivers, processes of their own, and to wait for them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In two processes, each with a session, where tests run in several."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            group = "spark drivers" if item.path.name in DRIVERS else "spark"
            item.add_marker(pytest.mark.xdist_group(group))
