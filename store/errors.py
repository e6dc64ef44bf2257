"""What can go wrong in the store. Each message names the thing and the remedy."""

from pathlib import Path


class StoreError(Exception):
    """Base of every error of the store."""


class FolderInUse(StoreError):
    """Another process has the data folder open."""

    def __init__(self, folder: Path, owner: str) -> None:
        super().__init__(
            f"{folder}: in use by another penstock process ({owner or 'unknown'}); "
            "stop it or choose another --data folder"
        )


class DiskFailed(StoreError):
    """A write or a sync failed for another reason than room; what the kernel made of it is unknown."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: {reason}; nothing more is stored: mend the disk, then restart")


class FolderUnusable(StoreError):
    """The data folder cannot be read or written."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: {reason}; make it a folder that this user may read and write")


class CorruptSegment(StoreError):
    """A segment that was complete no longer reads back: data that may have been acknowledged is damaged."""

    def __init__(self, segment: Path, log_offset: int, reason: str) -> None:
        self.segment = segment
        self.log_offset = log_offset
        self.reason = reason
        super().__init__(
            f"{segment}: corrupt record at log_offset {log_offset} ({reason}); restore this file from a copy, "
            "or move it and every newer segment away to give up what they hold"
        )


class StoreFull(StoreError):
    """No room left for an append; reads go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder}: no space left on the device; free some or set retention_bytes")


class IndexFailed(StoreError):
    """RocksDB could not read or write; the log is not affected."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: {reason}; free space on the device, or mend it and restart")


class NotRebuildable(StoreError):
    """The index is missing or unusable, and the part of the log that it was built from is gone."""

    def __init__(self, index: Path, checkpoint: Path, first_log_offset: int) -> None:
        super().__init__(
            f"{index}: missing or not of this log, which begins at log_offset {first_log_offset}, and {checkpoint} "
            "cannot stand in for it; put one of the two back from a copy, or move the data folder away to start anew"
        )


class UnknownRecord(StoreError):
    """A record that this version cannot apply."""

    def __init__(self, log_offset: int, record_type: int) -> None:
        super().__init__(
            f"log_offset {log_offset}: record type {record_type} is unknown; use the version of penstock that wrote it"
        )


class FlushTimeout(StoreError):
    """The disk did not confirm a write within flush_timeout_ms."""


class RecordTooLarge(StoreError):
    """An append that no segment can hold."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"an append of {size_bytes} bytes exceeds the {limit_bytes} bytes a segment can hold")


class StoreAway(StoreError):
    """The store's process cannot be reached, or has lost what was under way."""


class WireError(StoreError):
    """A peer broke the wire protocol; the connection to it is to be closed."""


class HandshakeRefused(StoreError):
    """The store does not let this peer in."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(f"the store refused the connection ({reason}): {message}")
