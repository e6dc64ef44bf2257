"""Requests of a store of the cluster that copies this one's log, as an operator."""

from __future__ import annotations

from typing import Final

from lightqueue.message_store import MessageStore
from store.errors import NoSuchCopy, StoreError
from store.log.giving import given_log, read_checkpoint, read_segment, replicated
from store.records._records import crc32c
from store.replication.frames import PROCESS_BYTES
from store.wire.base import MOST_ITEMS, WireMessage
from store.wire.copy_messages import AskCopy, CopiedMark, CopyCheckpoint, CopyOffered, CopyPiece, CopySegment
from store.wire.messages import Failed, FailureCode

PIECE_BYTES: Final = 256 << 10
"""The most of one answer, so that it takes less than a millisecond of the loop where the pages are in memory."""
BASE_BYTES: Final = 9
"""The most that one segment takes in an answer."""
COPY_REQUESTS: Final = (AskCopy, CopySegment, CopyCheckpoint)
CopyRequest = AskCopy | CopySegment | CopyCheckpoint


def answer_copy(messages: MessageStore, request: CopyRequest, limit_bytes: int) -> WireMessage:
    """`limit_bytes`: of the answer."""
    try:
        return _answer(messages, request, min(limit_bytes, PIECE_BYTES))
    except NoSuchCopy as error:
        return Failed(FailureCode.NO_SUCH_POSITION, str(error))
    except StoreError as error:
        return Failed(FailureCode.UNAVAILABLE, str(error))


def _answer(messages: MessageStore, request: CopyRequest, limit_bytes: int) -> WireMessage:
    log = replicated(messages.log)
    match request:
        case AskCopy(start):
            most = min(MOST_ITEMS, limit_bytes // (2 * BASE_BYTES))
            found = given_log(log, messages.folder, start, most)
            mark = found.mark
            address, process = mark.leader or ("", bytes(PROCESS_BYTES))
            told = CopiedMark(mark.offset, mark.checksum, mark.epoch, mark.accepted, address, process)
            name, files = found.checkpoint
            return CopyOffered(
                found.topic_id, found.identity, told, found.base, found.segments, found.more, name, files
            )
        case CopySegment(base, at, max_bytes):
            data = read_segment(log, base, at, min(max_bytes, limit_bytes))
        case CopyCheckpoint(checkpoint, file, at, max_bytes):
            data = read_checkpoint(messages.folder, checkpoint, file, at, min(max_bytes, limit_bytes))
    return CopyPiece(data, crc32c(data))
