"""Errors of the tier, one line each: the place, what is wrong with it, and the remedy."""

from penstock.errors import PenstockError


class TierError(PenstockError):
    """Base of the tier's errors."""


class BadTierUrl(TierError):
    """The URL names no place for a table."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}; tier.url wants a folder, or a URL like s3://bucket/fleet")


class StorageUnreachable(TierError):
    """The storage does not answer, or answers with an error. It may be tried again."""

    def __init__(self, where: str, reason: str) -> None:
        self.fault = f"{where}: {reason}"
        super().__init__(f"{where}: {reason}; it is tried again")


class StorageRefuses(TierError):
    """The storage does not give this process the rights that it needs."""

    def __init__(self, where: str, reason: str) -> None:
        self.fault = f"{where}: {reason}"
        super().__init__(f"{where}: {reason}; give this process the rights to list, read, write and delete there")


class ObjectMissing(TierError):
    """A bucket, a folder or an object is not there."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        super().__init__(
            f"{where}: is not there ({reason}); make the bucket, or bring the object back from a version or a copy"
        )


class ObjectDamaged(ObjectMissing):
    """An object is there, and is not what was written."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        TierError.__init__(self, f"{where}: is damaged ({reason}); bring the object back from a version or a copy")


class TornCommit(TierError):
    """Of the table's newest commit there is a part only. The log has what it wrote: it was never synced."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"{where}: is a part of a commit, as a power cut may leave it ({reason}); delete it: what it says is "
            "written again from the log"
        )


class FilesUnseen(TierError):
    """The files of the table are not those that its newest commit counts. Nothing is written to it, or read there."""

    def __init__(self, url: str, version: int, stated: int, seen: int) -> None:
        super().__init__(
            f"{url}: version {version} has {stated} files and {seen} are seen: the storage gave a wrong answer; it is "
            "tried again. If this stays, a checkpoint is wrong: delete _delta_log/_last_checkpoint and the newest "
            "_delta_log/*.checkpoint.parquet"
        )


class NotOurTable(TierError):
    """Something else lies at the URL."""

    def __init__(self, url: str, what: str) -> None:
        super().__init__(f"{url}: {what}; set tier.url to an empty place")


class TableTooNew(TierError):
    """A later version of Penstock, or of Delta, has written the table."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: the table is of a later version ({reason}); install that version of Penstock")


class AnotherStoresTable(TierError):
    """The table has the history of another log."""

    def __init__(self, url: str, theirs: str, ours: str) -> None:
        super().__init__(
            f"{url}: the table is of the log {theirs}, and this store has the log {ours}; "
            "set tier.url to a place of its own for each store"
        )


class LogBehindTable(TierError):
    """The table has history of this log that the log itself does not have."""

    def __init__(self, url: str, table_end: int, ours: str) -> None:
        super().__init__(
            f"{url}: the table goes up to log_offset {table_end}, and this log {ours}: it is an older copy; "
            "make it with `penstock store restore` and as many --skip-bytes as were stored since, "
            "or set another tier.url"
        )


class RangeTaken(TierError):
    """Another process has committed from here on. Whoever is told so stops, or begins anew at the table's end."""

    def __init__(self, url: str, start: int, end: int) -> None:
        super().__init__(
            f"{url}: log_offset {start} is no longer the table's end, {end} is; "
            "another process writes the history of this log: stop one of them"
        )


class FilesReplaced(TierError):
    """Another process has merged files of the table meanwhile."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"{url}: another process has replaced files that were merged here; run one tier for each table"
        )


class MergeDiffers(TierError):
    """Merged files would not have the rows of the files that they replace. Nothing was changed."""

    def __init__(self, url: str, files: int) -> None:
        super().__init__(f"{url}: {files} files stay as they are, since merging them gave other rows; report this")
