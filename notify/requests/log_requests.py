"""Requests of readers of the log itself: its bytes, its places, and the reader's own position."""

from __future__ import annotations

from lightqueue.reading import replay
from notify.local.log_readers import NotHeld
from notify.local.store import LocalStore
from notify.requests.reads import Answer
from notify.requests.refusals import failure_code
from store.errors import CorruptSegment, StoreError
from store.log.api import LogPiece
from store.wire import messages as wire
from store.wire.log_messages import (
    HoldLog,
    LogRead,
    ReaderAt,
    ReaderNoted,
    ReadLog,
    SeekLog,
    Segments,
    SegmentsFound,
    Topics,
    TopicsFound,
)
from store.wire.messages import FailureCode

REQUESTS = (Segments, ReadLog, SeekLog, ReaderAt, Topics)
Question = Segments | ReadLog | SeekLog | ReaderAt | Topics

SEGMENT_BYTES = 20  # of one segment in an answer, at most


def answer(store: LocalStore, request: Question, limit_bytes: int) -> Answer:
    """The answer to one of REQUESTS. Raises a StoreError."""
    messages = store.messages
    log = messages.log
    match request:
        case Segments(start):
            found, more = log.parts_from(start, min(wire.MOST_ITEMS, limit_bytes // SEGMENT_BYTES))
            log.commit()
            return SegmentsFound(found, more, log.base, log.committed, log.on_disk), b""
        case ReadLog(start, max_bytes, only_on_disk):
            on_disk = log.on_disk
            try:
                piece = log.read(start, min(max_bytes, limit_bytes))
                if only_on_disk and piece.log_offset + len(piece.data) > on_disk:
                    left_bytes = on_disk - piece.log_offset  # a file's header may lie before the records
                    piece = log.read(piece.log_offset, left_bytes) if left_bytes > 0 else LogPiece(start, b"")
            except CorruptSegment as error:
                text = f"log_offset {start}: {error.reason}"
                return wire.Failed(FailureCode.NO_SUCH_POSITION, text), b""
            return LogRead(piece.log_offset, log.base, log.committed, on_disk), piece.data
        case SeekLog(log_offset, timestamp_ms, start):
            sought = replay.seek_log(log, log_offset, timestamp_ms, start)
            return wire.Sought(sought.log_offset, sought.found), b""
        case ReaderAt(reader, log_offset):
            store.readers.note(reader, log_offset)
            return ReaderNoted(max(0, log.committed - log_offset)), b""
        case Topics(topic_filter, after):
            known_until = messages.index.applied_offset
            matched = replay.matching_topics(messages, topic_filter, after, limit_bytes)
            return TopicsFound(matched.topics, matched.next, matched.looked_at, known_until), b""


def hold(store: LocalStore, request: HoldLog) -> wire.WireMessage:
    """The answer, to be given once what was stored is safe."""
    try:
        return store.readers.hold(request)
    except NotHeld as error:
        return wire.Failed(FailureCode.NO_SUCH_POSITION, str(error))
    except StoreError as error:
        return wire.Failed(failure_code(error), str(error))
