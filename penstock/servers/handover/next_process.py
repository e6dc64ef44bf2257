"""The process that replaces this one, as this one sees it; and how a supervisor tells a gateway of such a process.

A process without a supervisor starts the next one itself. A supervisor starts it in the gateway's place, since it has
to be the parent of both. It passes an end of the socket pair between the two to the old one, with a descriptor of the
process.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

from penstock.servers.handover.channel import Channel, HandOverStep, close_all

SUCCEEDS = "PENSTOCK_SUCCEEDS"
"""Environment variable of a process that replaces another one: the descriptor of its end of the socket pair."""
REPLACED_BY = "PENSTOCK_REPLACED_BY"
"""Environment variable of a supervised gateway: the descriptor where its supervisor tells it what replaces it."""
READY_S = 60.0
"""How long the next process may take to start."""


class NextProcess:
    """A process that somebody else started."""

    def __init__(self, channel: Channel, pid: int, process: int) -> None:
        """`process`: a descriptor of it."""
        self.channel = channel
        self.pid = pid
        self._process = process

    async def ready(self) -> None:
        """Wait until it has imported everything. Raises HandOverFailed."""
        self.channel.deadline_s = time.monotonic() + READY_S
        await asyncio.get_running_loop().run_in_executor(None, partial(self.channel.expect, HandOverStep.READY))

    def serves_after_all(self) -> bool:
        """End it. Whether it had said before that it serves: then its clients are not this process's any more."""
        self._end()
        has_said = self.channel.has_said(HandOverStep.SERVING)
        self.channel.close()
        return has_said

    def leave(self) -> None:
        """Give it nothing: it ends by itself."""
        self.channel.close()
        os.close(self._process)

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        ended = select.poll()
        ended.register(self._process, select.POLLIN)
        ended.poll()
        os.close(self._process)


class StartedProcess(NextProcess):
    """A child: a process of the release that is installed now, with the arguments of this one."""

    def __init__(self) -> None:
        """Raises OSError."""
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with other:
            environment = os.environ | {SUCCEEDS: str(other.fileno())}
            command = [sys.executable, *sys.orig_argv[1:]]
            self._child = subprocess.Popen(command, env=environment, pass_fds=[other.fileno()])
        super().__init__(Channel(own), self._child.pid, -1)

    def _end(self) -> None:
        self._child.kill()
        self._child.wait()


class SupervisorSocket:
    """A supervised gateway's end of the pair at which its supervisor tells it what replaces it."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def of_environment(cls) -> SupervisorSocket | None:
        """None for a process without a supervisor."""
        number = os.environ.pop(REPLACED_BY, "")
        return cls(socket.socket(fileno=int(number))) if number else None

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def received(self) -> NextProcess | None:
        """The process that it was told of. None if the supervisor is gone."""
        try:
            said, descriptors, _, _ = socket.recv_fds(self._socket, 64, 2, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return None
        if len(descriptors) != 2:
            close_all(descriptors)
            return None
        channel, process = descriptors
        return NextProcess(Channel(socket.socket(fileno=channel)), int(said), process)


def tell_gateway(gateway: socket.socket, channel: socket.socket, pid: int) -> None:
    """Tell a gateway that the process `pid`, which has the other end of `channel`, is to replace it. Raises OSError."""
    process = os.pidfd_open(pid)
    try:
        socket.send_fds(gateway, [str(pid).encode()], [channel.fileno(), process])
    finally:
        os.close(process)
