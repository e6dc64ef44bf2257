"""A Penstock process that can be killed, stopped, and started again with the same address."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from loadtest.ports import START_TIMEOUT_S, STOP_TIMEOUT_S

CODE = Path(__file__).parents[2]
"""The folder of this code, so that started processes run the same."""
ADMIN = ["--admin", "127.0.0.1:0"]


class Part:
    """One process; its construction waits until it is ready. start() begins it again, with the same address."""

    says = "ready"
    module = "penstock"

    def __init__(
        self,
        log: Path,
        command: list[str],
        settings: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
        admin: bool = True,
    ) -> None:
        """`admin`: give it an admin endpoint on a free port, unless it has one."""
        self._log = log
        self._command = command
        self._settings = settings
        self._admin = [] if not admin or "--admin" in command or "admin" in settings else ADMIN
        self._is_paused = False
        self.environment = dict(environment or {})  # extra environment for the next start
        self.process: subprocess.Popen[bytes]
        self.start()

    @property
    def is_running(self) -> bool:
        return not self._is_paused and self.process.poll() is None

    def start(self) -> None:
        self._log.touch()
        already_logged_bytes = self._log.stat().st_size
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.module, *self._command, *self._admin],
                cwd=CODE,
                env=environment(self._settings) | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt in a terminal is for the parent only
            )
        try:
            self._wait_until_ready(already_logged_bytes)
        except BaseException:  # such as Ctrl-C
            self.kill()
            raise

    def _wait_until_ready(self, already_logged_bytes: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            exited = self.process.poll() is not None
            logged = self._log.read_bytes()[already_logged_bytes:].decode(errors="replace")
            if re.search(rf"^{self.says} .*\n", logged, re.MULTILINE):
                return
            if exited or time.monotonic() > deadline:
                raise RuntimeError(f"{self._command} did not become ready:\n{logged}")
            time.sleep(0.02)

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def metric(self, name: str) -> int:
        """A value of its admin endpoint, by metric name with labels."""
        admin = re.findall(r"^admin (\S+)", self.log_text(), re.MULTILINE)[-1]
        with urllib.request.urlopen(f"{admin}/metrics") as answer:
            found = re.search(rf"^{re.escape(name)} (\S+)", answer.read().decode(), re.MULTILINE)
        if found is None:
            raise KeyError(name)
        return int(float(found[1]))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def restart(self) -> None:
        """Kill with SIGKILL, and start again."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Send SIGSTOP: its sockets stay open, and it sends nothing."""
        self._is_paused = True
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self._is_paused = False

    def terminate(self) -> None:
        """Send SIGTERM, and check that it exits with 0."""
        self.process.send_signal(signal.SIGTERM)
        if status := self.process.wait(STOP_TIMEOUT_S):
            raise RuntimeError(f"{self._command} exited with {status}:\n{self.log_text()}")


def environment(settings: Mapping[str, object]) -> dict[str, str]:
    """The environment of a process with these settings, by path: {"store.segment_bytes": 1_048_576}; without PENSTOCK_
    variables of this process. A server has no console unless a setting of the console is given.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    is_shown = any(path.startswith("console.") for path in settings)
    given = settings if is_shown else {**settings, "console.enabled": "false"}
    return inherited | {"PENSTOCK_" + path.replace(".", "__").upper(): str(value) for path, value in given.items()}
