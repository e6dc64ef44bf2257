"""Writes data files, each with its index beside it: of a range of the log. Nothing counts before it is committed.

A range has one data file for each day. A file has a row group for each piece of at most 16 MB of the log, and its index
says what is in each of them (docs/tier.md).
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.columns import Messages
from penstock.tier.counters import QueueCounters
from penstock.tier.objects import ObjectFolder
from penstock.tier.rows import FILE_SCHEMA, GROUP_BYTES, RowGroup, row_groups
from store.records._records import places_of
from store.records.records import RecordType

INDEX_FOLDER: Final = "_penstock/index"
INDEX_FORMAT: Final = "1"
MOST_OPEN_DAYS: Final = 4
MOST_QUEUES: Final = 500_000
"""Of a range that is on its way: then it is full, however few bytes it has."""
_TOPIC: Final = pa.struct(
    [("topic", pa.binary()), ("first_row", pa.int32()), ("count", pa.int32()), ("first_queue_offset", pa.int64())]
)
_LEVEL: Final = pa.struct([("level", pa.binary()), ("first_queue_offset", pa.int64()), ("count", pa.int64())])
INDEX_SCHEMA: Final = pa.schema(
    [
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("rows", pa.int64()),
        ("topics", pa.list_(_TOPIC)),
        ("levels", pa.list_(_LEVEL)),
        ("keys", pa.list_(pa.uint64())),
    ],
    metadata={"penstock.index": INDEX_FORMAT},
)
"""A row for each row group, in their order. Names are those of the log, sorted; keys are sorted FNV-1a hashes.

Adjacent row groups of the same [start, end) are sorted as one. Each has a part of the topics, and a topic may go on in
the next. `levels`: first_queue_offset is of the level's first message in [start, end), count is of this row group.
"""

_PARQUET: Final[dict[str, Any]] = {
    "version": "2.6",
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": ["namespace", "topic", "flags", "tag", "client_id", "properties", "attributes"],
    "column_encoding": {
        "log_offset": "DELTA_BINARY_PACKED",
        "timestamp": "DELTA_BINARY_PACKED",
        "queue_offset": "DELTA_BINARY_PACKED",
    },
    "write_page_index": True,
    "store_schema": False,
}
_TOPIC_BLOOM: Final = {"ndv": 16_384, "fpp": 0.05}  # 16 KB of a row group
_KEY_BLOOM: Final = {"ndv": 65_536, "fpp": 0.05}


def index_of(path: str) -> str:
    """The path of a data file's index."""
    return f"{INDEX_FOLDER}/{path.rpartition('/')[2].removesuffix('.parquet')}.arrow"


def is_merged(path: str) -> bool:
    """Whether a data file has rows of other files. Raises ValueError if the name is none that FileWriter gives.

    Such a name is START-TOKEN.parquet of a file as the dispatcher wrote it, START-merged-TOKEN.parquet of a merged one.
    """
    start, *merged, _ = path.rpartition("/")[2].split("-")
    if not start.isdecimal() or merged not in ([], ["merged"]):
        raise ValueError(f"{path} is no file of the tier")
    return bool(merged)


def read_index(data: bytes) -> Iterator[dict[str, pa.Array]]:
    """The columns of INDEX_SCHEMA of each row group. Raises pa.ArrowInvalid if these bytes are no index."""
    file = pa.ipc.open_file(data)
    for number in range(file.num_record_batches):
        batch = file.get_batch(number)
        yield dict(zip(batch.schema.names, batch.columns, strict=True))


@dataclass(frozen=True)
class WrittenFile:
    """A data file that is complete, and not of the table yet."""

    path: str
    size_bytes: int
    day: date
    rows: int
    log_offsets: tuple[int, int]  # of the first row and of the last
    times_ms: tuple[int, int]  # the earliest and the latest

    @property
    def paths(self) -> list[str]:
        return [self.path, index_of(self.path)]

    @property
    def stats(self) -> str:
        """Statistics as Delta has them, of the columns by which rows are looked for first."""
        first, last = (_instant(time_ms) for time_ms in self.times_ms)
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {"log_offset": self.log_offsets[0], "timestamp": first},
                "maxValues": {"log_offset": self.log_offsets[1], "timestamp": last},
                "nullCount": {"log_offset": 0, "timestamp": 0},
            }
        )


