"""The flusher: one thread that calls fdatasync and says up to which log_offset the log is on disk.

`sync` syncs as soon as an append is awaited; everything appended meanwhile goes with the next call (group commit).
Appends that no client waits for (the end of a session, its positions) are synced with the next awaited one, or by
catch_up(). `async` and `buffered` sync every flush_interval_ms if flush_dirty_bytes are dirty, after flush_deadline_ms
in any case, and a sealed segment at once.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from store.files.marks import Marks
from store.log.durations import Durations
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")


class Flusher:
    """Owns the thread. The thread calls `on_flushed` after each sync and each failure; it must only schedule work."""

    def __init__(
        self, settings: StoreSettings, start: int, on_flushed: Callable[[], None], marks: Marks, folder: Path
    ) -> None:
        """`folder`: of the segments; synced before the first bytes of a new one count. Raises OSError."""
        self._settings = settings
        self._marks = marks
        self._on_flushed = on_flushed
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._syncing = (
            threading.Lock()
        )  # one sync at a time: else a later one reports what an earlier one has not synced
        self._unsynced: list[int] = []  # descriptors of sealed segments
        self._active_fd = -1  # a duplicate of its own: retention may close the log's during a sync
        self._written = start
        self._dirty_since = 0.0
        self._urgent = False
        self._sleeps_on = False  # the thread was not woken for the last write
        self._stopping = False
        self.flushed = start
        self.syncs = 0
        self.sync_times = Durations()
        self.error: OSError | None = None
        self._folder_fd = os.open(folder, os.O_RDONLY)
        self._thread = self._new_thread()

    def start(self, active_fd: int) -> None:
        """Raises OSError; then nothing is left open."""
        try:
            self._active_fd = os.dup(active_fd)
        except OSError:
            os.close(self._folder_fd)
            raise
        self._thread.start()

    def written(self, end: int, is_awaited: bool = True) -> None:
        """The log's file holds everything up to `end`. Called once per append.

        Without `is_awaited` the thread is woken only by catch_up() or by the next awaited append.
        """
        with self._lock:
            if self._written == self.flushed:
                self._dirty_since = time.monotonic()
                wake = True
            else:
                wake = self._settings.flush == "sync" or self._sleeps_on
            self._written = end
            self._sleeps_on = wake and not is_awaited
            if wake and is_awaited:
                self._changed.notify()

    def catch_up(self) -> None:
        """Wake the thread for appends that no client waits for. Call it several times a second."""
        if self._sleeps_on:
            with self._changed:
                self._sleeps_on = False
                self._changed.notify()

    def rolled(self, active_fd: int) -> None:
        """The active segment was sealed, and the file of `active_fd` follows it. The sealed one is synced at once.

        The flusher owns `active_fd` from now on.
        """
        with self._changed:
            self._unsynced.append(self._active_fd)
            self._active_fd = active_fd
            self._urgent = True
            self._changed.notify()

    def hurry(self) -> None:
        """Sync what was written so far without waiting for the policy's intervals. Returns at once."""
        with self._changed:
            self._urgent = True
            self._changed.notify()

    def flush_now(self) -> None:
        """Sync everything written so far before returning. Raises OSError."""
        self._sync()
        if self.error:
            raise self.error

    def resume(self, active_fd: int) -> None:
        """Go on after a failed sync, once everything written is in new, synced files; `active_fd` is the last one's.

        Raises OSError.
        """
        self._thread.join()  # it has ended with the error
        for fd in (*self._unsynced, self._active_fd):
            os.close(fd)
        self._unsynced, self._active_fd = [], os.dup(active_fd)
        self._mark(self._written, is_roll=True)
        self.flushed = self._written
        self._urgent = False
        self.error = None
        self._thread = self._new_thread()
        self._thread.start()
        self._on_flushed()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="penstock-flush", daemon=True)

    def stop(self) -> None:
        """End the thread and sync what is left."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        self._sync()
        for fd in (*self._unsynced, self._active_fd, self._folder_fd):
            os.close(fd)

    def _run(self) -> None:
        while not self._stopping and not self.error:
            with self._changed:
                if not self._due():
                    self._changed.wait(self._patience())
            if self._due():
                self._sync()
                self._on_flushed()

    def _due(self) -> bool:
        if self._stopping or self._urgent:
            return True
        dirty_bytes = self._written - self.flushed
        if not dirty_bytes:
            return False
        if self._settings.flush == "sync":
            return True
        age_ms = (time.monotonic() - self._dirty_since) * 1000
        if age_ms >= self._settings.flush_deadline_ms:
            return True
        return age_ms >= self._settings.flush_interval_ms and dirty_bytes >= self._settings.flush_dirty_bytes

    def _patience(self) -> float | None:
        """Seconds until time alone may make a flush due; None while nothing is dirty."""
        if self._written == self.flushed:
            return None
        return min(self._settings.flush_interval_ms, self._settings.flush_deadline_ms) / 1000

    def _sync(self) -> None:
        with self._syncing:
            if self.error:
                return
            with self._changed:
                sealed, active_fd, written = list(self._unsynced), self._active_fd, self._written
                self._urgent = False
            started = time.monotonic()
            try:
                for fd in sealed:
                    os.fdatasync(fd)
                if sealed:
                    os.fsync(self._folder_fd)  # else a power cut may take the active one's name
                os.fdatasync(active_fd)
                self._mark(written, is_roll=bool(sealed))
            except OSError as error:
                self._failed(error)
                return
            self._synced(sealed, written, started)

    def _mark(self, flushed: int, is_roll: bool) -> None:
        """Note in the marks how far the disk has confirmed the log; the marks are synced only now and then."""
        self._marks.flushed_to(flushed)
        if is_roll or self._stopping or not self._marks.begin_is_safe:
            self._marks.sync()

    def _synced(self, sealed: list[int], written: int, started: float) -> None:
        for fd in sealed:
            os.close(fd)
        with self._changed:
            del self._unsynced[: len(sealed)]
            self.flushed = max(self.flushed, written)
            self._dirty_since = started
            self.syncs += 1
            self.sync_times.add(time.monotonic() - started)

    def _failed(self, error: OSError) -> None:
        # The kernel may have dropped the pages it failed to write, so a later success proves nothing: the error is
        # final.
        log.error("flush failed: %s; from now on nothing is acknowledged that is not on the disk", error)
        self.error = error
