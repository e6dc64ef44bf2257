"""The data files that a table lists, and what is fetched of them: a footer, or a row group, with one request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from penstock.tier.errors import ObjectDamaged
from penstock.tier.objects import ObjectFolder

FOOTER_BYTES: Final = 64 << 10  # fetched at the end of a file, before its footer's size is known
_PARQUET_END: Final = 8


class DataFile(NamedTuple):
    """A data file as the table lists it. `first` and `last` are log_offsets of rows."""

    first: int
    last: int
    path: str
    size_bytes: int
    latest_ms: int  # when its newest message was stored

    @property
    def day(self) -> str:
        """The partition that it is of, as 2026-11-25."""
        return self.path.partition("/")[0].removeprefix("day=")


def listed_files(table: DeltaTable) -> list[DataFile]:
    """The data files of the version that a table has in view."""
    actions = pa.table(table.get_add_actions(flatten=True))
    if not len(actions):
        return []
    latest = actions["max.timestamp"].cast(pa.timestamp("ms")).cast(pa.int64())
    names = ("min.log_offset", "max.log_offset", "path", "size_bytes")
    return list(map(DataFile, *(actions[name].to_pylist() for name in names), latest.to_pylist()))


def read_footer(objects: ObjectFolder, file: DataFile) -> pq.FileMetaData:
    """Where each column of each row group is. Raises TierError."""
    tail = _range(objects, file, max(0, file.size_bytes - FOOTER_BYTES), file.size_bytes)
    size = int.from_bytes(tail[-_PARQUET_END:-4], "little") + _PARQUET_END
    if size > len(tail):
        tail = _range(objects, file, max(0, file.size_bytes - size), file.size_bytes)
    with decoding(objects, file.path):
        return pq.read_metadata(pa.BufferReader(tail))


def row_group_places(footer: pq.FileMetaData, group: int, names: list[str] | None = None) -> tuple[int, int]:
    """Where a row group begins and ends in its file; with `names`, so much of it as has these columns."""
    columns = [footer.row_group(group).column(i) for i in range(footer.num_columns)]
    if names is not None:
        columns = [each for each in columns if each.path_in_schema in names]
    starts = [each.dictionary_page_offset or each.data_page_offset for each in columns]
    return min(starts), max(at + each.total_compressed_size for at, each in zip(starts, columns, strict=True))


def read_row_group(
    objects: ObjectFolder,
    file: DataFile,
    footer: pq.FileMetaData,
    group: int,
    columns: list[str] | None = None,
    as_dictionary: list[str] | None = None,
) -> pa.Table:
    """Columns of a row group (None: all). Raises TierError."""
    start, end = row_group_places(footer, group, columns)
    data = _range(objects, file, start, end)
    with decoding(objects, file.path):
        source = pa.PythonFile(_Window(data, start, file.size_bytes), mode="r")
        parquet = pq.ParquetFile(source, metadata=footer, read_dictionary=as_dictionary)
        return parquet.read_row_group(group, columns=columns, use_threads=False)


def _range(objects: ObjectFolder, file: DataFile, start: int, end: int) -> bytes:
    with objects.failures(file.path):
        return bytes(obstore.get_range(objects.store, file.path, start=start, end=end))


@contextmanager
def decoding(objects: ObjectFolder, name: str) -> Iterator[None]:
    """What libraries raise for bytes that they cannot read becomes a TierError that names the object."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise ObjectDamaged(f"{objects.url}/{name}", str(error)) from error


class _Window:
    """A part of a file, as a file."""

    closed = False

    def __init__(self, data: bytes, start: int, size: int) -> None:
        self._data, self._start, self._size = data, start, size
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        first = self._at - self._start
        if first < 0 or size < 0 or first + size > len(self._data):
            raise EOFError(f"bytes {self._at} to {self._at + size} were not fetched")
        self._at += size
        return self._data[first : first + size]

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        pass
