"""Partitions that are ranges of the log: in the log itself, or in the tier's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from penstock.tier.data_files import DataFile  # needs the extra `tier`


@dataclass
class LogRange(InputPartition):
    """The messages that begin in [start, end), as log_offsets."""

    start: int
    end: int


@dataclass
class TierRange(InputPartition):
    """Data files of the tier's table, of each the rows with start <= log_offset < end."""

    files: tuple[tuple[DataFile, int, int], ...]
