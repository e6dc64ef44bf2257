"""Brokers that a comparison starts itself, each in a folder of its own, on this machine's loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from loadtest.devices.address import BrokerAddress
from loadtest.errors import LoadTestError
from loadtest.ports import free_port
from loadtest.resources import family

START_S = 60.0
ENDING = (signal.SIGTERM, signal.SIGINT)
STOP_S = 20.0
HOST = "127.0.0.1"
MOST_WORDS = 3  # of a broker's version text
SBIN = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/lib/rabbitmq/bin"
"""Debian installs brokers outside of a user's PATH."""


class Start(NamedTuple):
    """The command that starts a broker."""

    command: Sequence[str]
    environment: Mapping[str, str] = {}
    beside: Sequence[str] = ()
    """A program that the broker needs, and would otherwise start and leave behind."""
    beside_port: int = 0


class BrokerKind(NamedTuple):
    """A broker with its settings. `prepare` writes its files into a folder, for a port and a second one."""

    name: str
    settings: str
    program: str
    version: Sequence[str]
    prepare: Callable[[Path, int, int], Start]
    speaks_mqtt: bool = True

    @property
    def is_installed(self) -> bool:
        return found_program(self.program) is not None

    def version_text(self) -> str:
        """The first line of the version command's output with a number in it."""
        command = [found_program(self.version[0]) or self.version[0], *self.version[1:]]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line.strip() for line in (said.stdout + said.stderr).splitlines()]
        found = next((line for line in lines if any(map(str.isdigit, line))), "")
        return " ".join(found.split()[:MOST_WORDS])


def found_program(program: str) -> str | None:
    return shutil.which(program, path=SBIN)


# --- brokers to compare


def penstock(*options: str) -> Callable[[Path, int, int], Start]:
    """`penstock serve` with these options."""

    def prepare(folder: Path, port: int, _: int) -> Start:
        fixed = ["--data", str(folder / "data"), "--listen", f"mqtt://{HOST}:{port}", "--log-level", "warning"]
        fixed.append("--no-console")
        return Start([sys.executable, "-P", "-m", "penstock", "serve", *fixed, *options])

    return prepare


def _mosquitto(config: str) -> Callable[[Path, int, int], Start]:
    def prepare(folder: Path, port: int, _: int) -> Start:
        lines = [f"listener {port} {HOST}", "allow_anonymous true", "log_type error", "max_queued_messages 0"]
        lines += ["max_inflight_messages 0", config.format(folder=folder)]
        if os.geteuid() == 0:
            lines.append("user root")  # otherwise it becomes a user that cannot write here
        (folder / "mosquitto.conf").write_text("\n".join([*lines, ""]))
        return Start(["mosquitto", "-c", str(folder / "mosquitto.conf")])

    return prepare


def _amqtt(folder: Path, port: int, _: int) -> Start:
    (folder / "amqtt.yaml").write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: {HOST}:{port}\n    max_connections: 100000\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
    )
    return Start([str(Path(sys.executable).parent / "amqtt"), "-c", str(folder / "amqtt.yaml")])


