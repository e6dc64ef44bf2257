"""Requests of clients only: Publishes answered by their `wait`, and reads of stored messages and of the log itself."""

from __future__ import annotations

from collections import deque

from lightqueue.errors import NoSuchPosition
from lightqueue.message_store import MessageStore
from lightqueue.reading import finding, replay
from lightqueue.reading.replay import queue_offset_of
from notify.local.log_readers import NotHeld
from notify.local.store import LocalStore
from notify.requests.contents import failure_code
from notify.requests.reads import ANSWER_BYTES, Answer, AnswerRoom
from store.errors import CorruptSegment, StoreError
from store.log.api import LogPiece
from store.records._records import changes_in, records_bytes, topic_runs
from store.wire import messages as wire
from store.wire.log_messages import (
    HoldLog,
    LocateTable,
    LogRead,
    ReaderAt,
    ReaderNoted,
    ReadLog,
    SeekLog,
    Segments,
    SegmentsFound,
    TableLocated,
    Topics,
    TopicsFound,
)
from store.wire.messages import FailureCode, WireMessage

LOG_REQUESTS = (Segments, ReadLog, SeekLog, ReaderAt, Topics, LocateTable)
LogQuestion = Segments | ReadLog | SeekLog | ReaderAt | Topics | LocateTable

NO_TIER_SAYS = (
    "the store has a tier, and no `penstock tier` is connected as an operator to say where its table is: start it, or "
    "say where; `penstock store forget-reader tier` says that there is none any more"
)
SEGMENT_BYTES = 20  # of one segment in an answer, at most
MOST_FOUND = 1_000
Question = wire.Scan | wire.Seek | wire.Get | wire.GetDelayed | wire.Find | LogQuestion


def answer_of_log(store: LocalStore, request: LogQuestion, limit_bytes: int) -> Answer:
    """The answer to one of LOG_REQUESTS. Raises a StoreError."""
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
        case LocateTable():
            url = store.tier_reads.table_url
            if url is None:
                return wire.Failed(FailureCode.UNAVAILABLE, NO_TIER_SAYS), b""
            return TableLocated(url), b""
        case Topics(topic_filter, after):
            known_until = messages.index.applied_offset
            matched = replay.matching_topics(messages, topic_filter, after, limit_bytes)
            return TopicsFound(matched.topics, matched.next, matched.looked_at, known_until), b""


def hold_log(store: LocalStore, request: HoldLog) -> WireMessage:
    """The answer, to be given once what was stored is safe."""
    try:
        return store.readers.hold(request)
    except NotHeld as error:
        return wire.Failed(FailureCode.NO_SUCH_POSITION, str(error))
    except StoreError as error:
        return wire.Failed(failure_code(error), str(error))


class Flushing:
    """Owner of answers to Publishes whose `wait` differs from the flush policy."""

    def __init__(self) -> None:
        self._answers: deque[tuple[int, int, WireMessage]] = deque()  # (log_offset, request_id, answer)
        self._ready: list[tuple[int, WireMessage]] = []

    def __bool__(self) -> bool:
        return bool(self._answers or self._ready)

    def add(self, store: LocalStore, wait: wire.Wait, request_id: int, end: int, answer: WireMessage) -> None:
        """Add an answer to a Publish whose records end at log_offset `end`."""
        try:
            store.appends.commit()
        except StoreError as error:
            answer = wire.Failed(FailureCode.UNAVAILABLE, str(error))
            wait = wire.Wait.STORED
        if wait is wire.Wait.STORED:
            self._ready.append((request_id, answer))
        else:
            self._answers.append((end, request_id, answer))
            if end > store.appends.flushed:
                store.appends.hurry()

    def collect_answers(self, store: LocalStore) -> list[tuple[int, WireMessage]]:
        """(request_id, answer) of those that may be sent now."""
        ready, self._ready = self._ready, []
        if not self._answers:
            return ready
        fault = store.appends.flush_fault()
        while self._answers and (fault or self._answers[0][0] <= store.appends.flushed):
            end, request_id, answer = self._answers.popleft()
            if end > store.appends.flushed:
                answer = wire.Failed(FailureCode.UNAVAILABLE, f"stored, but not on the disk: {fault}")
            ready.append((request_id, answer))
        return ready


