"""Keeps the mark of a replicated log: a thread that writes it once the log is on the disk up to there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from store.log.mark_file import MarkFile
from store.replication.judging import ReplicaMark

log = logging.getLogger("penstock.store")

KEEP_S = 0.2  # at most so often
LOOK_AGAIN_S = 0.5


class MarkKeeper:
    """Owner of the thread and of the file. keep() and wait_kept() are called by the store's thread."""

    def __init__(self, file: MarkFile, on_disk: Callable[[], int], hurry: Callable[[], None]) -> None:
        """`on_disk`: up to where the log is on the disk; `hurry`: have it get there now. Both are for any thread."""
        self._file = file
        self._on_disk = on_disk
        self._hurry = hurry
        self._wanted = file.mark
        self._changed = threading.Condition()
        self._is_idle = False  # the thread waits for another mark
        self._is_closing = False
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-mark", daemon=True)
        self._thread.start()

    @property
    def kept(self) -> ReplicaMark:
        """The mark that a crash leaves."""
        return self._file.mark

    @property
    def newest(self) -> ReplicaMark:
        """The mark that keep() was told last."""
        return self._wanted

    def keep(self, mark: ReplicaMark) -> None:
        """Keep a mark soon, unless a later one comes first."""
        if mark is not self._wanted:
            self._wanted = mark
            if self._is_idle:  # else it looks by itself: woken for each mark, it would take turns with the loop
                with self._changed:
                    self._changed.notify_all()

    def flushed(self) -> None:
        """The log has got to the disk further than before. Called by the flusher's thread."""
        with self._changed:
            self._changed.notify_all()

    def wait_kept(self, timeout_s: float) -> bool:
        """Wait until the newest mark is kept. False: it is not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.kept is self._wanted or self.error is not None, timeout_s) and (
                self.error is None
            )

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        while not self._is_closing:
            self._wait_for_another()
            wanted = self._wanted
            if self._gets_to_disk(wanted.accepted):  # later ones wait: else it would never be done under load
                self._write(wanted)

    def _wait_for_another(self) -> None:
        with self._changed:
            self._is_idle = True
            self._changed.wait_for(lambda: self._is_closing or self._wanted is not self.kept)
            self._is_idle = False

    def _gets_to_disk(self, log_offset: int) -> bool:
        while self._on_disk() < log_offset and not self._is_closing:
            self._hurry()
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._on_disk() >= log_offset, LOOK_AGAIN_S)
        return not self._is_closing

    def _wait(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait(timeout_s)

    def _write(self, mark: ReplicaMark) -> None:
        try:
            self._file.write(mark)
        except OSError as error:
            if self.error is None:
                log.error("the mark of the replicated log cannot be kept: %s; it is tried again", error)
            self.error = error
            self._wait(LOOK_AGAIN_S)
            return
        self.error = None
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closing, KEEP_S)
