"""The index: RocksDB with the state that can be rebuilt from the log. One column family, key prefixes, no WAL.

Every write batch carries two positions. `applied_offset`: all records before it are applied; after a crash the log is
replayed from there. `state_offset`, at or after it: sessions and the set of held filters are already as of there; of
the records between the two, only effects that may be applied twice are in. (One column family, because rocksdict
flushes only one, even with atomic_flush.)
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from store.errors import IndexBusy, IndexDamaged, IndexFailed
from store.files.descriptors import index_files
from store.files.folder import CHECKPOINT, INDEX, LOG
from store.files.marks import Slot, decode_remembered, read_marks

APPLIED_KEY = b"m:applied_offset"
STATE_KEY = b"m:state_offset"
FORMAT_KEY = b"m:format"
PUT_ASIDE_KEY = b"m:put_aside"
IDENTITY_KEY = b"m:identity"
MARKS_KEY = b"m:marks"
FORMAT = 3
DAMAGED = "DAMAGED"
"""A file in the folder of an index that proved damaged: the next start rebuilds the index."""
_BUSY = "Result incomplete:"  # RocksDB's error where a write would have to wait
_DAMAGE = ("Corruption:", "No such file or directory")  # RocksDB's errors that mean damage
UNFLUSHED = "rocksdb.num-immutable-mem-table"  # write buffers that are full and not in a file yet
ACTIVE_BUFFER = "rocksdb.cur-size-active-mem-table"
BLOCK_CACHE_BYTES = 32 << 20
MANIFEST_BLOCK_BYTES = 32 << 10
MANIFEST_HEADER_BYTES = 7
LAST_MANIFEST_TYPE = 4
LEVEL_0_FILES = 8
LEVEL_1_BYTES = 1 << 30


ResumesAt = Callable[[int], int | None]
"""Where a log is read on from a log_offset, see ReadableLog.resumes_at(); None: it is no position of that log."""


class IndexedLog(NamedTuple):
    """The log that an index belongs to, as each write of the index notes it."""

    put_aside_from: int = 0  # see Index.fits()
    identity: bytes = b""  # empty: not known
    remembered: Callable[[], bytes] | None = None  # what the index keeps for the log's next start


NO_LOG = IndexedLog()


class Index:
    """A RocksDB folder. Reads see all writes, flushed or not; a crash takes the index back to an earlier batch.

    Raises IndexFailed for any error of RocksDB; IndexDamaged if the error means damage.
    """

    def __init__(self, folder: Path, write_buffer_bytes: int, of: IndexedLog = NO_LOG, is_copy: bool = False) -> None:
        """Open a folder. `of`: its log, where it is written. `is_copy`: its files are links to those of an index in
        use, which may delete them.
        """
        self.folder = folder
        self.writes = 0
        self.is_damaged = False
        self._log = of
        self._batch = WriteBatch(raw_mode=True)
        options = _options(write_buffer_bytes)
        if is_copy:
            options.set_max_open_files(-1)  # all files are opened now and stay open
            options.set_disable_auto_compactions(True)
        if not _is_sane(folder):
            self._note_damage()
            raise IndexDamaged(folder, "Corruption: its manifest has records of an unknown type")
        with self._failing():
            self._db = Rdict(str(folder), options=options)
        self._waiting, self._at_once = _write_options(no_slowdown=False), _write_options(no_slowdown=True)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # rocksdict raises nothing more specific
            if any(what in str(error) for what in _DAMAGE):
                self._note_damage()
                raise IndexDamaged(self.folder, str(error)) from error
            if str(error).startswith(_BUSY):
                raise IndexBusy(self.folder) from error
            raise IndexFailed(self.folder, str(error)) from error

    def _note_damage(self) -> None:
        self.is_damaged = True
        with suppress(OSError):  # then the next start may find the damage again by itself
            (self.folder / DAMAGED).touch()

    @property
    def applied_offset(self) -> int:
        """All records before this log_offset are applied."""
        return int.from_bytes(self.get(APPLIED_KEY) or b"", "big")

    @property
    def state_offset(self) -> int:
        """Sessions, peers and held filters are as the records before this log_offset leave them."""
        return max(self.applied_offset, int.from_bytes(self.get(STATE_KEY) or b"", "big"))

    @property
    def format(self) -> int:
        """Format of the content; FORMAT if the index is empty."""
        written = int.from_bytes(self.get(FORMAT_KEY) or b"\1", "big")
        return written if self.applied_offset else FORMAT

    def fits(self, base: int, end: int, resumes_at: ResumesAt, put_aside_from: int = 0, identity: bytes = b"") -> bool:
        """True if this index can be brought up to date with a log that goes from `base` to `end`.

        `resumes_at`: of the log, see ReadableLog. `put_aside_from`: bytes that once lay after this log_offset are not
        part of the log, so the index must not have applied them. `identity`: of the log, where known; an index of an
        earlier version has none, and passes. Raises CorruptSegment, OSError of the log.
        """
        if identity and (self.get(IDENTITY_KEY) or identity) != identity:
            return False
        known = int.from_bytes(self.get(PUT_ASIDE_KEY) or b"", "big")
        is_of_this_log = known >= put_aside_from or self.state_offset <= put_aside_from
        is_within = base <= self.applied_offset and self.state_offset <= end
        if self.format != FORMAT or not is_within or not is_of_this_log:
            return False
        return resumes_at(self.applied_offset) is not None

    # --- reading

    def get(self, key: bytes) -> bytes | None:
        with self._failing():
            value: bytes | None = self._db.get(key)
        return value

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The entry with the greatest key that is not above `key`, of any prefix."""
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
        """A cursor for lookups at several places between two keys, as of now."""
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

    def write(self, applied_offset: int, state_offset: int, may_wait: bool = True) -> None:
        """Write the staged changes atomically, with their two positions.

        If it fails, nothing was written and nothing is staged any more. `may_wait`: wait where RocksDB has too much to
        merge; otherwise raise IndexBusy.
        """
        batch, self._batch = self._batch, WriteBatch(raw_mode=True)
        batch.put(APPLIED_KEY, applied_offset.to_bytes(8, "big"))
        batch.put(STATE_KEY, state_offset.to_bytes(8, "big"))
        batch.put(FORMAT_KEY, FORMAT.to_bytes(8, "big"))
        of = self._log
        batch.put(PUT_ASIDE_KEY, of.put_aside_from.to_bytes(8, "big"))
        if of.identity:
            batch.put(IDENTITY_KEY, of.identity)
        if of.remembered is not None:
            batch.put(MARKS_KEY, of.remembered())
        with self._failing():
            self._db.write(batch, self._waiting if may_wait else self._at_once)
        self.writes += 1

    def flush(self, wait: bool = True) -> None:
        """Make what was written durable."""
        with self._failing():
            self._db.flush(wait)

    def begin_flush(self) -> bool:
        """Start a flush in the background. False: a flush of older writes is still under way."""
        with self._failing():
            if self._db.property_int_value(UNFLUSHED):
                return False
            self._db.flush(False)
        return True

    @property
    def unflushed_bytes(self) -> int:
        """Memory of the write buffer that is being filled."""
        with self._failing():
            return self._db.property_int_value(ACTIVE_BUFFER) or 0

    @property
    def is_flushing(self) -> bool:
        """Whether full write buffers are not in files yet."""
        with self._failing():
            return bool(self._db.property_int_value(UNFLUSHED))

    def close(self) -> None:
        with self._failing():
            self._db.close()


