"""Deletes files that the table has no use for any more: those that were merged, and what was never committed.

A file goes so many hours after it was removed from the table, so that readers of an older version still find it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from typing import ClassVar, Final

from penstock.tier.chores import Chore
from penstock.tier.commits import COMMITS_FOLDER
from penstock.tier.files import INDEX_FOLDER, index_of, is_merged
from penstock.tier.objects import ObjectFolder
from penstock.tier.table import COUNTERS_FOLDER, TierTable

log = logging.getLogger("penstock.tier")

LONGEST_S: Final = 86_400.0  # between two looks
DELETED_AT_ONCE: Final = 16
HOUR_S: Final = 3600


class Vacuum(Chore):
    """Looks through all files once a day."""

    undone: ClassVar[str] = "files that were merged are deleted later"

    def __init__(
        self, objects: ObjectFolder, table: TierTable, hours: int, begun: Callable[[], Collection[str]]
    ) -> None:
        """`begun`: files of this process that may be committed soon."""
        super().__init__(objects)
        self._table, self._hours, self._begun = table, hours, begun
        self._steps: Iterator[None] | None = None

    def _step(self) -> bool:
        self._steps = self._steps or self._sweep()
        try:
            next(self._steps)
        except StopIteration:
            self._steps = None
            self._pause(min(max(self._hours, 1) * HOUR_S, LONGEST_S))
            return False
        return True

    def abandon(self) -> None:
        self._steps = None

    def _sweep(self) -> Iterator[None]:
        before_s = time.time() - self._hours * HOUR_S
        begun = self._begun()
        self._table.keep_removed(self._hours)
        known = [*begun, *(file.path for file in self._table.files()), *self._table.removed_since(self._hours)]
        kept = {index_of(path) for path in known}
        yield
        deleted = 0
        for folder in [*self._objects.folders("day="), INDEX_FOLDER]:
            for listed in self._objects.listed(folder):
                yield
                old = [path for path, modified_s in listed if modified_s < before_s and _is_unknown(path, kept)]
                for at in range(0, len(old), DELETED_AT_ONCE):
                    self._objects.delete(old[at : at + DELETED_AT_ONCE])
                    deleted += len(old[at : at + DELETED_AT_ONCE])
                    yield
            self._objects.delete_unfinished(folder, before_s)
        for folder in (COMMITS_FOLDER, COUNTERS_FOLDER):
            self._objects.delete_unfinished(folder, before_s)
            yield
        if deleted:
            log.info("deleted %d files that the table has not used for %d hours", deleted, self._hours)


def _is_unknown(path: str, kept: set[str]) -> bool:
    """Whether a file is one of the tier's, and the table does not need it."""
    try:
        is_merged(path)
    except ValueError:
        return False
    index = index_of(path) if path.endswith(".parquet") else path
    return index not in kept
