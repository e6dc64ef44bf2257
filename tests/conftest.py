"""Fixtures for all tests; the processes behind them are in server_process.py."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings

from tests import server_process
from tests.server_process import PenstockServer, ServeOptions

settings.register_profile("shared machine", deadline=None)  # a test is no benchmark
settings.load_profile("shared machine")


@dataclass
class ServerFactory:
    """Call it to start a server; see `penstock_server`."""

    folder: Path
    flags: Mapping[str, str] = field(default_factory=dict)
    started: list[PenstockServer] = field(default_factory=list)

    def __call__(
        self,
        data: Path | None = None,
        settings: Mapping[str, object] | None = None,
        **flags: str,
    ) -> PenstockServer:
        number = len(self.started)
        server = PenstockServer(
            data or self.folder / f"data-{number}",
            self.folder / f"server-{number}.log",
            ServeOptions({**self.flags, **flags}, {**(QUICK if self.flags else {}), **(settings or {})}),
        )
        self.started.append(server)
        return server


# What is killed is given up soon, so that its sessions can be had by others.
QUICK = {"wire.heartbeat_ms": 100, "wire.lease_ms": 600}
TOPOLOGIES: dict[str, dict[str, str]] = {
    "one process": {},
    "unix socket": {"gateways": "1"},
    "two gateways": {"gateways": "2"},
}
IN_ALL_TOPOLOGIES = pytest.mark.parametrize("topology", TOPOLOGIES)
TOGETHER_AND_APART = pytest.mark.parametrize("topology", ["one process", "two gateways"])


@pytest.fixture
def topology() -> str:
    """Which processes a server is made of; tests marked IN_ALL_TOPOLOGIES run with each."""
    return "one process"


@pytest.fixture
def penstock_server(tmp_path: Path, topology: str) -> Iterator[ServerFactory]:
    """Starts servers on folders and ports of their own; they are killed at the end of the test.

    penstock_server(flush="async", settings={"gateway.sys_interval_s": 1})
    """
    factory = ServerFactory(tmp_path, TOPOLOGIES[topology])
    yield factory
    for server in factory.started:
        server.kill()


@pytest.fixture
def free_port() -> int:
    return server_process.free_port()


StartMosquitto = Callable[..., int]


@pytest.fixture
def start_mosquitto(tmp_path: Path) -> Iterator[StartMosquitto]:
    """Starts Debian's mosquitto with extra lines of configuration; gives the port."""
    if server_process.find_mosquitto() is None:
        pytest.skip("mosquitto is missing; apt-get install mosquitto")
    running = []

    def start(extra_config: str = "") -> int:
        port = server_process.free_port()
        running.append(server_process.start_mosquitto(port, tmp_path, extra_config))
        return port

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def mosquitto_port(start_mosquitto: StartMosquitto) -> int:
    """That of one which keeps what a subscriber is too slow for; by default it drops all but 1,000 messages."""
    return start_mosquitto("max_queued_messages 0\nmax_queued_bytes 0\n")
