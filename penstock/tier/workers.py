"""Answers the store's questions about history: some threads, each with a connection to the store and one question."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.store_client import StoreClient
from penstock.tier.errors import LogBehindTable, TierError
from penstock.tier.queue_reading import QueueQuestion
from penstock.tier.reading import KeyQuestion, ScanQuestion, TableReader
from store.wire.log_messages import LogRead, ReadLog
from store.wire.tier_messages import (
    FindKey,
    FindQueueOffset,
    FindTime,
    KeyFound,
    PlacesRead,
    QueueRead,
    RangeRead,
    ReadPlaces,
    ReadQueue,
    ReadRange,
    ServeTier,
    TierAnswer,
    TierAsked,
    TierFault,
    TierQuestion,
    TimeFound,
)

log = logging.getLogger("penstock.tier")

WORKERS: Final = 4
PAUSE_S: Final = 0.5  # before a worker connects again
BEHIND_ALL: Final = 2**63 - 1  # no log_offset: a read from there on says where the log ends
DEFECTS: Final = (pa.ArrowException, ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""What a question may raise that nobody thought of: a fault of ours, or of a table that others have written."""


def answer_to(reader: TableReader, question: TierQuestion, limit_bytes: int) -> tuple[TierAnswer, bytes]:
    """The answer to a question, and its records. Errors of the table are answers."""
    try:
        match question:
            case ReadRange(topic_filter, start, stop, tag, max_bytes):
                page = reader.scan(ScanQuestion(topic_filter, start, stop, tag), max_bytes, limit_bytes)
                return RangeRead(page.next, page.number, page.queue_offset, page.lost), page.records
            case ReadPlaces(log_offsets):
                there = reader.at(log_offsets, limit_bytes)
                return PlacesRead(there.found, there.queue_offset), there.records
            case FindTime(topic_filter, at_ms, start, stop):
                return TimeFound(*reader.seek(topic_filter, at_ms, 0, start, stop)), b""
            case FindQueueOffset(topic, queue_offset, start, stop):
                return TimeFound(*reader.seek(topic, None, queue_offset, start, stop)), b""
            case FindKey(key, topic_filter, since_ms, until_ms, before, most):
                found = reader.find(KeyQuestion(key, topic_filter, since_ms, until_ms, before, most), limit_bytes)
                return KeyFound(found.before, found.number), found.records
            case ReadQueue(topic_filter, queue_offset, start, stop, most, max_bytes):
                of_queue = QueueQuestion(topic_filter, queue_offset, start, stop, most)
                in_queue = reader.queue(of_queue, max_bytes, limit_bytes)
                _, number, following, first, upcoming = in_queue
                return QueueRead(following, number, first, upcoming), in_queue.records
    except TierError as error:
        log.error("a read of history fails: %s", error)
        return TierFault(str(error)), b""
    except DEFECTS:  # a worker that ended would answer nobody any more
        log.exception("a read of history fails: %s", question)
        return TierFault("the tier cannot read this; its log says more"), b""


class TierWorkers:
    """Owner of the threads. They go on until stop(), whatever fails."""

    def __init__(self, reader: TableReader, connect: Callable[[], StoreClient], url: str) -> None:
        """`url`: where the table is, as others find it."""
        self._reader = reader
        self._url = url
        self._connect = connect
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"tier-{number}", daemon=True) for number in range(WORKERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """The threads end with the process: one of them may wait for storage."""
        self._stopping.set()
        self._reader.close()

    def _run(self) -> None:
        said = ""
        while not self._stopping.is_set():
            try:
                with self._connect() as store:
                    self._serve(store)
            except PenstockError as error:
                if str(error) != said:
                    log.debug("does not serve reads of history: %s", error)
                    said = str(error)
            self._stopping.wait(PAUSE_S)

    def _serve(self, store: StoreClient) -> None:
        """Answer what one connection is asked, of a table that this store's log writes. Raises PenstockError."""
        self._reader.of_log(store.log_identity.hex())
        table_end = self._reader.end
        log_end = store.call(ReadLog(BEHIND_ALL, 1), LogRead).log_end
        if table_end > log_end:
            raise LogBehindTable(self._url, table_end, f"ends at {log_end}")
        asked = store.call(ServeTier(self._reader.first, url=self._url), TierAsked)
        while not self._stopping.is_set():
            answer, records = answer_to(self._reader, asked.question, asked.limit_bytes)
            brought = ServeTier(self._reader.first, asked.number, answer, self._url)
            asked, _ = store.ask(brought, TierAsked, records)
