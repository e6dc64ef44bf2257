"""Requests of operators about dead letters: listing those that are open, and settling one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from notify.local.dead_letters import DeadLetter, DeadLetterDesk
from notify.local.hub import Hub
from store.audit import AuditEvent
from store.records.records import read_records
from store.wire.messages import WireMessage
from store.wire.operator_messages import DeadLetters, DeadLettersFound, OperatorDone, SettleDeadLetter

ANSWER_BYTES = 128 << 10

Done = Callable[[WireMessage], None]


def list_dead_letters(hub: Hub, request: DeadLetters, done: Done) -> Iterator[None]:
    """A letter that is larger than ANSWER_BYTES comes alone, and without its record."""

    desk = DeadLetterDesk(hub.messages)
    end = desk.end(request.group)

    def then(found: list[DeadLetter], after: int | None) -> None:
        large = tuple(_place(each) for each in found if not _shown(each.data))
        done(DeadLettersFound([(each.queue_offset, _shown(each.data)) for each in found], after, end, large))

    return desk.listed(request.group, request.after, request.limit, ANSWER_BYTES, then)


def settle_dead_letter(hub: Hub, request: SettleDeadLetter, done: Done) -> None:
    """Raises StoreError, GroupRefused."""
    letter = request.queue_offset, request.log_offset
    found = DeadLetterDesk(hub.messages).settle(request.group, letter, request.again, hub.messages.now_ms())
    if found:
        hub.settle()
        what = "published again" if request.again else "dropped"
        reason = f"{request.by} {what} dead letter {request.queue_offset} of group {request.group}"
        hub.bans.audit.note(AuditEvent.OPERATOR, reason=reason)
    done(OperatorDone(found))


def _shown(data: bytes) -> bytes:
    return data if len(data) <= ANSWER_BYTES else b""


def _place(letter: DeadLetter) -> tuple[int, int, int]:
    (record,) = read_records(memoryview(letter.data))
    return letter.queue_offset, record.log_offset, len(letter.data)
