"""Processes that are replaced: what their log says; who serves now, and the end of all of them."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from loadtest.chaos.part import Part

PATIENCE_S = 90


class UpgradedProcess(Part):
    """One whose log tells how an upgrade goes."""

    def said(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.log_text())

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.log_text()[-3_000:]
            time.sleep(0.01)


class SignalledProcess(UpgradedProcess):
    """One that replaces itself when it is asked to. The settings are in a file: the next process may have others."""

    def __init__(
        self,
        log: Path,
        command: list[str],
        settings: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._seen: list[int] = []
        self._companions: set[int] = set()  # the console, ...
        self.pid = 0
        super().__init__(log, command, settings, environment)

    def start(self) -> None:
        super().start()
        self.pid = self.process.pid
        self._seen.append(self.pid)

    def ask(self) -> None:
        """Ask for an upgrade, and do not wait."""
        self._companions = self._children()
        os.kill(self.pid, signal.SIGUSR2)

    def next_process(self) -> int:
        """The process that was started to be the next one."""
        self.wait_for(lambda: self._children() - self._companions)
        (child,) = self._children() - self._companions
        self._seen.append(child)
        return child

    def _children(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.pid).children()}

    def upgrade(self) -> None:
        """Wait until another process serves, and this one is gone."""
        before = len(self.said(r"process \d+ serves"))
        self.ask()
        self.wait_for(lambda: len(self.said(r"process \d+ serves")) > before)
        old, self.pid = self.pid, int(self.said(r"process (\d+) serves")[-1])
        self._seen.append(self.pid)
        self.wait_for(lambda: self.is_gone(old))

    def fails(self, *steps: Callable[[], object]) -> str:
        """An upgrade after which this process goes on; `steps`: what is done meanwhile. Returns what it says."""
        before = len(self.said(r"this process goes on"))
        self.ask()
        for step in steps:
            step()
        self.wait_for(lambda: len(self.said(r"this process goes on")) > before)
        return self.said(r"upgrade: (.*); this process goes on")[-1]

    def kill(self) -> None:
        for pid in self._seen:
            if not self.is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def is_gone(self, pid: int) -> bool:
        if pid == self.process.pid:
            return self.process.poll() is not None
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


class UpgradedGateway(SignalledProcess):
    def __init__(
        self, folder: Path, store_url: str, listen: Sequence[str], settings: Mapping[str, object], notify: str = ""
    ) -> None:
        """`notify`: the socket of a service manager."""
        self._config = folder / "gateway.toml"
        self.configure(store_url, listen)
        environment = {"NOTIFY_SOCKET": notify} if notify else {}
        super().__init__(folder / "gateway.log", ["gateway", "--config", str(self._config)], settings, environment)

    def configure(self, store_url: str, listen: Sequence[str]) -> None:
        """What the next process reads."""
        urls = ", ".join(f'"{url}"' for url in listen)
        self._config.write_text(f'[gateway]\nstore = "{store_url}"\nlisten = [{urls}]\n')
