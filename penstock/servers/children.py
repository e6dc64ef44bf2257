"""Processes that another one starts, watches, starts again when they end, and takes with it at its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping

from penstock.errors import PenstockError
from penstock.servers.logs import announced
from penstock.servers.process import ALL_STOP, AT_ONCE, SUPERVISED, TICK_S, Stop

log = logging.getLogger("penstock")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
WELL_AFTER_S = 10.0  # after so long without an exit, a child is restarted at once again
NOTHING_MORE: Mapping[str, str] = {}


class ChildFailed(PenstockError):
    """A process that the start needs did not come up."""


class Child:
    """A supervised process, restarted whenever it ends. It ends with this one: its standard input is a pipe
    from here.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        grace_s: float,
        fds: tuple[int, ...] = (),
        environment: Mapping[str, str] = NOTHING_MORE,
    ) -> None:
        """`environment`: what it gets besides this process's, of which the settings are taken away."""
        self.name = name
        self.admin_url = ""  # of its admin endpoint, while it has one
        self._arguments = arguments
        self._grace_s = grace_s
        self._fds = fds
        self._environment = environment
        self._process: Process
        self._watching: asyncio.Task[None]
        self.ready = asyncio.Event()
        self._ending = asyncio.Event()

    async def start(self) -> None:
        self._process = await self._spawn()
        self._watching = asyncio.create_task(self._watch())

    async def is_ready(self, stop: Stop) -> bool:
        """Wait for its ready line; False if this process should stop first. Raises ChildFailed if the child ends
        instead.
        """
        while not self.ready.is_set():
            if self._watching.done() or self._process.returncode is not None:
                raise ChildFailed(f"the {self.name} process did not come up; see its lines above")
            if await stop.or_tick():
                return False
        return True

    async def end(self, stop: Stop) -> None:
        """Stop the child in good order, and kill it after a while; `stop` says whether to hurry."""
        self._ending.set()
        if not hasattr(self, "_process"):
            return
        self._say(ALL_STOP)
        deadline_s = time.monotonic() + self._grace_s
        was_urgent = False
        while self._running() and time.monotonic() < deadline_s:
            if stop.is_urgent and not was_urgent:
                was_urgent = True
                self._say(AT_ONCE)
            await asyncio.sleep(TICK_S)
        for process in self._running():
            log.error("%s does not end: killed", self.name)
            process.kill()
        await self._watching

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; a child that is still starting reads the new files anyway."""
        if self.ready.is_set() and self._process.returncode is None:
            self._process.send_signal(number)

    def processes(self) -> list[Process]:
        """The processes that there are under this name, or were last."""
        return [self._process]

    def _running(self) -> list[Process]:
        return [process for process in self.processes() if process.returncode is None]

    def _say(self, word: bytes) -> None:
        for process in self._running():
            stdin = process.stdin
            if stdin is not None and not stdin.is_closing():  # it closes a moment before there is a returncode
                stdin.write(word)

    async def _spawn(self, more: Mapping[str, str] = NOTHING_MORE, fds: tuple[int, ...] = ()) -> Process:
        """`more`, `fds`: of its environment and descriptors, besides what every process of this name has."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "penstock", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment | {SUPERVISED: self.name} | dict(self._environment) | dict(more),
            pass_fds=(*self._fds, *fds),
            start_new_session=True,  # Ctrl-C is for this process alone: gateways end before the store does
        )

    async def _watch(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            started_s = time.monotonic()
            await self._follow(self._process)
            if (following := await self.following()) is not None:
                self._process = following
                continue
            if self._ending.is_set() or not self.is_to_start_again(self._process.returncode):
                return
            if time.monotonic() - started_s > WELL_AFTER_S:
                pause_s = FIRST_PAUSE_S
            log.error("%s ended with %s: starting it again", self.name, self._process.returncode)
            await asyncio.sleep(pause_s)
            if self._ending.is_set():
                return
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._process = await self._spawn()

    async def _follow(self, process: Process) -> None:
        """Read the child's output until it ends."""
        assert process.stdout is not None
        async for line in process.stdout:
            self.heard(*announced(line))
        self.admin_url = ""
        await process.wait()

    async def following(self) -> Process | None:
        """The process that has replaced the one that ended; None if it just ended."""
        return None

    def heard(self, event: str, url: str) -> None:
        """It printed a line for scripts."""
        if event == "ready":
            self.ready.set()
        elif event == "admin":
            self.admin_url = url

    def is_to_start_again(self, exit_code: int | None) -> bool:
        """Whether it is started again after it ended; one that never was ready is not."""
        return self.ready.is_set()
