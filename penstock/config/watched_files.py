"""Files that the process reads again when they change."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

LOOK_EVERY_S = 1.0
MOST_UNSETTLED_S = 10.0
"""Files that keep changing are read after this time in any case."""

State = tuple[tuple[int, int, int] | None, ...]


class WatchedFiles:
    """The files are examined once a second. A change counts once a file has not changed for a second, so that a writer
    in place has finished. Links are followed, because Kubernetes points one to another folder."""

    def __init__(self, files: Iterable[Path | None]) -> None:
        self.files = [file for file in files if file is not None]
        self._read = self._found = self._state()
        self._looked_s = time.monotonic()
        self._changed_s = 0.0

    def __bool__(self) -> bool:
        return bool(self.files)

    def note(self) -> None:
        """Note the present state of the files, right before they are read."""
        self._read = self._found = self._state()

    def are_as_noted(self) -> bool:
        """Whether no file was written to while it was read."""
        return self._state() == self._read

    def have_changed(self) -> bool:
        """Whether a file differs from its state at note(). Call it several times a second."""
        now_s = time.monotonic()
        if not self.files or now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        before, self._found = self._found, self._state()
        if self._found == self._read:
            return False
        if before == self._read:
            self._changed_s = now_s
        return self._found == before or now_s - self._changed_s >= MOST_UNSETTLED_S

    def _state(self) -> State:
        found: list[tuple[int, int, int] | None] = []
        for file in self.files:
            try:
                stat = file.stat()
            except OSError:
                found.append(None)
            else:
                found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)
