"""Real server processes for tests: penstock's own, and Debian's mosquitto."""

from __future__ import annotations

import copy
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from loadtest.chaos.part import environment
from loadtest.ports import START_TIMEOUT_S as START_TIMEOUT_S
from loadtest.ports import STOP_TIMEOUT_S as STOP_TIMEOUT_S
from loadtest.ports import free_port as free_port
from loadtest.ports import wait_for_port as wait_for_port

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class ServeOptions:
    """What a server is started with. `settings` are by path: {"store.segment_bytes": 1_048_576}."""

    flags: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        return [f"--{name.replace('_', '-')}={value}" for name, value in self.flags.items()]

    def environment(self) -> dict[str, str]:
        return environment(self.settings)


class PenstockServer:
    """`penstock serve` as a subprocess; once constructed it has said that it is ready."""

    def __init__(self, data: Path, log: Path, options: ServeOptions) -> None:
        self.data = data
        self._listen = str(options.settings.get("gateway.listen", ""))  # else on a free port
        self._doors: list[list[str]] = []
        self._turns = itertools.count()
        self._log = log
        self._options = options
        self.prefix: tuple[str, ...] = ()  # what the next start is wrapped in: strace and its options
        self.process: subprocess.Popen[bytes]
        self._start()

    @property
    def urls(self) -> list[str]:
        """As it says them, in their order; of gateways with addresses of their own it is each time the next one's."""
        return self._doors[next(self._turns) % len(self._doors)]

    @property
    def port(self) -> int:
        """For plain MQTT, 0 if there is none; of gateways with ports of their own it is each time the next one's."""
        return plain_port(self.urls)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def one_gateway(self) -> PenstockServer:
        """The same for clients that all go to one gateway."""
        same = copy.copy(self)
        same._doors = [self.urls]
        return same

    def log_text(self) -> str:
        """Everything that it, and its predecessors on this folder, wrote to stdout and stderr."""
        return self._log.read_text(errors="replace")

    def gateway_logs(self) -> list[str]:
        """Of each process that has a log of its own, and clients."""
        return [self.log_text()]

    def gateways(self) -> list[psutil.Process]:
        """The processes that clients are connected to."""
        children = [child for child in _children(self.process) if "gateway" in child.cmdline()]
        return children or [psutil.Process(self.process.pid)]

    def signal(self, number: signal.Signals) -> None:
        """To the process that looks after the others, or to each gateway."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: nothing gets the chance to clean up, nor has its processes, if it has some."""
        children = _children(self.process)
        self.process.kill()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.wait(STOP_TIMEOUT_S)
        psutil.wait_procs(children, STOP_TIMEOUT_S)

    def terminate(self) -> None:
        """SIGTERM, which it must answer by exiting with 0."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(STOP_TIMEOUT_S) == 0, self.log_text()

    def restart(self, settings: Mapping[str, object] | None = None, **flags: str) -> None:
        """Starts again on the same folder and port with these changes; kills it if it runs."""
        self.kill()
        old = self._options
        self._options = ServeOptions({**old.flags, **flags}, {**old.settings, **(settings or {})})
        self._start()

    def _start(self) -> None:
        self._log.touch()
        already_logged_bytes = self._log.stat().st_size
        # None of port 0: an outgoing connection could get it while the server is down.
        listen = self.url if self._doors else f"mqtt://127.0.0.1:{free_port()}"
        own = [f"--data={self.data}", *([] if self._listen else [f"--listen={listen}"])]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "penstock", "serve", *own, *self._options.arguments()],
                cwd=ROOT,
                env=self._options.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._doors = [self._wait_until_ready(already_logged_bytes)]
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _wait_until_ready(self, already_logged_bytes: int) -> list[str]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            exited = self.process.poll() is not None
            logged = self._log.read_bytes()[already_logged_bytes:].decode(errors="replace")
            ready = ready_urls(logged)
            if len(ready) > self._listen.count(","):
                return ready
            if exited:
                raise RuntimeError(f"penstock serve exited with {self.process.returncode}:\n{logged}")
            time.sleep(0.02)
        raise RuntimeError(f"penstock serve said no `ready` line in {START_TIMEOUT_S} s:\n{logged}")


def ready_urls(logged: str) -> list[str]:
    """Where a process says that it listens for clients, in text or in JSON."""
    return re.findall(r'^(?:\{.*"message": ")?ready (\S+) \S+=.*\n', logged, re.MULTILINE)


def plain_port(urls: Sequence[str]) -> int:
    """Of the first that is plain MQTT; 0 if none is."""
    plain = [url.rpartition(":")[2] for url in urls if url.startswith("mqtt://")]
    return int(plain[0].partition("?")[0]) if plain else 0


def _children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return [child for child in psutil.Process(process.pid).children() if "penstock" in " ".join(child.cmdline())]
    except psutil.Error:  # it is gone, and theirs is the same fate
        return []


def find_mosquitto() -> str | None:
    return shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")


def start_mosquitto(port: int, folder: Path, extra_config: str = "") -> subprocess.Popen[bytes]:
    mosquitto = find_mosquitto()
    assert mosquitto, "mosquitto is missing; apt-get install mosquitto"
    config = folder / f"mosquitto-{port}.conf"
    # As root it would become a user who may not read files below pytest's tmp_path.
    lines = [f"listener {port} 127.0.0.1", "user root", "allow_anonymous true", extra_config]
    config.write_text("\n".join(lines))
    process = subprocess.Popen([mosquitto, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_port(port, process)
    return process
