"""The table of a log: made or opened at a URL, checked that it is this log's, and given each range once.

deltalake accepts a commit whose version falls, as long as its writer has seen the newest state. So the table is looked
at before each commit: a range is committed from exactly where the table ends, by the log that wrote last, and deltalake
repeats nothing. Of two writers at once the store lets one put the commit's object there; the other looks again.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from penstock.tier.commits import NO_CHECKPOINT, TableView, commit_path, properties
from penstock.tier.counters import MOST_RECENT, QueueCounters
from penstock.tier.counts import counts_of
from penstock.tier.data_files import DataFile, decoding, listed_files
from penstock.tier.errors import (
    AnotherStoresTable,
    FilesReplaced,
    LogBehindTable,
    NotOurTable,
    ObjectMissing,
    RangeTaken,
    StorageUnreachable,
    TableTooNew,
    TierError,
)
from penstock.tier.files import RangeWriter, WrittenFile, WrittenRange
from penstock.tier.lost import LOST_FOLDER, LOST_SCHEMA, opened_lost, settle_lost
from penstock.tier.objects import ObjectFolder
from penstock.tier.rows import FILE_SCHEMA

log = logging.getLogger("penstock.tier")

FORMAT: Final = 1
COUNTERS_FOLDER: Final = "_penstock/counters"
COMMITS_PER_SNAPSHOT: Final = 256
COMMITS_PER_CHECKPOINT: Final = 20
"""A commit reads all commits since the last checkpoint, and a checkpoint writes the list of all files."""
MOST_COLLISIONS: Final = 20
_FORMAT, _LOGS = "penstock.format", "penstock.logs"
_WRITER: Final = "penstock.writer"
_REMOVED: Final = "delta.deletedFileRetentionDuration"
REMOVED_BY_DEFAULT: Final = "interval 168 hours"
_PARTITION: Final = ["day"]
TABLE_SCHEMA: Final = pa.schema(
    [
        ("day", pa.date32()),
        *((each.name, pa.string() if pa.types.is_dictionary(each.type) else each.type) for each in FILE_SCHEMA),
    ]
)


@dataclass(frozen=True)
class WrittenLog:
    """The log whose history is written: its identity in hexadecimal, and the log_offsets that it has.

    `restored_from`: the identities of the logs that it has the beginning of, each with the log_offset from which on the
    next of them had records of its own.
    """

    identity: str
    first: int
    end: int
    restored_from: Mapping[str, int] = field(default_factory=dict)


class TierTable:
    """The one writer of a table. For one thread at a time; its calls wait for storage."""

    def __init__(self, objects: ObjectFolder, view: TableView, written: WrittenLog) -> None:
        """See open()."""
        self._objects = objects
        self._view = view
        self._log = written
        self._schema = Schema.from_arrow(TABLE_SCHEMA)
        self._counters = QueueCounters()
        self._counted = 0  # queues of the commits since the last snapshot
        self._commits = 0
        self._writer: RangeWriter | None = None
        self._unsure: WrittenRange | None = None  # was on its way when storage failed: perhaps it is committed
        self.end = 0

    @classmethod
    def open(cls, objects: ObjectFolder, written: WrittenLog, seed: Iterable[tuple[bytes, int]] = ()) -> "TierTable":
        """Open the table of this log, or make it.

        `seed`: queues whose first message has been counted before `written.first`, with their next queue_offset; it
        counts when the table is made. Raises TierError.
        """
        view = TableView.opened(objects) or TableView(objects, _made(objects, written, seed))
        self = cls(objects, view, written)
        self._join(logs_of(objects, view.table))
        self.end = self._position()
        if self.end > written.end:
            raise LogBehindTable(objects.url, self.end, f"ends at {written.end}")
        self._settle_commit(view.table.version())  # whoever made it may have been killed before it was on the disk
        self._load_counters()
        return self

    def begin(self) -> RangeWriter:
        """A writer of the next range, which begins at `end`. One that is not committed counts for nothing.

        A range that was on its way when storage failed is committed first. Raises as commit() does.
        """
        if self._unsure is not None:
            self.commit(self._unsure)
        self.abandon()
        self._writer = RangeWriter(self._objects, self._counters, self.end)
        return self._writer

    def abandon(self) -> None:
        """Delete what the range has left that was not committed, as far as storage answers.

        Files whose commit was tried stay for the table's vacuum: the table may have them.
        """
        if self._unsure is not None:
            return
        self._counters.forget()
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                self._objects.delete(writer.paths)
            except TierError as error:
                log.info("files of a range that is written anew stay until the table is vacuumed: %s", error)

    def commit(self, written: WrittenRange) -> None:
        """Make the files of a range part of the table, once.

        Raises RangeTaken or AnotherStoresTable if another process has written from here on: this table is then of no
        use any more. Raises another TierError if storage fails: whether the range is committed is then unknown, and the
        same call says it once storage answers.
        """
        self._objects.make_durable(written.paths)
        self._commit_lost(written)
        adds = [_added(file) for file in written.files]
        transactions = [Transaction(self._log.identity, written.end), Transaction(_WRITER, written.token)]

        def put() -> int:
            self._unsure, self._writer = written, None
            return self._put(adds, transactions)

        self._commit_once(lambda: self._is_committed(written), put)
        self._unsure = self._writer = None
        self.end = written.end
        self._counted += self._counters.commit()
        self._commits += 1
        self._snapshot_in_time()

    def replace(self, old: Sequence[DataFile], new: Sequence[WrittenFile]) -> None:
        """Make files part of the table in place of those whose rows they have, all in one commit.

        Raises FilesReplaced or AnotherStoresTable if another process was quicker. Raises another TierError if storage
        fails: it is then unknown which files count, until files() says so.
        """
        self._objects.make_durable([path for file in new for path in file.paths])
        changes: list[AddAction | RemoveAction] = [
            *(_added(file, data_change=False) for file in new),
            *map(_removed, old),
        ]

        def is_done() -> bool:
            paths = {file.path for file in self.files()}
            is_committed = paths.issuperset(file.path for file in new)
            if not is_committed and not paths.issuperset(file.path for file in old):
                raise FilesReplaced(self._objects.url)
            return is_committed

        self._commit_once(is_done, lambda: self._put(changes, []))

    def files(self) -> list[DataFile]:
        """The data files of the newest version. Raises AnotherStoresTable."""
        self._look()
        with self._objects.failures(self._objects.url):
            return listed_files(self._view.table)

    def keep_removed(self, hours: int) -> None:
        """Have the table know files that were removed for so long, as also other programs' VACUUM respects."""
        wanted = f"interval {hours} hours"

        def is_kept() -> bool:
            self._look()
            return self._view.table.metadata().configuration.get(_REMOVED, REMOVED_BY_DEFAULT) == wanted

        def put() -> int:
            stated = properties([], 1, self._view.files)
            self._view.table.alter.set_table_properties(
                {_REMOVED: wanted}, commit_properties=stated, post_commithook_properties=NO_CHECKPOINT
            )
            return self._view.table.version()

        if not is_kept():
            self._commit_once(is_kept, put)

    def removed_since(self, hours: int) -> set[str]:
        """Paths of files that were removed from the table less than so many hours ago."""
        with self._objects.failures(self._objects.url):
            removed, long_ago = (
                self._view.table.vacuum(since, dry_run=True, enforce_retention_duration=False) for since in (0, hours)
            )
        return set(removed).difference(long_ago)

    @property
    def begun(self) -> list[str]:
        """Paths of files that are not committed, or not known to be."""
        return [path for each in (self._writer, self._unsure) if each is not None for path in each.paths]

    def _commit_once(self, is_committed: Callable[[], bool], put: Callable[[], int]) -> None:
        """Commit what the newest version lacks, and see that it is on the disk. `put` returns its version."""
        for _ in range(MOST_COLLISIONS):
            if is_committed():
                version = self._view.table.version()
                break
            with self._objects.failures(self._objects.url), suppress(CommitFailedError):
                # If another commit was in front of it, or the answer to this one was lost: look again.
                version = put()
                break
        else:
            raise StorageUnreachable(self._objects.url, f"other commits were quicker {MOST_COLLISIONS} times")
        self._settle_commit(version)
        if (version + 1) % COMMITS_PER_CHECKPOINT == 0:
            self._make_checkpoint()

    def _make_checkpoint(self) -> None:
        """Of the newest version. If it fails, the next one stands for more commits."""
        try:
            self._look()
            self._view.make_checkpoint()
        except TierError as error:
            log.warning("a checkpoint of the table is made later: %s", error)

    def _settle_commit(self, version: int) -> None:
        """See to it that the newest commit outlives a power cut: then the log may drop what the table has."""
        self._objects.make_durable([commit_path(version)])

    def _is_committed(self, written: WrittenRange) -> bool:
        """Raises RangeTaken, AnotherStoresTable."""
        self._look()
        end = self._position()
        if end == written.end and self._view.version_of(_WRITER) == written.token:
            return True
        if end != written.start:
            raise RangeTaken(self._objects.url, written.start, end)
        return False

    def _look(self) -> None:
        """Look at the newest version. Raises AnotherStoresTable."""
        self._view.look()
        logs = logs_of(self._objects, self._view.table)
        if next(reversed(logs)) != self._log.identity:
            raise AnotherStoresTable(self._objects.url, next(reversed(logs)), self._log.identity)

    def _put(self, changes: Sequence[AddAction | RemoveAction], transactions: list[Transaction]) -> int:
        """Commit after the version that was seen last. Returns the new version."""
        removed = sum(isinstance(change, RemoveAction) for change in changes)
        stated = properties(transactions, len(changes), self._view.files + len(changes) - 2 * removed)
        self._view.table.create_write_transaction(
            list(changes),
            "append",
            self._schema,
            _PARTITION,
            commit_properties=stated,
            post_commithook_properties=NO_CHECKPOINT,
        )
        return self._view.table.version() + 1

    def _position(self) -> int:
        """Where the history of this log ends in the table, as it was seen last."""
        position = self._view.version_of(self._log.identity)
        if position is None:
            raise NotOurTable(self._objects.url, f"the table does not say how far it has log {self._log.identity}")
        return position

    # --- whose table it is

    def _join(self, logs: dict[str, int]) -> None:
        """See that this log is the one that writes, or becomes it. Raises AnotherStoresTable, LogBehindTable."""
        newest, ours = next(reversed(logs)), self._log
        if newest == ours.identity:
            return
        own_from = ours.restored_from.get(newest)
        if own_from is None or ours.identity in logs:
            raise AnotherStoresTable(self._objects.url, newest, ours.identity)
        end = self._view.version_of(newest) or 0
        if own_from < end:
            raise LogBehindTable(self._objects.url, end, f"has records of its own from {own_from} on")
        logs = {**logs, ours.identity: end}
        stated = properties([Transaction(ours.identity, end)], 1, self._view.files)
        with self._objects.failures(self._objects.url):
            self._view.table.alter.set_table_properties(
                {_LOGS: _listed(logs)},
                raise_if_not_exists=False,
                commit_properties=stated,
                post_commithook_properties=NO_CHECKPOINT,
            )
        self._look()

    # --- ranges that were lost

    def _commit_lost(self, written: WrittenRange) -> None:
        """Put down the lost ranges before the range itself: a kill between them leaves rows that are right already."""
        if not written.lost:
            return
        place = f"{self._objects.delta_url}/{LOST_FOLDER}"
        table = opened_lost(self._objects)
        with self._objects.failures(LOST_FOLDER):
            known = -1 if table is None else table.transaction_version(self._log.identity) or 0
            new = [(max(start, known), end) for start, end in written.lost if end > known]
            if new:
                rows = pa.table(
                    [[start for start, _ in new], [end for _, end in new], [self._log.identity] * len(new)],
                    schema=LOST_SCHEMA,
                )
                options, stated = self._objects.options, properties([Transaction(self._log.identity, written.end)], 1)
                write_deltalake(place, rows, mode="append", storage_options=options, commit_properties=stated)
        settle_lost(self._objects)  # also what a process that was killed has put down

    # --- counters

    @property
    def is_behind_loss(self) -> bool:
        """Whether the last range ends where something was lost, so that queues are to be counted anew."""
        lost = opened_lost(self._objects)
        with self._objects.failures(LOST_FOLDER):
            return lost is not None and lost.transaction_version(self._log.identity) == self.end

    def count_on(self, queues: Iterable[tuple[bytes, int]]) -> None:
        """Go on counting queues from where the store has them at the table's end. Raises TierError."""
        found = dict(queues)
        self._counters.jump_to(found.keys(), found.values())
        self._objects.put(_snapshot_name(self.end, self._log.identity), self._counters.snapshot())

    def _snapshot_in_time(self) -> None:
        """Put the counters down, before what a start reads besides them is more than they are."""
        if self._commits >= COMMITS_PER_SNAPSHOT or self._counted >= max(MOST_RECENT, len(self._counters)):
            try:
                self._objects.put(_snapshot_name(self.end, self._log.identity), self._counters.snapshot())
                old = self._snapshots()[:-2]
                self._objects.delete(old)
            except TierError as error:
                log.warning("the counters of queue_offset are put down later: %s", error)
            else:
                self._commits = self._counted = 0

    def _snapshots(self) -> list[str]:
        """Names of the counters' snapshots of this table, oldest first."""
        logs = logs_of(self._objects, self._view.table)
        names = self._objects.names(COUNTERS_FOLDER)
        return [name for name in names if name.removesuffix(".arrow").rpartition("-")[2] in logs]

    def _load_counters(self) -> None:
        """The newest snapshot, and what was committed since then."""
        since = self._load_snapshot()
        with self._objects.failures(self._objects.url):
            files = listed_files(self._view.table)
        found: dict[bytes, int] = {}

        def before(queue: bytes) -> int:
            return found[queue] if queue in found else self._counters.next_of(queue)

        for file in sorted(files):
            if file.last >= since:
                self._commits += 1
                for queues, nexts in counts_of(self._objects, file, before):
                    self._counted += len(queues)
                    found.update(zip(queues, nexts, strict=True))
                    if len(found) > MOST_RECENT:
                        self._counters.raise_to(found.keys(), found.values())
                        found.clear()
        self._counters.raise_to(found.keys(), found.values())

    def _load_snapshot(self) -> int:
        """The newest one that can be read. Returns the log_offset up to which it counts; 0: there is none."""
        for name in reversed(self._snapshots()):
            try:
                data = self._objects.get(name)
                with decoding(self._objects, name):
                    self._counters = QueueCounters.load(data)
            except ObjectMissing as error:
                log.warning("%s; it is done without: delete it, queues are counted from the one before", error)
            else:
                return int(name.rpartition("/")[2].partition("-")[0])
        return 0


