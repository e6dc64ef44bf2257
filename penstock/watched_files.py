"""Files that are read again when they change."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

LOOK_EVERY_S = 1.0

State = tuple[tuple[int, int, int] | None, ...]


class WatchedFiles:
    """What changes with a file is looked at once a second: links are followed, as Kubernetes turns one to another
    folder, and so is a file that takes another one's place."""

    def __init__(self, files: Iterable[Path | None]) -> None:
        self.files = [file for file in files if file is not None]
        self._seen = self._state()
        self._looked_s = time.monotonic()

    def __bool__(self) -> bool:
        return bool(self.files)

    def note(self) -> None:
        """They are about to be read, as they are now."""
        self._seen = self._state()

    def have_changed(self) -> bool:
        """To be asked several times a second: whether they are others than when note() was called."""
        now_s = time.monotonic()
        if not self.files or now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        return self._state() != self._seen

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
