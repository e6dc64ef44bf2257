"""The parts that all server processes share: limits, signals, the tick, the end."""

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
from store.wire.messages import Role

if TYPE_CHECKING:
    from notify.server.server import StoreServer
    from penstock.servers.admin import Admin, AdminSource

log = logging.getLogger("penstock")

TICK_S = 0.05
DISK_FAILED = 74
"""The exit code after the disk failed to confirm a write, or damaged the index (EX_IOERR of sysexits.h)."""
DRAIN_S = 5.0
"""How long a stopping store waits until its peers have read their answers."""
OPERATOR_SOCKET = "operator.sock"
"""The operators' socket in the data folder of a running store."""
CONSOLE_SOCKET = "console.sock"
"""The console's socket there: for operators, and for clients that show who they are and no token."""
SUPERVISED = "PENSTOCK_SUPERVISED"
"""Environment variable with the name of a supervised process; its standard input is a pipe from its supervisor."""
STARTED_AGAIN = "PENSTOCK_STARTED_AGAIN"
"""Environment variable of a process that replaced itself: the time of that, in seconds of the monotonic clock."""
START_AGAIN_AFTER_S = 60.0
"""A process replaces itself at most once in this time."""
ALL_STOP = b"stop\n"
AT_ONCE = b"now\n"
"""The words of the supervisor in that pipe."""


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
            log.critical("%s; starting again", failure)
            start_again()
        log.critical("%s", failure)
        return DISK_FAILED
    return 0


def _is_first_for_a_while() -> bool:
    """Whether this process has not replaced itself for START_AGAIN_AFTER_S; otherwise its service manager decides."""
    try:
        return time.monotonic() - float(os.environ.get(STARTED_AGAIN, "-inf")) > START_AGAIN_AFTER_S
    except ValueError:
        return True


def start_again() -> NoReturn:
    """Replace this process by the same command; only the standard streams are kept."""
    os.environ[STARTED_AGAIN] = str(time.monotonic())
    sys.stdout.flush()
    os.execv(sys.executable, sys.orig_argv)


def _disk_failure(error: BaseException | None) -> BaseException | None:
    """The failure, among an error and its contexts, that a new start may mend; a disk that fails will fail again."""
    while error is not None and not isinstance(error, DiskFailed | IndexDamaged | IndexStuck):
        error = error.__context__
    return error


class Stop:
    """A request to stop: by SIGTERM and SIGINT from construction on, or from the supervisor."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()
        self.of_all = False  # all processes of the supervisor stop as well
        self.is_urgent = False  # asked a second time: do not wait for any client
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._asked, number)
        if os.environ.get(SUPERVISED):
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._told)

    def _asked(self, number: signal.Signals) -> None:
        self.is_urgent = self.is_urgent or (self._stopped.is_set() and not self.of_all)
        log.info("ending at once: %s again" if self.is_urgent else "stopping: %s", number.name)
        self._stopped.set()

    def _told(self) -> None:
        """Handle a message of the supervisor. If the supervisor is gone, it may be started again: exit at once to make
        room. Nothing acknowledged is lost by that.
        """
        words = os.read(sys.stdin.fileno(), 4096)
        if not words:
            os._exit(1)
        self.is_urgent = self.is_urgent or AT_ONCE in words
        log.info("ending at once, with all other processes" if self.is_urgent else "stopping, with all other processes")
        self.of_all = True
        self._stopped.set()

    @property
    def is_asked(self) -> bool:
        """Whether this process should stop."""
        return self._stopped.is_set()

    def end(self) -> None:
        """End this process: another one has taken over what it did."""
        self._stopped.set()

    async def or_tick(self) -> bool:
        """Wait for TICK_S at most. True once the process should stop."""
        try:
            await asyncio.wait_for(self._stopped.wait(), TICK_S)
        except TimeoutError:
            return False
        return True

    async def or_event(self, event: asyncio.Event) -> bool:
        """Wait for an event. True if the process should stop instead."""
        waits = [asyncio.ensure_future(each.wait()) for each in (self._stopped, event)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return self._stopped.is_set()

    async def tick_until(self, event: asyncio.Event, action: Callable[[], object]) -> bool:
        """As tick(), until an event. True if the process should stop instead."""
        waits = [asyncio.ensure_future(each.wait()) for each in (self._stopped, event)]
        while not any(wait.done() for wait in waits):
            action()
            await asyncio.wait(waits, timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return self._stopped.is_set()

    async def tick(self, action: Callable[[], object]) -> None:
        """Call `action` several times a second until the process should stop; all other work is in callbacks."""
        while True:
            action()
            if await self.or_tick():
                return


async def listen_in_data_folder(server: StoreServer, data: Path) -> None:
    """Listen at sockets in the data folder. On a file system without sockets only those who use them fail."""
    sockets = (
        (OPERATOR_SOCKET, (Role.OPERATOR,), "`penstock client` and `penstock ban` do not work there"),
        (CONSOLE_SOCKET, (Role.CLIENT, Role.OPERATOR), "the console does not work there"),
    )
    for name, roles, failing in sockets:
        try:
            await server.listen_privately(data / name, *roles)
        except OSError as error:
            log.warning("%s: %s; %s", data / name, error.strerror or error, failing)


def check_admin_exposed(settings: Settings) -> None:
    """Check the address of the admin endpoint, which has no password. Raises ListenError."""
    if settings.admin is not None:
        from penstock.servers.admin import check_admin_exposure

        check_admin_exposure(settings.admin, settings.allow_admin_beyond_loopback)


def open_admin(address: str, source: AdminSource) -> Admin:
    from penstock.servers.admin import Admin  # imported here, since most processes need no HTTP server

    admin = Admin(address, source, asyncio.get_running_loop())
    announce("admin", admin.url)
    return admin


def tune_garbage_collection(collects: bool = True) -> None:
    """Keep the objects of the start out of collections; garbage of a turn has no cycles, so full collections can be
    rare.

    `collects`: look for garbage of the start first. A new object costs about 50 ns: 5,000 at a time, and 15,000
    survivors at a time, take 1 ms at most.
    """
    gc.enable()
    if collects:
        gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 1, 8_000)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def heed_hangup(*reload: Callable[[], object]) -> None:
    """Call these functions on SIGHUP. Call it first in the loop: by default the signal ends the process."""

    def reload_all() -> None:
        for each in reload:
            each()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_all)