def _added(file: WrittenFile, data_change: bool = True) -> AddAction:
    """Of a commit by which a file becomes part of the table."""
    return AddAction(file.path, file.size_bytes, {"day": str(file.day)}, file.times_ms[1], data_change, file.stats)


def _removed(file: DataFile) -> RemoveAction:
    return RemoveAction(file.path, False, int(time.time() * 1000), file.size_bytes, {"day": file.day})


def _made(objects: ObjectFolder, written: WrittenLog, seed: Iterable[tuple[bytes, int]]) -> DeltaTable:
    if not objects.is_empty():
        raise NotOurTable(objects.url, "there is something that is not a table of Penstock")
    queues = dict(seed)
    if queues:
        counters = QueueCounters()
        counters.raise_to(queues.keys(), queues.values())
        objects.put(_snapshot_name(written.first, written.identity), counters.snapshot())
    stated = properties([Transaction(written.identity, written.first)], 2, 0)
    with objects.failures(objects.url):
        return DeltaTable.create(
            objects.delta_url,
            Schema.from_arrow(TABLE_SCHEMA),
            partition_by=_PARTITION,
            name="penstock",
            description="The messages of a Penstock store (docs/tier.md)",
            configuration={
                _FORMAT: str(FORMAT),
                _LOGS: _listed({written.identity: written.first}),
                "delta.checkpointInterval": str(COMMITS_PER_CHECKPOINT),
                # Without it deltalake takes columns that no statistics are given of for such that have no value.
                "delta.dataSkippingStatsColumns": "log_offset,timestamp",
            },
            storage_options=objects.options,
            commit_properties=stated,
            raise_if_key_not_exists=False,
        )


def logs_of(objects: ObjectFolder, table: DeltaTable) -> dict[str, int]:
    """The logs that wrote a table, oldest first, with their first log_offset. Raises NotOurTable, TableTooNew."""
    properties = table.metadata().configuration
    stated, logs = properties.get(_FORMAT), properties.get(_LOGS)
    if not stated or not logs:
        raise NotOurTable(objects.url, "there is a table of something else")
    if int(stated) > FORMAT:
        raise TableTooNew(objects.url, f"format {stated}, this version knows {FORMAT}")
    return {name: int(first) for name, _, first in (each.partition(":") for each in logs.split())}


def _listed(logs: dict[str, int]) -> str:
    return " ".join(f"{identity}:{first}" for identity, first in logs.items())


def _snapshot_name(end: int, identity: str) -> str:
    return f"{COUNTERS_FOLDER}/{end:020}-{identity}.arrow"
