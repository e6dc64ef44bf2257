"""The scrubber: reads sealed segments again and again, slowly, and reports damage before the bytes are needed.

It never changes the log: the next start puts damaged bytes in quarantine (store.recovery). An entry in `sums` makes
that start verify a segment that it would otherwise trust. Bytes that the page cache holds are read from there; a later
pass reads them from the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from store.files.segment import Sealed
from store.files.sums import NO_DIGEST, SUMS, State, Sum, Sums, read_sums, write_sums
from store.log.scrub_reading import ColdReader, Look
from store.recovery.salvage import Hole
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")

FIRST_AFTER_S = 60.0
"""For this long after a start the scrubber leaves the disk alone."""
TOLD_RANGES = 20
START_DOES = {
    "quarantine": "puts it in quarantine and serves the rest",
    "refuse": "refuses, as store.on_damage says",
}

Kind = Literal["damaged", "changed"]


class SealedLog(Protocol):
    """The part of a log that the scrubber uses, from its thread."""

    folder: Path

    @property
    def name(self) -> bytes: ...

    @property
    def base(self) -> int: ...

    def sealed(self) -> list[Sealed]: ...


class Pace:
    """Limits reading to so many bytes a second on average; time lost is not made up for."""

    def __init__(self, bytes_per_s: int, wait: Callable[[float], bool], clock: Callable[[], float]) -> None:
        """`wait(seconds)` returns True when the scrubber stops."""
        self._bytes_per_s = bytes_per_s
        self._wait = wait
        self._clock = clock
        self._free_at_s = 0.0
        self.passed_bytes = 0

    def passed(self, size: int) -> bool:
        """Wait until more may be read. False: the scrubber stops."""
        self.passed_bytes += size
        now_s = self._clock()
        self._free_at_s = max(self._free_at_s, now_s) + size / self._bytes_per_s
        return not self._wait(self._free_at_s - now_s)


class Scrubber:
    """Owner of its thread and, while that runs, of `sums`. Its figures may be read from any thread."""

    def __init__(
        self,
        log: SealedLog,
        settings: StoreSettings,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """Uses only methods of the log that are safe from another thread. `clock` and `wait` are for tests."""
        self._log = log
        self._interval_s = settings.scrub_interval_s
        self._on_damage = settings.on_damage
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self.is_on = settings.scrub_bytes_per_s > 0
        self._pace = Pace(max(1, settings.scrub_bytes_per_s), self._wait, clock)
        self._sums = Sums()
        self._found: dict[int, tuple[Kind, int]] = {}  # bytes, by base
        self._thread: threading.Thread | None = None
        self._is_keeping = True
        self.passes = 0

    # --- figures

    @property
    def read_bytes(self) -> int:
        """Bytes of the log that were read, since the start."""
        return self._pace.passed_bytes

    def found_bytes(self) -> dict[Kind, int]:
        """Bytes that the last look at each segment found damaged or changed."""
        found: dict[Kind, int] = {"damaged": 0, "changed": 0}
        for kind, size in list(self._found.values()):
            found[kind] += size
        return found

    # --- the thread

    def start(self) -> None:
        """Start the thread; call it once the log is served."""
        if self.is_on:
            self._thread = threading.Thread(target=self._run, name="penstock-scrub", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        if self._wait(min(FIRST_AFTER_S, self._interval_s)):
            return
        self.load()
        if self._sums.pass_ms and not self._pass([each for each in self._log.sealed() if self._is_left(each)]):
            return
        while not self._wait(self._pause_s()):
            if not self.run_pass():
                return

    def load(self) -> None:
        """Read `sums` to go on where the last process ended."""
        known = read_sums(self._log.folder)
        if known is None and (self._log.folder / SUMS).exists():
            log.warning("%s: cannot be read; the sums of all segments are computed again", self._log.folder / SUMS)
        if known is None or known.identity != self._log.name:
            known = Sums(self._log.name)
        self._sums = known

    def _is_left(self, segment: Sealed) -> bool:
        """Whether an interrupted pass has not read the segment, or found it not intact."""
        known = self._sums.of(segment.base, segment.end)
        return known is None or known.scrubbed_ms < self._sums.pass_ms or known.state != State.INTACT

    def _pause_s(self) -> float:
        """Seconds until the next pass begins."""
        if not self._sums.pass_ms:
            return 0.0
        last_ms = max((each.scrubbed_ms for each in self._sums.entries.values()), default=0)
        until_s = (max(last_ms, self._sums.pass_ms) - _now_ms()) / 1000 + self._interval_s
        return min(max(until_s, 0.0), self._interval_s)

    def run_pass(self) -> bool:
        """Read all segments that are sealed now. False if it was stopped."""
        sealed = self._log.sealed()
        self._sums.pass_ms = _now_ms()
        kept = {each.base for each in sealed}
        self._sums.drop(self._sums.entries.keys() - kept)
        self._keep()
        for base in self._found.keys() - kept:
            del self._found[base]
        if not self._pass(sealed):
            return False
        self.passes += 1
        return True

    def _pass(self, segments: list[Sealed]) -> bool:
        return all(self._scrub(segment) for segment in segments)

    def _scrub(self, segment: Sealed) -> bool:
        """Read one segment. False if it was stopped."""
        try:
            reader = ColdReader(segment.path)
        except OSError as error:
            self._unreadable(segment, error)
            return True
        try:
            look = Look(reader, segment, self._pace.passed)
            if not look.run():
                return False
            self._judge(segment, look.holes, look.digest)
        except OSError as error:
            self._unreadable(segment, error)
        finally:
            reader.close()
        return True

    # --- what it found

    def _is_dropped(self, segment: Sealed) -> bool:
        """Whether retention has dropped it meanwhile."""
        return segment.base < self._log.base

    def _judge(self, segment: Sealed, holes: list[Hole], digest: bytes) -> None:
        if self._is_dropped(segment):
            self._found.pop(segment.base, None)
            return
        known = self._sums.of(segment.base, segment.end)
        expected = known.digest if known is not None else NO_DIGEST
        state = State.INTACT
        if holes:
            state = State.DAMAGED
            digest = expected
            self._tell_damage(segment, holes)
        elif known is not None and known.differs(digest):
            state = State.CHANGED
            digest = expected
            self._tell_change(segment)
        else:
            self._found.pop(segment.base, None)
        self._sums.put(Sum(segment.base, segment.end, digest, _now_ms(), state))
        self._keep()

    def _tell_damage(self, segment: Sealed, holes: list[Hole]) -> None:
        self._found[segment.base] = ("damaged", sum(hole.end - hole.start for hole in holes))
        for hole in holes[:TOLD_RANGES]:
            log.error(
                "%s: damaged: log_offset %d to %d (%d bytes): %s; found by scrubbing, which changes nothing: the next "
                "start %s; `penstock store repair --from COPY` of the stopped server restores what a copy has of it",
                *(segment.path, hole.start, hole.end, hole.end - hole.start, hole.reason, START_DOES[self._on_damage]),
            )
        if len(holes) > TOLD_RANGES:
            log.error("%s: damaged in %d ranges more", segment.path, len(holes) - TOLD_RANGES)

    def _tell_change(self, segment: Sealed) -> None:
        self._found[segment.base] = ("changed", segment.end - segment.base)
        log.error(
            "%s: changed: log_offset %d to %d: all records pass their checksums, but the file is not what it was when "
            "it was first read; put it back from a backup while the server is stopped, or delete %s to take it as it "
            "is; `penstock store repair` does not mend it",
            *(segment.path, segment.base, segment.end, self._log.folder / SUMS),
        )

    def _unreadable(self, segment: Sealed, error: OSError) -> None:
        if not self._is_dropped(segment):
            self._found[segment.base] = ("damaged", segment.end - segment.base)
            log.error(
                "%s: log_offset %d to %d cannot be read: %s; found by scrubbing: look at the disk, back up what can be "
                "read, and see `penstock store repair --from COPY`",
                *(segment.path, segment.base, segment.end, error.strerror or error),
            )

    def _keep(self) -> None:
        try:
            write_sums(self._log.folder, self._sums)
        except OSError as error:
            if self._is_keeping:
                log.warning("%s: %s; scrubbing goes on", self._log.folder / SUMS, error.strerror or error)
        else:
            self._is_keeping = True
            return
        self._is_keeping = False


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
