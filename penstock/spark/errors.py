"""Errors of the Spark source, one line each for its user."""

from pathlib import Path
from typing import Self

from penstock.errors import PenstockError


class SparkSourceError(PenstockError):
    """Base of the Spark source's errors."""


class BadSparkOption(SparkSourceError):
    """An option or the schema asks for something that does not exist."""


class WrongPython(SparkSourceError):
    """Spark's workers run a Python without Penstock."""

    def __init__(self, theirs: str, ours: str) -> None:
        super().__init__(
            f"Spark's workers run {theirs}, which has no Penstock: unset PYSPARK_PYTHON, or set it to {ours}, "
            "and start Spark again"
        )


class FolderUnreadable(SparkSourceError):
    """There is no readable log at this path."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}; load() wants the data folder of a Penstock server, readable on every node")


class LogDamaged(SparkSourceError):
    """Complete bytes of the log do not read back valid."""

    def __init__(self, segment: Path, log_offset: int, reason: str) -> None:
        super().__init__(
            f"{segment}: damaged at log_offset {log_offset} ({reason}); restore this file from a copy, "
            "and see `penstock store check`"
        )


class IndexUnreadable(SparkSourceError):
    """The column queue_offset cannot be filled in."""

    def __init__(self, index: Path) -> None:
        super().__init__(
            f"{index}: cannot be read, or is not of this log; "
            "try again, or leave queue_offset out with the option `columns`"
        )


class DataLost(SparkSourceError):
    """The log does not have a position (any more)."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; set failOnDataLoss to false to go on without what is gone")

    @classmethod
    def at_gap(cls, path: object, log_offset: int) -> Self:
        return cls(f"{path}: what stood at log_offset {log_offset} was damaged and is in quarantine")


class TierUnreadable(SparkSourceError):
    """The table that the option `tier` names cannot be read, or is of another log."""


class AnotherLog(SparkSourceError):
    """A checkpoint belongs to another log than the one that is read."""

    def __init__(self, path: object, theirs: str, ours: str) -> None:
        super().__init__(
            f"{path}: the checkpoint is of another log (identity {theirs}, this one has {ours}): of another store, "
            "or of one that was made anew or restored since; give the query a checkpointLocation of its own, or set "
            "failOnDataLoss to false to go on at the same log_offset here"
        )


class StoreUnreachable(SparkSourceError):
    """No store has answered at its address within the timeout."""


class StoreRefusesUs(SparkSourceError):
    """A store refuses this program, or cannot be trusted."""


class RequestFailed(SparkSourceError):
    """The store refused a request. `code` is that of the wire protocol."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class ReadDamaged(SparkSourceError):
    """Bytes that a store sent do not read back valid."""

    def __init__(self, url: str, log_offset: int, reason: str) -> None:
        super().__init__(f"{url}: damaged at log_offset {log_offset} ({reason}); see `penstock store check` there")


class BadRow(SparkSourceError):
    """A row cannot be a message. No row of its batch is published."""

    def __init__(self, partition: int, row: int, topic: str, reason: str) -> None:
        super().__init__(f"row {row} of partition {partition} (topic {topic}) is no message: {reason}")


class ExportUnusable(SparkSourceError):
    """An export's folder, or one of its files, is not valid."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