@dataclass(frozen=True)
class WrittenRange:
    """[start, end) of the log in files; `lost`: ranges in it of which there is nothing, merged."""

    start: int
    end: int
    files: tuple[WrittenFile, ...]
    lost: tuple[tuple[int, int], ...]
    token: int = field(default_factory=lambda: secrets.randbits(62))
    """Tells this commit from another writer's of the same range."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def paths(self) -> list[str]:
        return [path for file in self.files for path in file.paths]


class RangeWriter:
    """Writes a range of the log. Holds 16 MB of it, and what is on its way to storage.

    After an error it is of no use; the range is written anew by another, under other names.
    """

    def __init__(self, objects: ObjectFolder, counters: QueueCounters, start: int) -> None:
        self.start = self.end = start
        self._objects, self._counters = objects, counters
        self._buffer = np.empty(GROUP_BYTES, np.uint8)
        self._size = 0
        self._open: dict[int, FileWriter] = {}
        self._written: list[WrittenFile] = []
        self._lost: list[tuple[int, int]] = []
        self.paths: list[str] = []  # of everything that was begun

    @property
    def is_full(self) -> bool:
        """Whether it should be finished, as it has messages of many queues, which are counted in memory."""
        return self._counters.taken >= MOST_QUEUES

    @property
    def has_rows(self) -> bool:
        """Whether there is a message in the range so far, or a lost range. Looks through what is not written yet."""
        if self._open or self._written or self._lost:
            return True
        return len(Messages.find(self._buffer[: self._size], self.end - self._size)) > 0 if self._size else False

    def add(self, data: bytes | memoryview | NDArray[np.uint8], log_offset: int) -> None:
        """The next piece of the log: whole verified records, of at most 16 MB, or a single one that is larger.

        Raises ValueError if it does not begin where the range ends, TierError if storage fails.
        """
        if log_offset != self.end:
            raise ValueError(f"the piece begins at log_offset {log_offset}, the range ends at {self.end}")
        piece = np.frombuffer(data, np.uint8)
        if self._size + len(piece) > GROUP_BYTES:
            self._write_group()
        if len(piece) > GROUP_BYTES:
            self.end += len(piece)
            self._write(piece)
            return
        self._buffer[self._size : self._size + len(piece)] = piece
        self._size += len(piece)
        self.end += len(piece)

    def lose(self, end: int) -> None:
        """There is nothing up to `end`: retention was quicker, or it is between two segments that were lost."""
        self._write_group()
        self._note_lost(self.end, end)
        self.end = end

    def skip(self, end: int) -> None:
        """There are no records up to `end`: it is a segment's header."""
        self._write_group()
        self.end = end

    def finish(self) -> WrittenRange:
        """All of it is in storage. Raises TierError."""
        self._write_group()
        for day in list(self._open):
            self._close(day)
        return WrittenRange(self.start, self.end, tuple(self._written), tuple(self._lost))

    def _write_group(self) -> None:
        piece, self._size = self._buffer[: self._size], 0
        if len(piece):
            self._write(piece)

    def _write(self, piece: NDArray[np.uint8]) -> None:
        """The last piece before `end`."""
        messages = Messages.find(piece, self.end - len(piece))
        if messages.gap is not None:
            for at in places_of(piece.data, bytes((RecordType.GAP,))):
                size = int.from_bytes(piece[at : at + 4].tobytes(), "little")
                self._note_lost(messages.log_offset + at, messages.log_offset + at + size)
        if len(messages):
            for group in row_groups(messages, self.end, self._counters):
                self._of_day(group.day).write(group)

    def _note_lost(self, start: int, end: int) -> None:
        if self._lost and self._lost[-1][1] == start:
            start = self._lost.pop()[0]
        self._lost.append((start, end))

    def _of_day(self, day: int) -> "FileWriter":
        if day not in self._open:
            if len(self._open) == MOST_OPEN_DAYS:
                self._close(next(iter(self._open)))
            file = self._open[day] = FileWriter(self._objects, day, self.start)
            self.paths += file.paths
        return self._open[day]

    def _close(self, day: int) -> None:
        self._written.append(self._open.pop(day).finish())


