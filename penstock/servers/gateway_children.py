"""The gateways of `penstock serve --gateways N`: each can be replaced by a process of another release that takes its
clients over.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress

from penstock.servers.children import NOTHING_MORE, Child
from penstock.servers.handover.next_process import REPLACED_BY, SUCCEEDS, tell_gateway
from penstock.servers.logs import announced
from penstock.servers.process import Stop

log = logging.getLogger("penstock")


class GatewayChild(Child):
    """Two processes have its name while one replaces the other. The new one is followed once it is ready."""

    def __init__(self, name: str, arguments: list[str], grace_s: float, fds: tuple[int, ...]) -> None:
        super().__init__(name, arguments, grace_s, fds)
        self._sockets: dict[int, socket.socket] = {}  # to each process, by its id
        self._next: Process | None = None
        self._replacement: asyncio.Future[Process | None] | None = None
        self._is_followed = asyncio.Event()
        self._missed: list[signal.Signals] = []

    async def replace(self) -> bool:
        """Have a process of the release that is installed now take over. Whether it did: if not, the log of the
        gateway says why.
        """
        if self._ending.is_set() or not self._running():
            log.error("upgrade: %s does not run", self.name)
            return False
        self._replacement = asyncio.get_running_loop().create_future()
        self._is_followed.clear()
        self._missed.clear()
        following: Process | None = None
        try:
            following = await self._serving()
        finally:
            self._replacement.set_result(following)
            if following is None:
                self._next = self._replacement = None
        if following is None:
            return False
        await self._is_followed.wait()
        for number in self._missed:
            self.send_signal(number)
        return True

    async def following(self) -> Process | None:
        if self._replacement is None:
            return None
        found = await self._replacement
        self._next = self._replacement = None
        self._is_followed.set()
        return found

    def processes(self) -> list[Process]:
        return [*super().processes(), *([self._next] if self._next is not None else [])]

    def send_signal(self, number: signal.Signals) -> None:
        super().send_signal(number)
        if self._replacement is not None:
            self._missed.append(number)  # for the next process, which may have read its files before

    async def _serving(self) -> Process | None:
        """A process that has taken over; None if it ended instead."""
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with own, other:
            try:
                process = await self._spawn({SUCCEEDS: str(other.fileno())}, (other.fileno(),))
            except OSError as error:
                log.error("upgrade: %s: the next process cannot be started: %s", self.name, error.strerror or error)
                return None
            self._next = process
            with suppress(OSError, KeyError):  # the old one is gone: the new one finds the pair closed, and ends
                if not self._ending.is_set():
                    tell_gateway(self._sockets[self._process.pid], own, process.pid)
        assert process.stdout is not None
        async for line in process.stdout:
            if announced(line)[0] == "ready":
                return process
        await self._over(process)
        return None

    async def _spawn(self, more: Mapping[str, str] = NOTHING_MORE, fds: tuple[int, ...] = ()) -> Process:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.setblocking(False)
        with other:
            try:
                process = await super()._spawn({**more, REPLACED_BY: str(other.fileno())}, (*fds, other.fileno()))
            except OSError:
                own.close()
                raise
        self._sockets[process.pid] = own
        return process

    async def _follow(self, process: Process) -> None:
        await super()._follow(process)
        await self._over(process)

    async def _over(self, process: Process) -> None:
        await process.wait()
        self._sockets.pop(process.pid).close()


class Replacements:
    """Replaces gateways one after the other; ask() begins it."""

    def __init__(self, gateways: Sequence[GatewayChild], stop: Stop) -> None:
        self._gateways = gateways
        self._stop = stop
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        if self._task is not None and not self._task.done():
            log.warning("upgrade: one is going on already")
        elif not all(each.ready.is_set() for each in self._gateways):
            log.warning("upgrade: the gateways have not started so far")
        else:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def end(self) -> None:
        """Wait for its end, after that of the gateways."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        log.info("upgrade: replacing %d gateways", len(self._gateways))
        for place, gateway in enumerate(self._gateways):
            if self._stop.is_asked:
                return
            if not await gateway.replace():
                kept = len(self._gateways) - place
                log.error("upgrade: %s was not replaced, so %d gateways stay as they are", gateway.name, kept)
                return
        log.info("upgrade: all %d gateways were replaced", len(self._gateways))
