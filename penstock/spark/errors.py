"""What the Spark source tells its user, in one line each."""

from pathlib import Path

from penstock.errors import PenstockError


class SparkSourceError(PenstockError):
    """Base of what the Spark source reports."""


class BadOption(SparkSourceError):
    """An option, or the schema, asks for something there is not."""


class FolderUnreadable(SparkSourceError):
    """There is no log at this path that this process may read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}; load() wants the data folder of a Penstock server, readable on every node")


class LogDamaged(SparkSourceError):
    """What was complete does not read back."""

    def __init__(self, segment: Path, log_offset: int, reason: str) -> None:
        super().__init__(
            f"{segment}: damaged at log_offset {log_offset} ({reason}); restore this file from a copy, "
            "and see `penstock store inspect`"
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


class ExportUnusable(SparkSourceError):
    """An export's folder, or one of its files, is not as it should be."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
