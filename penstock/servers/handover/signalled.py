"""Who asks for the replacement of a process: an operator by SIGUSR2, or its supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from penstock.servers.handover.next_process import SupervisorSocket
from penstock.servers.handover.upgrade import Upgrade
from penstock.servers.process import SUPERVISED, Stop

log = logging.getLogger("penstock")

CANNOT_BE_REPLACED = "upgrade: this process cannot be replaced (it starts, or has no epoll)"


class UpgradeSignal:
    """Whether another process takes over from this one; SIGUSR2 asks for it, or the supervisor if there is one."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._upgrade: Upgrade | None = None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR2, self._asked)
        self._supervisor = SupervisorSocket.of_environment()
        if self._supervisor is not None:
            loop.add_reader(self._supervisor.fileno(), self._told, self._supervisor)

    @property
    def is_over(self) -> bool:
        """Another process serves."""
        return self._upgrade is not None and self._upgrade.is_over

    def can_begin(self, upgrade: Upgrade) -> None:
        """From now on this process serves, and that is how it is replaced."""
        self._upgrade = upgrade

    def cannot_begin(self) -> None:
        """It does not serve."""
        self._upgrade = None

    def _asked(self) -> None:
        if os.environ.get(SUPERVISED):
            log.warning("upgrade: this process has a supervisor; send the signal to that, which replaces it")
        elif self._upgrade is None:
            log.warning(CANNOT_BE_REPLACED)
        else:
            self._upgrade.ask(self._stop.end, lambda: self._stop.is_asked)

    def _told(self, supervisor: SupervisorSocket) -> None:
        """The supervisor has started the process that is to replace this one, or is gone."""
        following = supervisor.received()
        if following is None:
            asyncio.get_running_loop().remove_reader(supervisor.fileno())
            supervisor.close()
        elif self._upgrade is None:
            log.warning(CANNOT_BE_REPLACED)
            following.leave()
        else:
            self._upgrade.ask(self._stop.end, lambda: self._stop.is_asked, following)
