"""`penstock serve` that is replaced: what the next process reads, and who has the store meanwhile."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.support.server_process import free_port
from tests.support.upgraded_gateway import SignalledProcess

MOST_S = 0.3
"""From when the next process is ready until something is killed: by then it serves, as a rule."""


class UpgradedStoreServer(SignalledProcess):
    """One process with its store; clients connect at `port`."""

    def __init__(
        self, folder: Path, settings: Mapping[str, object], listen: Sequence[str] = (), notify: str = ""
    ) -> None:
        """`listen`: if not at `port` alone; `notify`: the socket of a service manager."""
        self.data, self.port = folder / "data", free_port()
        self._listen = listen or [f"mqtt://127.0.0.1:{self.port}"]
        self._config = folder / "server.toml"
        self.configure()
        environment = {"NOTIFY_SOCKET": notify} if notify else {}
        super().__init__(folder / "server.log", ["serve", "--config", str(self._config)], settings, environment)

    def configure(self, data: Path | None = None, more: str = "", ports: tuple[int, ...] = ()) -> None:
        """What the next process reads: another folder, `more` lines at the end, other `ports`."""
        urls = [f"mqtt://127.0.0.1:{port}" for port in ports] or self._listen
        listen = ", ".join(f'"{url}"' for url in urls)
        self._config.write_text(f'[store]\ndata = "{data or self.data}"\n[gateway]\nlisten = [{listen}]\n{more}\n')

    @contextmanager
    def having_closed(self) -> Iterator[int]:
        """Ask for an upgrade, and stop the next process when it is ready and the store is closed. Yields its pid."""
        before = self._ready()
        self.ask()
        following = self.next_process()
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_for(lambda: self._ready() > before)
        os.kill(following, signal.SIGSTOP)
        os.kill(self.pid, signal.SIGCONT)
        self.wait_for(self._is_closed)
        yield following
        with suppress(ProcessLookupError):
            os.kill(following, signal.SIGCONT)

    @contextmanager
    def locked_once_closed(self) -> Iterator[int]:
        """As having_closed(), and have the lock of the folder when the next process goes on."""
        with ExitStack() as having:
            with self.having_closed() as following:
                having.enter_context(self.locked())
            yield following

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Have the lock of the data folder, which nobody else has. Raises BlockingIOError."""
        lock = os.open(self.data / "LOCK", os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(lock)

    def _is_closed(self) -> bool:
        with suppress(BlockingIOError), self.locked():
            return True
        return False

    def _ready(self) -> int:
        return len(self.said("ready to take over"))


class KilledUpgrades(UpgradedStoreServer):
    """One that is asked for an upgrade in place of a restart, and one of the two processes is killed at some moment."""

    def __init__(self, folder: Path, settings: Mapping[str, object], seed: int) -> None:
        self._rng = random.Random(seed)
        self.outcomes: list[str] = []
        super().__init__(folder, settings)

    def restart(self) -> None:
        """Who serves then is found out; if nobody does, a new one is started."""
        before, failed, took = self._ready(), len(self.said("this process goes on")), len(self.said("took over"))
        self.ask()
        old, following = self.pid, self.next_process()
        victim, moment_s = self._rng.choice((old, following)), self._rng.uniform(0, MOST_S)
        self.wait_for(lambda: self._ready() > before)
        time.sleep(moment_s)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self.wait_for(lambda: self.is_gone(victim))
        if victim == following:
            self.wait_for(lambda: self.is_gone(old) or len(self.said("this process goes on")) > failed)
        else:
            self.wait_for(lambda: self.is_gone(following) or len(self.said("took over")) > took)
        left = [pid for pid in (old, following) if not self.is_gone(pid)]
        names = {old: "the old one goes on", following: "the next one goes on"}
        self.outcomes.append(names[left[0]] if left else "nobody serves")
        if left:
            (self.pid,) = left
        else:
            self.start()
