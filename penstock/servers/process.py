"""What every server process of ours does around its work: limits, signals, the tick, the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import uvloop

from penstock.config.settings import Settings
from penstock.servers.logs import announce, set_up_logging
from store.errors import DiskFailed, IndexDamaged, IndexFailed, IndexStuck, StoreError
from store.files.folder import umask_for

if TYPE_CHECKING:
    from notify.server.server import StoreServer
    from penstock.servers.admin import Admin, AdminSource

log = logging.getLogger("penstock")

TICK_S = 0.05
DISK_FAILED = 74
"""The exit code once the disk failed to confirm a write, or damaged the index (EX_IOERR of sysexits.h)."""
DRAIN_S = 5.0
"""How long a store waits at its end for what its peers are still to be told."""
OPERATOR_SOCKET = "operator.sock"
"""In the data folder of a store that runs."""
SUPERVISED = "PENSTOCK_SUPERVISED"
"""In the environment of a process whose standard input is a pipe from the one that supervises it: its name there."""
STARTED_AGAIN = "PENSTOCK_STARTED_AGAIN"
"""In the environment of a process that replaced itself: when that was, in seconds of the monotonic clock."""
START_AGAIN_AFTER_S = 60.0
"""At most so often a process replaces itself."""
ALL_STOP = b"stop\n"
AT_ONCE = b"now\n"
"""What that one says there."""


def run(settings: Settings, main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run until SIGTERM or SIGINT, or until the disk fails. Returns the exit code."""
    os.umask(umask_for(settings.store.group_access))
    set_up_logging(settings.log_level, settings.log_format)
    _raise_descriptor_limit()
    try:
        uvloop.run(main())
    except (StoreError, OSError) as error:
        failure = _disk_failure(error)
        if failure is None:
            raise
        if isinstance(failure, IndexFailed) and _is_first_for_a_while():
            log.critical("%s; starting again for that", failure)
            _start_again()
        log.critical("%s", failure)
        return DISK_FAILED
    return 0


def _is_first_for_a_while() -> bool:
    """Whether it is long ago that this process started itself again; if not, that is up to who watches over it."""
    try:
        return time.monotonic() - float(os.environ.get(STARTED_AGAIN, "-inf")) > START_AGAIN_AFTER_S
    except ValueError:
        return True


def _start_again() -> NoReturn:
    """This very command, in the place of this process; nothing but the standard streams is handed on."""
    os.environ[STARTED_AGAIN] = str(time.monotonic())
    sys.stdout.flush()
    os.execv(sys.executable, sys.orig_argv)


def _disk_failure(error: BaseException | None) -> BaseException | None:
    """What a new start may help with, of an error and those during which it came: a disk that fails fails again."""
    while error is not None and not isinstance(error, DiskFailed | IndexDamaged | IndexStuck):
        error = error.__context__
    return error


class Stop:
    """Set by SIGTERM and SIGINT from when it is made, or by a word of whoever supervises this process."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()
        self.of_all = False  # everything that this process works with stops as well
        self.is_urgent = False  # asked for once more: nobody is to be waited for
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._asked, number)
        if os.environ.get(SUPERVISED):
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._told)

    def _asked(self, number: signal.Signals) -> None:
        self.is_urgent = self.is_urgent or (self._stopped.is_set() and not self.of_all)
        log.info("ending at once: %s again" if self.is_urgent else "stopping: %s", number.name)
        self._stopped.set()

    def _told(self) -> None:
        """By the process that supervises this one. If that is gone without a word, it is perhaps started again: be out
        of the way by then; nothing that was acknowledged is lost by an end without ceremony."""
        words = os.read(sys.stdin.fileno(), 4096)
        if not words:
            os._exit(1)
        self.is_urgent = self.is_urgent or AT_ONCE in words
        log.info("ending at once with all others" if self.is_urgent else "stopping with all others")
        self.of_all = True
        self._stopped.set()

    async def or_tick(self) -> bool:
        """Wait for TICK_S at most. True once it is time to stop."""
        try:
            await asyncio.wait_for(self._stopped.wait(), TICK_S)
        except TimeoutError:
            return False
        return True

    async def or_event(self, event: asyncio.Event) -> bool:
        """Wait for an event. True if it is time to stop instead."""
        waits = [asyncio.ensure_future(each.wait()) for each in (self._stopped, event)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return self._stopped.is_set()

    async def tick(self, action: Callable[[], object]) -> None:
        """Everything happens in callbacks, but for this action, several times a second."""
        while True:
            action()
            if await self.or_tick():
                return


async def listen_to_operators(server: StoreServer, data: Path) -> None:
    """At a socket in the data folder. A file system without sockets costs the operators' commands, nothing else."""
    try:
        await server.listen_to_operators(data / OPERATOR_SOCKET)
    except OSError as error:
        why = error.strerror or str(error)
        log.warning("%s: %s; `penstock client` and `penstock ban` do not work there", data / OPERATOR_SOCKET, why)


def check_admin_exposed(settings: Settings) -> None:
    """The admin endpoint asks for no password. Raises ListenError."""
    if settings.admin is not None:
        from penstock.servers.admin import check_admin_exposure

        check_admin_exposure(settings.admin, settings.allow_admin_beyond_loopback)


def open_admin(address: str, source: AdminSource) -> Admin:
    from penstock.servers.admin import Admin  # here, so that who has no use for it does not import an HTTP server

    admin = Admin(address, source, asyncio.get_running_loop())
    announce("admin", admin.url)
    return admin


def tune_garbage_collection() -> None:
    """What start-up made stays; per-turn garbage has no cycles, so full collections can be rare.

    Of what is new some 50 ns an object: 5,000 at a time, and 15,000 at a time of what outlived that, take 1 ms at most.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 1, 8_000)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def heed_hangup(*reload: Callable[[], object]) -> None:
    """Call these on SIGHUP. To be called in the loop, first of all: by itself the signal ends a process."""

    def reload_all() -> None:
        for each in reload:
            each()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_all)
