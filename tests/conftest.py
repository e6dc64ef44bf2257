"""Fixtures for all tests; the processes behind them are in server_process.py."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import server_process
from tests.support.apart_server import ApartServer
from tests.support.server_process import PenstockServer, ServeOptions

# Programs that tests start have no console, unless a test asks for one, which then has port 0.
os.environ["PENSTOCK_CONSOLE__ENABLED"] = "false"
# Where it is set, each of them would compile its modules anew, which takes as long as the rest of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

EXAMPLES = {"quick": 20, "day": 50, "night": 300}  # of each property: make quick, make test, make nightly
for profile, examples in EXAMPLES.items():
    settings.register_profile(profile, deadline=None, max_examples=examples)  # no deadline: a test is no benchmark
settings.load_profile("day")


@dataclass(frozen=True)
class Topology:
    """Which processes a server is made of."""

    kind: type[PenstockServer] = PenstockServer
    flags: Mapping[str, str] = field(default_factory=dict)


# For tests that kill: what is gone is given up soon, so that its sessions can be had by others.
QUICK = {"wire.heartbeat_ms": 100, "wire.lease_ms": 600}
QUICK_SEEDS = 2
TOPOLOGIES = {
    "one process": Topology(),
    "unix socket": Topology(flags={"gateways": "1"}),
    "two gateways": Topology(ApartServer),
    "shared port": Topology(flags={"gateways": "2"}),
}
"""`two gateways` have ports of their own, and clients go to them in turn; at a `shared port` the system chooses."""


IN_ALL_TOPOLOGIES = pytest.mark.topologies("one process", "two gateways", nightly=("unix socket",))
BROKERS = frozenset(("kafka", "kafka_cluster", "rabbitmq"))
"""Fixtures: a broker of Kafka, three of them, and RabbitMQ. Each takes seconds to start and 100 to 300 MB a broker."""
SHARED_PORT = pytest.mark.topologies("one process", "shared port")
SHARED_PORT_BY_NIGHT = pytest.mark.topologies("one process", nightly=("shared port",))
ONE_PROCESS_BY_DAY = pytest.mark.topologies("one process", nightly=("two gateways", "unix socket"))
"""For what a gateway does by itself, such as a login: docs/testing.md says what covers two gateways by day."""
ONE_PROCESS = pytest.mark.topologies("one process")

KILLED_WITH_EITHER_FLUSH = pytest.mark.parametrize("flush", ["async", pytest.param("sync", marks=pytest.mark.nightly)])
"""`async` acknowledges earlier, so a kill has more to take; kills under load run with both by day."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The mark of a module counts for those of its tests that start servers; a test's own goes before."""
    mark = metafunc.definition.get_closest_marker("topologies")
    if mark is not None and "topology" in metafunc.fixturenames:
        nightly = [pytest.param(name, marks=pytest.mark.nightly) for name in mark.kwargs.get("nightly", ())]
        # The servers that its tests share are a module's.
        metafunc.parametrize("topology", [*mark.args, *nightly], scope="module")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests that are repeated with other seeds, `make quick` runs a few. Tests of one broker share its process."""
    for item in items:
        for name in BROKERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kafka)
            item.add_marker(pytest.mark.xdist_group(name))
        call = getattr(item, "callspec", None)
        if call is not None and call.indices.get("seed", 0) >= QUICK_SEEDS:
            item.add_marker(pytest.mark.slow)


@dataclass
class ServerFactory:
    """Call it to start a server; see `penstock_server`."""

    folder: Path
    topology: str
    started: list[PenstockServer] = field(default_factory=list)

    def __call__(
        self,
        data: Path | None = None,
        settings: Mapping[str, object] | None = None,
        **flags: str,
    ) -> PenstockServer:
        number = len(self.started)
        made_of = TOPOLOGIES[self.topology]
        server = made_of.kind(
            data or self.folder / f"data-{number}",
            self.folder / f"server-{number}.log",
            ServeOptions({**made_of.flags, **flags}, settings or {}),
        )
        self.started.append(server)
        return server

    def kill_all(self) -> None:
        for server in self.started:
            server.kill()


class SharedServers:
    """Call it for a running server; the same settings give the same one."""

    def __init__(self, start: ServerFactory) -> None:
        self._start = start
        self._running: dict[str, PenstockServer] = {}

    def __call__(self, settings: Mapping[str, object] | None = None, **flags: str) -> PenstockServer:
        key = repr((sorted(flags.items()), sorted((settings or {}).items())))
        if key not in self._running:
            self._running[key] = self._start(None, settings, **flags)
        return self._running[key]


@pytest.fixture(scope="module")
def topology() -> str:
    """Which processes a server is made of; tests marked IN_ALL_TOPOLOGIES run with each."""
    return "one process"


@pytest.fixture
def seed() -> int:
    """Every random choice of a test comes from it; PENSTOCK_CRASH_SEED=17 repeats or varies a run."""
    return int(os.environ.get("PENSTOCK_CRASH_SEED", "1"))


@pytest.fixture
def penstock_server(tmp_path: Path, topology: str) -> Iterator[ServerFactory]:
    """Starts servers on folders and ports of their own; they are killed at the end of the test.

    penstock_server(flush="async", settings={"gateway.sys_interval_s": 1})
    """
    factory = ServerFactory(tmp_path, topology)
    yield factory
    factory.kill_all()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory, topology: str) -> Iterator[SharedServers]:
    """Servers for all tests of a module that neither end them nor change their files. What a test leaves there, a
    retained message or a session, others find: it takes names of its own, or takes it away."""
    factory = ServerFactory(tmp_path_factory.mktemp("shared"), topology)
    yield SharedServers(factory)
    factory.kill_all()


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
