"""What the Spark source tells its user, in one line each."""

from pathlib import Path
from typing import Self

from penstock.errors import PenstockError


class SparkSourceError(PenstockError):
    """Base of what the Spark source reports."""


class BadOption(SparkSourceError):
    """An option, or the schema, asks for something there is not."""


class WrongPython(SparkSourceError):
    """Spark's workers run a Python that has no Penstock."""

    def __init__(self, theirs: str, ours: str) -> None:
        super().__init__(
            f"Spark's workers run {theirs}, which has no Penstock: unset PYSPARK_PYTHON, or set it to {ours}, "
            "and start Spark again"
        )


class FolderUnreadable(SparkSourceError):
    """There is no log at this path that this process may read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}; load() wants the data folder of a Penstock server, readable on every node")


class LogDamaged(SparkSourceError):
    """What was complete does not read back."""

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
    """A position is not in the log (any more)."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; set failOnDataLoss to false to go on without what is gone")

    @classmethod
    def at_gap(cls, path: object, log_offset: int) -> Self:
        return cls(f"{path}: what stood at log_offset {log_offset} was damaged and is in quarantine")


class AnotherLog(SparkSourceError):
    """A checkpoint is of another log than the one that is read."""

    def __init__(self, path: object, theirs: str, ours: str) -> None:
        super().__init__(
            f"{path}: the checkpoint is of another log (identity {theirs}, this one has {ours}): of another store, "
            "or of one that was made anew or restored since; give the query a checkpointLocation of its own, or set "
            "failOnDataLoss to false to go on at the same log_offset here"
        )


class StoreAway(SparkSourceError):
    """No store answers at its address, and none did for as long as was to be waited."""


class StoreRefusesUs(SparkSourceError):
    """There is a store, which does not let this program in; or one that is not to be trusted."""


class RequestFailed(SparkSourceError):
    """The store did not do what it was asked for. `code` is that of the wire protocol."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class ReadDamaged(SparkSourceError):
    """What a store sent does not read back."""

    def __init__(self, url: str, log_offset: int, reason: str) -> None:
        super().__init__(f"{url}: damaged at log_offset {log_offset} ({reason}); see `penstock store check` there")


class BadRow(SparkSourceError):
    """A row that cannot be a message. Nothing of its batch is published."""

    def __init__(self, partition: int, row: int, topic: str, reason: str) -> None:
        super().__init__(f"row {row} of partition {partition} (topic {topic}) is no message: {reason}")


class ExportUnusable(SparkSourceError):
    """An export's folder, or one of its files, is not as it should be."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