class FileWriter:
    """A data file on its way, and its index beside it."""

    def __init__(
        self, objects: ObjectFolder, day: int, start: int, is_merged: bool = False, has_keys: bool | None = None
    ) -> None:
        """`has_keys`: whether keys have Bloom filters; None: if the first row group has a key."""
        self._day = date(1970, 1, 1) + timedelta(days=day)
        merged = "-merged" if is_merged else ""
        self.path = f"day={self._day}/{start:020}{merged}-{secrets.token_hex(6)}.parquet"
        self._file, self._index_file = map(objects.writer, self.paths)
        self._parquet: pq.ParquetWriter | None = None
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._index = pa.ipc.new_file(self._index_file, INDEX_SCHEMA, options=options)
        self._has_keys = has_keys
        self._rows = 0
        self._log_offsets: list[tuple[int, int]] = []
        self._times_us: list[tuple[int, int]] = []

    @property
    def paths(self) -> list[str]:
        return [self.path, index_of(self.path)]

    @property
    def size_bytes(self) -> int:
        """How much of it is written."""
        return self._file.size_bytes

    def write(self, group: RowGroup) -> None:
        if self._parquet is None:
            has_keys = self._has_keys if self._has_keys is not None else len(group.key_hashes) > 0
            blooms = {"topic": _TOPIC_BLOOM} | ({"key": _KEY_BLOOM} if has_keys else {})
            self._parquet = pq.ParquetWriter(self._file, FILE_SCHEMA, bloom_filter_options=blooms, **_PARQUET)
        self._parquet.write_table(pa.Table.from_batches([group.rows]), row_group_size=len(group.rows))
        self._index.write_batch(_index_row(group))
        self._rows += len(group.rows)
        self._log_offsets.append(_extent(group.rows, "log_offset"))
        self._times_us.append(_extent(group.rows, "timestamp"))

    def finish(self) -> WrittenFile:
        assert self._parquet is not None
        self._parquet.close()
        self._file.close()
        self._index.close()
        self._index_file.close()
        first, last = _joined(self._log_offsets)
        earliest, latest = _joined(self._times_us)
        times_ms = (earliest // 1000, latest // 1000)
        return WrittenFile(self.path, self._file.size_bytes, self._day, self._rows, (first, last), times_ms)


def _extent(rows: pa.RecordBatch, name: str) -> tuple[int, int]:
    values = rows.column(name).view(pa.int64()).to_numpy()
    return int(values.min()), int(values.max())


def _joined(extents: list[tuple[int, int]]) -> tuple[int, int]:
    return min(first for first, _ in extents), max(last for _, last in extents)


def _index_row(group: RowGroup) -> pa.RecordBatch:
    counts = np.array(group.counts, np.int32)
    topics = [
        pa.array(group.topics, pa.binary()),
        pa.array((np.cumsum(counts) - counts).astype(np.int32)),
        pa.array(counts),
        pa.array(group.first_offsets, pa.int64()),
    ]
    names = sorted(group.levels)
    levels = [
        pa.array(names, pa.binary()),
        pa.array([group.levels[name][0] for name in names], pa.int64()),
        pa.array([group.levels[name][1] for name in names], pa.int64()),
    ]
    columns = [
        pa.array([group.start]),
        pa.array([group.end]),
        pa.array([len(group.rows)]),
        _as_list(pa.StructArray.from_arrays(topics, fields=list(_TOPIC))),
        _as_list(pa.StructArray.from_arrays(levels, fields=list(_LEVEL))),
        _as_list(pa.array(group.key_hashes)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INDEX_SCHEMA)


def _as_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def _instant(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
