"""Writes the log's history into the table, from where the table ends, and lets retention have what is written.

The table alone decides how far the history has come. The dispatcher keeps nothing that must survive: after a kill, an
outage or an error it looks where the table ends, and goes on from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import PenstockError
from penstock.tier.chores import Chore
from penstock.tier.compaction import Compactor
from penstock.tier.errors import BadTierUrl
from penstock.tier.files import RangeWriter
from penstock.tier.objects import ObjectFolder
from penstock.tier.store_log import StoreLog
from penstock.tier.table import TierTable, WrittenLog
from penstock.tier.vacuum import Vacuum
from store.records._records import places_of
from store.records.records import RecordType

log = logging.getLogger("penstock.tier")

HURRY_S: Final = 2.0  # how often a log that is read to its end has to go to the disk
POLL_S: Final = 0.5  # how often a log that is read to its end is asked again
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
SAID_AGAIN_S: Final = 600.0  # an error that stays is told again after this
LEAST_BYTES: Final = 16 << 20
"""A range without a message is committed once it has so many bytes: the reader's own records are such."""
PROGRESS_S: Final = 10.0  # how often a long backfill says how far it is


@dataclass(frozen=True)
class CommitRules:
    """When a range is committed: so long after its first message, or once it has so many bytes of the log.

    `vacuum_h`: how long files that were merged are kept.
    """

    after_s: float
    at_bytes: int
    vacuum_h: int


class TierDispatcher:
    """Owner of the way from the log to the table. run() is a thread's work."""

    def __init__(self, open_log: Callable[[], StoreLog], objects: ObjectFolder, rules: CommitRules) -> None:
        self._open_log = open_log
        self._objects = objects
        self._rules = rules
        self._stopping = threading.Event()
        self._said = ""
        self._said_s = 0.0
        self._pause_s = FIRST_PAUSE_S  # before the next try
        self._ends_in_loss = False  # something is lost where the range ends so far,
        self._is_cut = False  # and what follows is of the next one

    def stop(self) -> None:
        """Have run() return soon. What is not committed is written by the next start."""
        self._stopping.set()

    def run(self) -> None:
        """Go on until stop(), whatever fails. Raises BadTierUrl, and what is no PenstockError."""
        while not self._stopping.is_set():
            try:
                self._follow()
            except BadTierUrl:
                raise
            except PenstockError as error:
                self._say(str(error))
            self._stopping.wait(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _say(self, error: str) -> None:
        now_s = time.monotonic()
        if error != self._said or now_s - self._said_s > SAID_AGAIN_S:
            self._said, self._said_s = error, now_s
            log.error("%s; the log keeps what the table does not have", error)

    def _follow(self) -> None:
        """Connect to the store and to the table, and write until something fails."""
        store = self._open_log()
        try:
            held = store.hold()
            written = WrittenLog(store.identity, held.log_base, held.on_disk, dict(held.restored_from))
            table = TierTable.open(self._objects, written, store.counted_before(held.log_base))
            compactor = Compactor(self._objects, table)
            vacuum = Vacuum(self._objects, table, self._rules.vacuum_h, lambda: [*table.begun, *compactor.begun])
            chores = (compactor, vacuum)
            if table.is_behind_loss:
                table.count_on(store.counted_before(table.end))
            if held.log_offset != table.end:
                store.hold(table.end)
            log.info(
                "writing to %s from log_offset %d on, %d bytes behind", self._objects.url, table.end,
                held.on_disk - table.end,
            )  # fmt: skip
            began_s = told_s = time.monotonic()
            began_at = table.end
            try:
                is_before_own = table.end < max(written.restored_from.values(), default=0)
                first = store.record_from(table.end) if is_before_own else table.end
                while self._write_range(store, table, chores, first):
                    compactor.range_committed()
                    held = store.hold(table.end)
                    self._said, self._pause_s = "", FIRST_PAUSE_S
                    now_s = time.monotonic()
                    if held.on_disk - table.end > self._rules.at_bytes and now_s - told_s > PROGRESS_S:
                        told_s = now_s
                        rate = (table.end - began_at) / (now_s - began_s) / 1e6
                        left = (held.on_disk - table.end) / 1e6
                        log.info("%.0f MB of the log are left, %.0f MB a second are written", left, rate)
            finally:
                for chore in chores:
                    chore.abandon()
                table.abandon()
        finally:
            store.close()

    def _write_range(self, store: StoreLog, table: TierTable, chores: Sequence[Chore], first: int) -> bool:
        """Write and commit the next range. False: the process is to stop.

        `first`: of the records that the table lacks; a restored log need not have one where the table ends.
        """
        writer = table.begin()
        self._ends_in_loss = self._is_cut = False
        if writer.end < first:
            writer.skip(first)
        due_s: float | None = None
        asked_s = time.monotonic()
        while not self._stopping.is_set():
            is_at_end = self._read_into(writer, store)
            if is_at_end and time.monotonic() - asked_s > HURRY_S:
                asked_s = time.monotonic()
                store.hold()  # so that what is not on the disk gets there, whatever the flush policy
            if due_s is None and writer.end > writer.start:
                due_s = time.monotonic() + self._rules.after_s
            size = writer.end - writer.start
            is_due = due_s is not None and time.monotonic() >= due_s
            is_worth_it = is_due and (size > LEAST_BYTES or writer.has_rows)
            if is_worth_it or writer.is_full or self._is_cut or size >= self._rules.at_bytes:
                self._commit(writer, store, table)
                return True
            if is_due:
                due_s = None  # there was no message so far: wait as long again
            if is_at_end:
                self._do(chores)
        return False

    def _commit(self, writer: RangeWriter, store: StoreLog, table: TierTable) -> None:
        """The store may have counted messages that are lost; the table counts on from there."""
        written = writer.finish()
        table.commit(written)
        if self._ends_in_loss:
            table.count_on(store.counted_before(table.end))

    def _do(self, chores: Sequence[Chore]) -> None:
        """Do some of the chores, or wait, until the log is asked again."""
        until_s = time.monotonic() + POLL_S
        while (left_s := until_s - time.monotonic()) > 0 and not self._stopping.is_set():
            if not any(chore.step() for chore in chores):
                self._stopping.wait(left_s)

    def _read_into(self, writer: RangeWriter, store: StoreLog) -> bool:
        """Add the next piece of the log. True if that was all that is on the disk."""
        piece = store.read(writer.end)
        if piece.base > writer.end:
            log.error("log_offset %d to %d: retention has dropped it, the table never gets it", writer.end, piece.base)
            writer.lose(piece.base)
            self._ends_in_loss = True
            return False
        if not piece.data:
            return True
        whole, lost = _until_loss(piece.data)
        if self._ends_in_loss and not lost.start == 0 < lost.stop:
            self._is_cut = True  # what follows has other numbers than the table has counted
            return False
        if piece.log_offset > writer.end:
            writer.skip(piece.log_offset)
        writer.add(whole, piece.log_offset)
        self._ends_in_loss = bool(lost)
        return writer.end >= piece.on_disk


def _until_loss(data: memoryview) -> tuple[memoryview, range]:
    """Records up to after the first ones of lost bytes, and where these are; an empty range if there are none."""
    gaps = places_of(data, bytes((RecordType.GAP,)))
    if not gaps:
        return data, range(0)
    end = gaps[0]
    for at in gaps:
        if at == end:
            end += int.from_bytes(data[at : at + 4], "little")
    return data[:end], range(gaps[0], end)
