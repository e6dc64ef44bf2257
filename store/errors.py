"""Errors of the store. Each message names the thing and the remedy."""

import errno
from pathlib import Path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    """A sync failed: what the kernel made of what it was to write is unknown, so nothing more can be acknowledged."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: {reason}; no more messages are stored: repair the disk, then restart")


class WriteFailed(StoreError):
    """A write failed for another reason than room. Nothing of it was stored; the next one is tried."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: {reason}; this was not stored: check the disk")


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
            f"{segment}: corrupt record at log_offset {log_offset} ({reason}); stop the store, then `penstock store "
            f"repair {segment.parent.parent} --index` mends it; with --from COPY it brings back what a copy has of it"
        )


class DamageFound(StoreError):
    """Something of the log is damaged, and `store.on_damage` says to refuse."""

    def __init__(self, folder: Path, findings: list[str]) -> None:
        self.findings = findings
        shown = "".join(f"\n  {finding}" for finding in findings[:20])
        super().__init__(
            f"{folder}: the log is damaged, and store.on_damage is `refuse`: bring the files back from a copy, "
            f"or start with store.on_damage=quarantine to serve what is intact:{shown}"
        )


class NotOfThisLog(StoreError):
    """A copy, or a backup, is of another log."""

    def __init__(self, path: Path, log: Path) -> None:
        super().__init__(f"{path}: is not a copy of {log}, or cannot be told to be one: their identities differ")


class BackupUnusable(StoreError):
    """A backup that cannot be added to, or not be brought back in the way that is wanted."""

    def __init__(self, target: Path, reason: str) -> None:
        super().__init__(f"{target}: {reason}; name a folder that `penstock store backup` has filled, or an empty one")


class LogOfOneStore(StoreError):
    """A store that was none of a cluster is to follow one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder}: has the log of a store without a cluster, and store.replicated_log names a topic: name an "
            f"empty folder, or begin a cluster with this log by `penstock cluster create --from {folder}`"
        )


class LogOfACluster(StoreError):
    """A store without a cluster is to use the log of one that follows a topic."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder}: its log follows a topic of Kafka: set store.replicated_log. For a store alone make another "
            f"folder of it, by `penstock store backup {folder} COPY` and `penstock store restore COPY NEW`"
        )


class DamagedInCluster(StoreError):
    """A store in a cluster is damaged. It writes no gap by itself: the logs of the other stores have none."""

    def __init__(self, folder: Path, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{folder}: {reason}; its log follows a topic of Kafka, and the other stores have all of it: with this "
            f"store stopped, `penstock cluster recover {folder}` copies the log of the store that leads"
        )


class NoSuchCopy(StoreError):
    """A part of the log that another store wants to copy is gone: that store begins its copy again."""


class NotReplicated(StoreError):
    """The store is none of a cluster."""

    def __init__(self) -> None:
        super().__init__("this store is none of a cluster, so no other one follows it: see store.replicated_log")


class CopyDamaged(StoreError):
    """The bytes that another store gave are damaged."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} of the other store: {reason}; see there what `penstock store check` says")


class UnknownFormat(StoreError):
    """A segment that a newer version wrote."""

    def __init__(self, segment: Path, version: int, known: int) -> None:
        super().__init__(
            f"{segment}: format version {version}; this program reads version {known}: "
            "use the version of penstock that wrote it"
        )


class StoreFull(StoreError):
    """No room left for an append; reads go on."""

    def __init__(self, folder: Path, what: str = "space") -> None:
        super().__init__(f"{folder}: no {what} left on the device; free some or set retention_bytes")


class ReaderTooFarBehind(StoreFull):
    """A reader of the log, which may not lose anything, has not read what retention is to drop."""

    def __init__(self, name: str, behind_bytes: int, most_bytes: int) -> None:
        StoreError.__init__(
            self,
            f"the log's reader {name} is {behind_bytes} bytes behind, {most_bytes} are allowed, and it may not lose "
            f"any: start it, raise store.most_behind_bytes, or `penstock store forget-reader {name}`",
        )


def unusable(folder: Path, error: OSError) -> StoreError:
    """A folder cannot be opened."""
    return StoreFull(folder) if error.errno in NO_ROOM else FolderUnusable(folder, str(error))


class IndexFailed(StoreError):
    """RocksDB could not read or write; the log is not affected."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: {reason}; free space on the device, or mend it and restart")