def read(store: LocalStore, request: Question, limit_bytes: int) -> Answer:
    """The answer to a request that only reads. Raises a StoreError."""
    messages = store.messages
    try:
        match request:
            case wire.Scan(topic_filter, start, stop, max_bytes, tag):
                wanted = replay.ScanQuery(topic_filter, start, stop, tag.encode())
                found = replay.scan(messages, wanted, min(max_bytes, ANSWER_BYTES), limit_bytes)
                return wire.Scanned(found.next, messages.end, found.queue_offset, found.number), found.records
            case wire.Seek(_, where, _) if (log_offset := store.tier_reads.known(where)) is not None:
                return wire.Sought(log_offset, True), b""
            case wire.Seek(topic_filter, where, start):
                sought = replay.seek(messages, topic_filter, where, start)
                return wire.Sought(sought.log_offset, sought.found), b""
            case wire.Get(log_offset):
                return _got(replay.get(messages, log_offset), log_offset, limit_bytes)
            case wire.GetDelayed(log_offset):
                return _got(_pending(messages, request), log_offset, limit_bytes)
            case wire.Find():
                answer, records = _find(store, request, limit_bytes)
                return store.tier_reads.goes_on(answer), records
            case _:
                return answer_of_log(store, request, limit_bytes)
    except NoSuchPosition as error:
        return wire.Failed(FailureCode.NO_SUCH_POSITION, str(error)), b""


def _pending(messages: MessageStore, request: wire.GetDelayed) -> tuple[bytes, int] | None:
    data = messages.dispatching.copy_of(request.due_ms, request.log_offset)
    return (data, 0) if data else None


def _got(found: tuple[bytes, int] | None, log_offset: int, limit_bytes: int) -> Answer:
    if found is None:
        text = f"no message begins at log_offset {log_offset}, or it is not kept any more"
        return wire.Failed(FailureCode.NO_SUCH_POSITION, text), b""
    data, queue_offset = found
    if len(data) > limit_bytes:
        return wire.Failed(FailureCode.RECORD_TOO_LARGE, f"it has {len(data)} bytes; raise wire.max_frame_bytes"), b""
    return wire.Got(queue_offset), data


def _find(store: LocalStore, request: wire.Find, limit_bytes: int) -> Answer:
    messages = store.messages
    wanted = finding.FindQuery.parse(request.key, request.topic_filter, request.since, request.until)
    found = finding.find(messages, wanted, request.before, min(request.limit, MOST_FOUND), store.tier_reads.seam)
    room = AnswerRoom(limit_bytes)
    before = found.before
    count = 0
    for log_offset in found.log_offsets:
        data = records_bytes(messages.records_at([log_offset]))
        if room.is_too_large(data):
            continue
        if room.left_bytes <= 0 or not room.fits(data):
            before = log_offset + 1
            break
        room.add(data)
        count += 1
    return wire.Found(before, count), b"".join(room.parts)


def stands_at(messages: MessageStore, records: memoryview, log_offset: int) -> bool:
    """Whether the log has records there that change the topic as often: to find their places costs no more than those
    did that were stored, which had a bound."""
    try:
        stored = messages.log.read(log_offset, len(records))
    except StoreError:
        return False
    return len(stored.data) == len(records) and changes_in(stored.data) == changes_in(records)


def published(messages: MessageStore, records: memoryview, log_offset: int) -> wire.Published:
    """The places of a Publish's messages, which are in the log from `log_offset` on."""
    runs = topic_runs(records)
    found = [
        queue_offset_of(messages, topic.decode(), log_offset + at) if place is None else place
        for place, (topic, at, _, _) in zip(messages.queues.dispatcher.places(runs, log_offset), runs, strict=True)
    ]
    return wire.Published(log_offset, found)