class Cursor:
    """A place in a range of keys. Raises IndexFailed for any error of RocksDB."""

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
        """Go to the next key."""
        self._cursor.next()
        return self._entry()

    def _entry(self) -> tuple[bytes, bytes] | None:
        if self._cursor.valid():
            key: bytes = self._cursor.key()
            return (key, self._cursor.value()) if self._start <= key < self._stop else None
        with self._failing():
            self._cursor.status()
        return None


def remembered_marks(data: Path) -> Slot | None:
    """The log's marks as a data folder's closed index remembers them; None if it has none or does not open.

    `begin` may be from before retention dropped more; the checkpoint tells up to where it may have.
    """
    found = _closed_values(data / INDEX, MARKS_KEY)
    slot = decode_remembered(found[0]) if found[0] else None
    marks = read_marks(data / LOG)
    if slot is None or (marks is not None and marks.identity == slot.identity):  # these know where the log begins
        return slot
    for name in (CHECKPOINT, f"{CHECKPOINT}.old"):
        applied, identity = _closed_values(data / name, APPLIED_KEY, IDENTITY_KEY)
        if applied and identity == slot.identity:
            return slot._replace(begin=max(slot.begin, int.from_bytes(applied, "big")))
    return slot


def _closed_values(folder: Path, *keys: bytes) -> list[bytes | None]:
    """Values of a closed index; None for each if it does not open."""
    nothing: list[bytes | None] = [None] * len(keys)
    if not (folder / "CURRENT").exists() or not _is_sane(folder):  # no index: opening it would create the folder
        return nothing
    try:
        database = Rdict(str(folder), options=_options(1 << 20), access_type=AccessType.read_only())
        found: list[bytes | None] = [database.get(key) for key in keys]
        database.close()
    except Exception:  # rocksdict raises nothing more specific; the next user of the index gets the error
        return nothing
    return found