class IndexDamaged(IndexFailed):
    """The index does not read back. It can be built again from the log, at the next start."""

    def __init__(self, folder: Path, reason: str) -> None:
        StoreError.__init__(self, f"{folder}: {reason}; a restart builds it again from the log")


class IndexBusy(IndexFailed):
    """RocksDB has more to merge than it can, and takes nothing for a while. The next attempt may succeed."""

    def __init__(self, folder: Path) -> None:
        StoreError.__init__(self, f"{folder}: the disk is too slow for what is written; messages wait for it")


class IndexStuck(IndexFailed):
    """RocksDB has not written for a while although there is room. It goes on when it is opened anew, if at all."""

    def __init__(self, folder: Path, failing_s: float) -> None:
        StoreError.__init__(self, f"{folder}: could not be written for {failing_s:.0f} s; a restart opens it anew")


class NotRebuildable(StoreError):
    """The index is missing or unusable, and the part of the log that it was built from is gone."""

    def __init__(self, index: Path, checkpoint: Path, first_log_offset: int) -> None:
        super().__init__(
            f"{index}: missing or not of this log, which begins at log_offset {first_log_offset}, and {checkpoint} "
            "cannot stand in for it; put one of the two back from a copy, or start with store.on_damage=quarantine to "
            "build an index from what is left of the log, without the sessions, groups and queue offsets before it"
        )


class UnknownRecord(StoreError):
    """A record that this version cannot apply."""

    def __init__(self, log_offset: int, record_type: int) -> None:
        super().__init__(
            f"log_offset {log_offset}: record type {record_type} is unknown; use the version of penstock that wrote it"
        )


class FrameDamaged(StoreError):
    """A record of the replicated log's topic is not a frame that this version reads."""


class PartitionUnusable(StoreError):
    """The replicated log's partition holds what no store of this version may pass over."""

    def __init__(self, offset: int, reason: str) -> None:
        self.offset = offset
        super().__init__(
            f"offset {offset} of the replicated log's partition: {reason}; this store applies nothing from there on: "
            "use the version of penstock that wrote it, and let only stores write to the topic"
        )


class HistoryElsewhere(StoreError):
    """The log in the partition does not begin where this store's ends: another store has what is before."""

    def __init__(self, offset: int, base: int, accepted: int) -> None:
        super().__init__(
            f"the log begins there with log_offset {base} (offset {offset} of the partition), and this store has it up "
            f"to {accepted}"
        )


class NotLeading(StoreError):
    """This store does not lead its cluster now, so nothing was stored; the leader may be another one."""

    def __init__(self, leader: str) -> None:
        self.leader = leader
        super().__init__(f"this store does not lead its cluster; the last leader known is {leader or 'none'}: ask it")


class ReplicationBehind(StoreError):
    """Too much waits for the replicated log; nothing of this was stored."""

    def __init__(self, waiting_bytes: int) -> None:
        super().__init__(
            f"{waiting_bytes} bytes wait for the replicated log, and this was not stored: see whether Kafka answers"
        )


class FlushTimeout(StoreError):
    """The disk did not confirm a write within flush_timeout_ms."""


class RecordTooLarge(StoreError):
    """An append that no segment can hold."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"an append of {size_bytes} bytes exceeds the {limit_bytes} bytes a segment can hold")


class StoreAway(StoreError):
    """The store's process cannot be reached, or has lost what was under way."""


class RequestRefused(StoreError):
    """The store understood a request and refuses it. `code` is a FailureCode of the wire."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class WireError(StoreError):
    """A peer broke the wire protocol; close the connection to it."""


class HandshakeRefused(StoreError):
    """The store does not let this peer in."""

    def __init__(self, reason: str, message: str, retry_s: int = 0, leader: str = "") -> None:
        """`retry_s`: after so many seconds it may; 0: not known. `leader`: HOST:PORT of the store that leads it,
        where that is why, and it is known.
        """
        self.reason = reason
        self.retry_s = retry_s
        self.leader = leader
        super().__init__(f"the store refused the connection ({reason}): {message}")
