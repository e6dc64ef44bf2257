"""The part of the log that its readers hold back from retention, and the rules for readers that lag too far."""

from __future__ import annotations

import logging
from collections.abc import Callable

from store.errors import ReaderTooFarBehind, StoreFull
from store.log.api import Log
from store.records._records import RecordBatch
from store.settings import StoreSettings
from store.state.changes import ReaderLost, encode_change
from store.state.log_readers import LogReaderState, LogReaderStates

log = logging.getLogger("penstock.store")


class LogHolds:
    """Decides for which readers retention waits."""

    def __init__(
        self, log_: Log, readers: LogReaderStates, settings: StoreSettings, append: Callable[[RecordBatch], None]
    ) -> None:
        self._log = log_
        self._readers = readers
        self._most_bytes = settings.most_behind_bytes
        self._append = append
        self.refusing: ReaderTooFarBehind | None = None
        """The reason why messages are refused; None: they are not. As of the last within()."""

    def within(self, boundary: int) -> int:
        """The part of what retention would drop, up to `boundary`, that no reader holds; 0: nothing."""
        self.refusing = None
        wanted = boundary
        for reader in self._readers:
            if reader.log_offset < wanted and self._is_held(reader):
                boundary = min(boundary, reader.log_offset)
        ends = (part.end for part in self._log.parts())
        return boundary if boundary == wanted else max((end for end in ends if end <= boundary), default=0)

    def _is_held(self, reader: LogReaderState) -> bool:
        behind_bytes = self._log.end - reader.log_offset
        most_bytes = min(reader.most_behind_bytes or self._most_bytes, self._most_bytes)
        if behind_bytes <= most_bytes and not isinstance(self._log.fault(), StoreFull):
            return True
        if reader.when_behind == "refuse":
            self.refusing = ReaderTooFarBehind(reader.name, behind_bytes, most_bytes)
            return True
        return False

    def give_up(self, boundary: int) -> None:
        """Record which readers lose what is before `boundary`, which is about to be dropped. Raises a StoreError."""
        batch = RecordBatch()
        for reader in self._readers:
            from_ = max(reader.log_offset, reader.lost_to)
            if from_ < boundary:
                log.error(
                    "retention drops %d bytes of the log, up to log_offset %d, that its reader %s has not read: it is "
                    "too far behind, or the disk is full",
                    boundary - from_,
                    boundary,
                    reader.name,
                )
                batch.append(*encode_change(ReaderLost(reader.name, boundary)))
        if batch.size:
            self._append(batch)
