"""A clock in the event loop of server processes: what their longest turn took of CPU time, to some microseconds.

    with clocked(folder) as clocks:
        ...start servers, send something...
        clocks.longest_ms()     {"serve": 3.1}

A turn is what the loop does between two looks at its sockets: the callbacks that are ready, and what came in. The clock
of the loop's own thread knows nothing of other threads and processes, so a busy machine makes little difference; where
the time that passed is less, that counts (a virtual machine's clock of CPU time jumps now and then). The server is what
it always is, but for one more callback in each turn, that reads the clocks: processes that are started meanwhile import
tests/bench/clocked/sitecustomize.py.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

FOLDER = "TURN_CLOCKS"
"""In the environment of processes that are to have such a clock: where they say what it shows."""
IDLE_NS, IDLE_S = 50_000, 0.000_1
"""After a turn shorter than that the process sleeps for so long: nothing came, and the other CPU has work to do."""
BUSY_NS = 500_000
"""A turn that is longer than that has to do with what was sent."""
QUIET_LOOKS = 2  # one may fall into the middle of a long turn
ROOM_BYTES = 24  # ns of the longest turn; turns that were longer than BUSY_NS; all turns
ROOT = Path(__file__).parents[2]


class TurnClocks:
    """What the processes say that were started with `folder` in their environment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, memoryview] = {}

    def longest_ms(self) -> dict[str, float]:
        """By command of penstock, the longest turn since this was asked last."""
        found: dict[str, float] = {}
        for name, numbers in self._numbers().items():
            longest_ns, numbers[0] = numbers[0], 0
            command = name.partition(".")[0]
            found[command] = max(found.get(command, 0.0), longest_ns / 1e6)
        return found

    def settle(self, quiet_s: float = 0.1, timeout_s: float = 5.0) -> None:
        """Wait until none of them has had much to do for a while, nor is in a turn that takes so long itself."""
        until_s = time.monotonic() + timeout_s
        seen: list[tuple[int, int]] = []
        quiet = 0  # looks in a row
        while quiet < QUIET_LOOKS and time.monotonic() < until_s:
            before, seen = seen, [(each[1], each[2]) for each in self._numbers().values()]
            is_quiet = len(before) == len(seen) and all(
                busy == was_busy and turns > had_turns
                for (was_busy, had_turns), (busy, turns) in zip(before, seen, strict=True)
            )
            quiet = quiet + 1 if is_quiet else 0
            time.sleep(quiet_s)

    def _numbers(self) -> dict[str, memoryview]:
        for path in self._folder.iterdir():
            if path.name not in self._known and path.stat().st_size == ROOM_BYTES:
                self._known[path.name] = _mapped(path)
        return self._known


@contextmanager
def clocked(folder: Path) -> Iterator[TurnClocks]:
    """Servers of penstock that are started meanwhile have a clock."""
    folder.mkdir(parents=True, exist_ok=True)
    before = {name: os.environ.get(name) for name in (FOLDER, "PYTHONPATH")}
    path = (str(Path(__file__).parent / "clocked"), str(ROOT), before["PYTHONPATH"] or "")
    os.environ |= {FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(filter(None, path))}
    try:
        yield TurnClocks(folder)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _mapped(path: Path) -> memoryview:
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), ROOM_BYTES)).cast("Q")


class ClockedLoop(uvloop.Loop):
    """A loop that has the clock read in each turn."""

    def run_forever(self) -> None:
        path = Path(os.environ[FOLDER], f"{_command()}.{os.getpid()}")
        path.write_bytes(bytes(ROOM_BYTES))
        self._numbers = _mapped(path)
        self._began_ns = time.thread_time_ns(), time.perf_counter_ns()
        self.call_soon(self._beat)
        super().run_forever()

    def _beat(self) -> None:
        took_ns = min(time.thread_time_ns() - self._began_ns[0], time.perf_counter_ns() - self._began_ns[1])
        numbers = self._numbers
        numbers[2] += 1
        if took_ns > BUSY_NS:
            numbers[1] += 1
            if took_ns > numbers[0]:
                numbers[0] = took_ns
        if took_ns < IDLE_NS:
            time.sleep(IDLE_S)
        self.call_soon(self._beat)
        self._began_ns = time.thread_time_ns(), time.perf_counter_ns()


def _command() -> str:
    """`serve`, `store` or `gateway`."""
    behind = sys.orig_argv[sys.orig_argv.index("penstock") + 1 :] if "penstock" in sys.orig_argv else []
    return next((word for word in behind if not word.startswith("-")), "other")


def install() -> None:
    """Have the loops of this process made so."""
    if os.environ.get(FOLDER):
        uvloop.Loop = ClockedLoop  # type: ignore[misc]  # uvloop looks it up whenever it makes one