def _rabbitmq(folder: Path, port: int, other_port: int) -> Start:
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp = none\nmqtt.listeners.tcp.1 = {HOST}:{port}\nmqtt.allow_anonymous = true\n"
        f"mqtt.exchange = amq.topic\ndistribution.listener.interface = {HOST}\nlog.console = false\n"
    )
    (folder / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
    epmd_port = free_port()
    (folder / ".erlang.cookie").write_text("LOADTEST")
    (folder / ".erlang.cookie").chmod(0o400)
    environment = {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"loadtest{port}@localhost",
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_DIST_PORT": str(other_port),
        "ERL_EPMD_ADDRESS": HOST,
        "ERL_EPMD_PORT": str(epmd_port),
    }
    return Start(["/usr/lib/rabbitmq/bin/rabbitmq-server"], environment, ["epmd"], epmd_port)


def _redis(fsync: str) -> Callable[[Path, int, int], Start]:
    def prepare(folder: Path, port: int, _: int) -> Start:
        own = ["--port", str(port), "--bind", HOST, "--dir", str(folder), "--save", ""]
        return Start(["redis-server", *own, "--appendonly", "yes", "--appendfsync", fsync])

    return prepare


_PENSTOCK_VERSION = (sys.executable, "-P", "-m", "penstock", "--version")
KINDS: Mapping[str, BrokerKind] = {
    "penstock": BrokerKind(
        "Penstock", "one process, flush async", sys.executable, _PENSTOCK_VERSION, penstock("--flush", "async")
    ),
    "penstock-sync": BrokerKind(
        "Penstock sync", "one process, flush sync", sys.executable, _PENSTOCK_VERSION, penstock("--flush", "sync")
    ),
    "penstock-apart": BrokerKind(
        "Penstock apart",
        "a store and two gateways, flush async",
        sys.executable,
        _PENSTOCK_VERSION,
        penstock("--flush", "async", "--gateways", "2"),
    ),
    "mosquitto": BrokerKind(
        "Mosquitto", "in memory, no queue limits", "mosquitto", ("mosquitto", "-h"), _mosquitto("persistence false")
    ),
    "mosquitto-safe": BrokerKind(
        "Mosquitto safest",
        "persistence, saved after each change",
        "mosquitto",
        ("mosquitto", "-h"),
        _mosquitto("persistence true\npersistence_location {folder}/\nautosave_interval 1\nautosave_on_changes true"),
    ),
    "amqtt": BrokerKind(
        "amqtt",
        "as it comes",
        str(Path(sys.executable).parent / "amqtt"),
        (sys.executable, "-c", "from importlib.metadata import version; print(version('amqtt'))"),
        _amqtt,
    ),
    "rabbitmq": BrokerKind(
        "RabbitMQ", "MQTT plug-in as it comes", "rabbitmq-server", ("dpkg-query", "-W", "rabbitmq-server"), _rabbitmq
    ),
    "redis": BrokerKind(
        "Redis Streams",
        "append-only file, synced every second",
        "redis-server",
        ("redis-server", "--version"),
        _redis("everysec"),
        speaks_mqtt=False,
    ),
    "redis-sync": BrokerKind(
        "Redis Streams sync",
        "append-only file, synced before each answer",
        "redis-server",
        ("redis-server", "--version"),
        _redis("always"),
        speaks_mqtt=False,
    ),
}


# --- running


@contextmanager
def _held_back() -> Iterator[None]:
    """Hold back signals that end this process: a broker that was just started and is not recorded yet would stay
    behind. A signal mask of the main thread is not enough, since another thread may take the signal.
    """
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


class RunningBroker:
    """A broker's processes, from start() to stop() or kill(); can be started again on the same folder."""

    def __init__(self, kind: BrokerKind, folder: Path, cores: set[int]) -> None:
        """`cores`: the cores that it may run on; empty: all."""
        self.kind = kind
        self.address = BrokerAddress(HOST, free_port())
        self._folder = folder
        self._cores = cores
        self._other_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._beside: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> list[int]:
        return [self._process.pid] if self._process is not None else []

    def start(self) -> None:
        """Start; returns when the broker accepts connections. Raises LoadTestError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        start = self.kind.prepare(self._folder, self.address.port, self._other_port)
        log_path = self._folder / "output"
        if start.beside:
            with _held_back():
                self._beside = self._popen(start.beside, start.environment, log_path)
        until_s = time.monotonic() + START_S
        while self._beside is not None and not _accepts(BrokerAddress(HOST, start.beside_port)):
            if self._beside.poll() is not None or time.monotonic() > until_s:
                break  # the broker's own error says what it lacks
            time.sleep(0.05)
        with _held_back():
            self._process = self._popen(start.command, start.environment, log_path)
        while not _accepts(self.address):
            if self._process.poll() is not None or time.monotonic() > until_s:
                said = log_path.read_text(errors="replace").strip().splitlines()
                self.kill()
                raise LoadTestError(f"{self.kind.name} does not start: {said[-1] if said else 'it says nothing'}")
            time.sleep(0.05)

    def _popen(self, command: Sequence[str], environment: Mapping[str, str], log_path: Path) -> subprocess.Popen[bytes]:
        with log_path.open("ab") as log:
            return subprocess.Popen(
                [found_program(command[0]) or command[0], *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=self._begin,
            )

    def _begin(self) -> None:
        if self._cores:
            os.sched_setaffinity(0, self._cores)

    def kill(self) -> None:
        """Send SIGKILL to all of its processes at once."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, by: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._end_family(process, by)
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.kill()
            beside.wait()

    @staticmethod
    def _end_family(process: subprocess.Popen[bytes], by: signal.Signals) -> None:
        everybody = family([process.pid])
        for each in everybody if by is signal.SIGKILL else {p for p in everybody if p.pid == process.pid}:
            with suppress(ProcessLookupError):
                os.kill(each.pid, by)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for each in everybody:  # processes that are still there
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)


@contextmanager
def running(kind: BrokerKind, folder: Path, cores: set[int]) -> Iterator[RunningBroker]:
    """Read results. Raises LoadTestError."""
    broker = RunningBroker(kind, folder, cores)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def _accepts(address: BrokerAddress) -> bool:
    with suppress(OSError), socket.create_connection(address[:2], 1):
        return True
    return False
