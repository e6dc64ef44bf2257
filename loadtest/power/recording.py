"""Records a server's file-changing calls with a preloaded library (recorder.c) while the server runs."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from loadtest.errors import LoadTestError
from loadtest.preloaded import compile_preloaded

SOURCE = Path(__file__).with_name("recorder.c")
_EVENT = struct.Struct("<IIQqq")
_SHARED = struct.Struct("<iii")  # mode of syncs; 1: calls wait; number of calls under way
_STOPPED, _UNDER_WAY = 4, 8
STOP_S = 30


class Event(NamedTuple):
    """One successful call; see recorder.c. `number` counts them; `ends`: position of its end in the file, in bytes."""

    number: int
    ends: int
    kind: str
    file: int  # the open file: two open files have two numbers
    first: int  # offset, size, flags, or the number of a sync
    second: int
    data: bytes

    @property
    def paths(self) -> tuple[str, str]:
        """Paths below the recorded folder; the second of a rename or link is the new one."""
        one, _, other = self.data.decode(errors="surrogateescape").partition("\n")
        return one, other


class Syncs(IntEnum):
    """How a process's syncs behave; failing and lying ones affect only the log's files."""

    AS_THEY_ARE = 0
    FAIL = 1  # EIO
    LIE = 2  # do nothing, and report success
    SLOW = 3  # take 4 ms more


class Recorder:
    """The compiled library, and the file that it writes. `environment`: of a process to record."""

    def __init__(self, folder: Path, root: Path) -> None:
        """`root`: the folder whose files are recorded. Raises LoadTestError."""
        self.file = folder / "record"
        self._root = root.resolve()
        self._fault = folder / "fault"
        self._library = folder / "recorder.so"
        self.file.touch()
        self._fault.write_bytes(_SHARED.pack(Syncs.AS_THEY_ARE, 0, 0))
        compile_preloaded(SOURCE, self._library)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "RECORD_ROOT": str(self._root),
            "RECORD_FILE": str(self.file),
            "RECORD_FAULT": str(self._fault),
        }

    @property
    def position(self) -> int:
        """End of the file in bytes: all earlier calls are recorded before it."""
        return os.stat(self.file).st_size

    def make_syncs(self, how: Syncs) -> None:
        """Set how syncs behave from now on."""
        self._share(0, how)

    @contextmanager
    def between_calls(self) -> Iterator[None]:
        """A block without calls under way, for killing the process: it has done exactly the recorded calls.

        Raises LoadTestError if a call takes more than STOP_S.
        """
        self._share(_STOPPED, 1)
        try:
            until_s = time.monotonic() + STOP_S
            while self._fault.read_bytes()[_UNDER_WAY:] != bytes(4):
                if time.monotonic() > until_s:
                    raise LoadTestError(f"a call of the recorded server took more than {STOP_S} s")
                time.sleep(0.001)
            yield
        finally:
            self._share(_UNDER_WAY, 0)  # a call that was about to wait
            self._share(_STOPPED, 0)

    def _share(self, at: int, value: int) -> None:
        with self._fault.open("r+b") as file:
            file.seek(at)
            file.write(struct.pack("<i", value))


def read_recording(file: Path) -> list[Event]:
    """All recorded calls. Raises LoadTestError for a call that cannot be replayed."""
    data = file.read_bytes()
    events: list[Event] = []
    at = 0
    while at < len(data):
        size, kind, number, first, second = _EVENT.unpack_from(data, at)
        event = Event(len(events), at + size, chr(kind), number, first, second, data[at + _EVENT.size : at + size])
        if event.kind in "MX":
            what = "maps a file for writing" if event.kind == "M" else "exchanges files"
            raise LoadTestError(f"the server {what}, which a recording cannot follow")
        events.append(event)
        at += size
    return events
