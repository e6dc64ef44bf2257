"""RocksDB, holding what can be rebuilt from the log. One column family, key prefixes, no write-ahead log of its own.

Every write batch carries two positions. Of the records before `applied_offset` everything is in: after a crash the log
is replayed from there. Sessions and the set of held filters are already as of `state_offset`, which is at or behind it:
up to there only what may be applied twice is.
(One column family, because rocksdict flushes only one even with atomic_flush.)
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from store.errors import IndexFailed

APPLIED_KEY = b"m:applied_offset"
STATE_KEY = b"m:state_offset"
FORMAT_KEY = b"m:format"
FORMAT = 3
BLOCK_CACHE_BYTES = 32 << 20
LEVEL_0_FILES = 8
LEVEL_1_BYTES = 1 << 30


class Index:
    """A RocksDB folder. Reads see what was written, flushed or not; a crash takes it back to some earlier batch.

    Raises IndexFailed for whatever RocksDB reports.
    """

    def __init__(self, folder: Path, write_buffer_bytes: int, is_copy: bool = False) -> None:
        """`is_copy`: its files are links to those of an index in use, which may be deleted there."""
        self.folder = folder
        self.writes = 0
        self._batch = WriteBatch(raw_mode=True)
        options = _options(write_buffer_bytes)
        if is_copy:
            options.set_max_open_files(-1)  # all are opened now and stay so
            options.set_disable_auto_compactions(True)
        with self._failing():
            self._db = Rdict(str(folder), options=options)
        write_options = WriteOptions()
        write_options.disable_wal = True  # type: ignore[method-assign, assignment]  # its stub is wrong
        self._db.set_write_options(write_options)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # rocksdict raises nothing more specific
            raise IndexFailed(self.folder, str(error)) from error

    @property
    def applied_offset(self) -> int:
        """The log is contained up to here."""
        return int.from_bytes(self.get(APPLIED_KEY) or b"", "big")

    @property
    def state_offset(self) -> int:
        """Sessions, peers and held filters are what the log up to here makes of them."""
        return max(self.applied_offset, int.from_bytes(self.get(STATE_KEY) or b"", "big"))

    @property
    def format(self) -> int:
        """Of what stands in it; FORMAT if nothing does."""
        written = int.from_bytes(self.get(FORMAT_KEY) or b"\1", "big")
        return written if self.applied_offset else FORMAT

    def fits(self, base: int, end: int) -> bool:
        """Whether it can be brought up to date with a log that goes from `base` to `end`."""
        return self.format == FORMAT and base <= self.applied_offset and self.state_offset <= end

    # --- reading

    def get(self, key: bytes) -> bytes | None:
        with self._failing():
            value: bytes | None = self._db.get(key)
        return value

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The entry with the greatest key that is not above `key`, whatever its prefix."""
        with self._failing():
            cursor = self._db.iter()
            cursor.seek_for_prev(key)
            if cursor.valid():
                return cursor.key(), cursor.value()
            cursor.status()
        return None

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < stop, in order."""
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(stop)
        with self._failing():
            cursor = self._db.iter(bounds)
            cursor.seek(start)
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()
        with self._failing():
            cursor.status()

    def cursor(self, start: bytes, stop: bytes) -> "Cursor":
        """For looking at several places between two keys, as of now."""
        with self._failing():
            return Cursor(self._db.iter(), start, stop, self._failing)

    def first(self, start: bytes, stop: bytes) -> tuple[bytes, bytes] | None:
        """The first entry with start <= key < stop."""
        return next(self.scan(start, stop), None)

    # --- writing

    def put(self, key: bytes, value: bytes) -> None:
        """Stage a put for the next write()."""
        self._batch.put(key, value)

    def delete(self, key: bytes) -> None:
        self._batch.delete(key)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        self._batch.delete_range(start, stop)

    def write(self, applied_offset: int, state_offset: int) -> None:
        """Write what was staged, atomically, as the state that the two positions stand for.

        If it fails nothing was written and nothing is staged any more.
        """
        batch, self._batch = self._batch, WriteBatch(raw_mode=True)
        batch.put(APPLIED_KEY, applied_offset.to_bytes(8, "big"))
        batch.put(STATE_KEY, state_offset.to_bytes(8, "big"))
        batch.put(FORMAT_KEY, FORMAT.to_bytes(8, "big"))
        with self._failing():
            self._db.write(batch)
        self.writes += 1

    def flush(self, wait: bool = True) -> None:
        """Make what was written durable."""
        with self._failing():
            self._db.flush(wait)

    def checkpoint(self, folder: Path) -> None:
        """Make `folder` a copy of this moment; files are shared by hard links."""
        with self._failing():
            Checkpoint(self._db).create_checkpoint(str(folder))

    def close(self) -> None:
        with self._failing():
            self._db.close()


class Cursor:
    """A place in a range of keys. Raises IndexFailed for whatever RocksDB reports."""

    def __init__(
        self, cursor: RdictIter, start: bytes, stop: bytes, failing: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._cursor = cursor
        self._start = start
        self._stop = stop
        self._failing = failing

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Go to the greatest key that is not above `key`, which is in the range."""
        self._cursor.seek_for_prev(key)
        return self._entry()

    def at_or_after(self, key: bytes) -> tuple[bytes, bytes] | None:
        self._cursor.seek(key)
        return self._entry()

    def next(self) -> tuple[bytes, bytes] | None:
        """The key behind the one that was found."""
        self._cursor.next()
        return self._entry()

    def _entry(self) -> tuple[bytes, bytes] | None:
        if self._cursor.valid():
            key: bytes = self._cursor.key()
            return (key, self._cursor.value()) if self._start <= key < self._stop else None
        with self._failing():
            self._cursor.status()
        return None


def _options(write_buffer_bytes: int) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(4)
    options.set_max_background_jobs(2)
    # Every queue grows at its own end, so a flushed buffer overlaps all of level 1: merge into it seldom (ADR 3).
    options.set_max_bytes_for_level_base(LEVEL_1_BYTES)
    options.set_level_zero_file_num_compaction_trigger(LEVEL_0_FILES)
    options.set_level_zero_slowdown_writes_trigger(5 * LEVEL_0_FILES)
    options.set_level_zero_stop_writes_trigger(8 * LEVEL_0_FILES)
    options.set_max_open_files(256)
    options.set_keep_log_file_num(2)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