def _is_sane(folder: Path) -> bool:
    """Whether RocksDB may open this folder: if the manifest has a record of a log file's type, RocksDB reads on
    forever.

    Format: RocksDB's log format (blocks of 32 KiB; header of checksum 4, length 2, type 1; types 1 to 4).
    """
    try:
        data = (folder / (folder / "CURRENT").read_text().strip()).read_bytes()
    except (OSError, ValueError):
        return True  # RocksDB reports that itself
    at = 0
    while at + MANIFEST_HEADER_BYTES <= len(data):
        if at % MANIFEST_BLOCK_BYTES > MANIFEST_BLOCK_BYTES - MANIFEST_HEADER_BYTES:
            at += MANIFEST_BLOCK_BYTES - at % MANIFEST_BLOCK_BYTES
            continue
        if data[at + 6] > LAST_MANIFEST_TYPE:
            return False
        at += MANIFEST_HEADER_BYTES + int.from_bytes(data[at + 4 : at + 6], "little")
    return True


def foreseen_marks(data: Path) -> Slot | None:
    """Like remembered_marks(), also for an index in use, and without the change that rocksdict makes to its folder."""
    try:
        with TemporaryDirectory() as links:
            (Path(links) / LOG).symlink_to((data / LOG).resolve())
            for folder in filter(Path.is_dir, data.glob(f"{INDEX}*")):
                (Path(links) / folder.name).mkdir()
                for path in folder.iterdir():
                    if path.suffix == ".sst" or path.name == "CURRENT" or path.name.startswith("MANIFEST-"):
                        (Path(links) / folder.name / path.name).symlink_to(path.resolve())
            return remembered_marks(Path(links))
    except OSError:
        return None


def link_files(folder: Path, copy: Path) -> None:
    """Make `copy` a copy of an index's files, which its owner may use; tables never change once written, so they are
    linked. Raises OSError.
    """
    copy.mkdir()
    for name in sorted(os.listdir(folder)):
        if name.endswith(".sst"):
            (copy / name).symlink_to((folder / name).resolve())
        elif not name.startswith("LO") and not (folder / name).is_dir():  # LOCK and RocksDB's own log
            shutil.copyfile(folder / name, copy / name)


def fault_of(folder: Path) -> str:
    """The fault of an index that nobody uses; empty: it reads back. Reads all of it, and changes nothing.

    Raises OSError.
    """
    with TemporaryDirectory(prefix="penstock-read-") as temporary:
        try:
            link_files(folder, Path(temporary) / "index")
            index = Index(Path(temporary) / "index", 1 << 20, is_copy=True)
        except (FileNotFoundError, NotADirectoryError):
            return "it is missing"
        except IndexFailed as error:
            return str(error.__cause__ or error)
        try:
            for _ in index.scan(b"", b"\xff"):
                pass
        except IndexFailed as error:
            return str(error.__cause__ or error)
        finally:
            index.close()
    return ""


def _write_options(no_slowdown: bool) -> WriteOptions:
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]  # its stub is wrong
    options.no_slowdown = no_slowdown
    return options


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
    options.set_max_open_files(index_files())
    options.set_keep_log_file_num(2)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
