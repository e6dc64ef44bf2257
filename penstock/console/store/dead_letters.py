"""Dead letters of a group, which an admin looks at and settles: published again, or dropped (ADR 59)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.console.errors import Problem
from penstock.console.store.admin import operator_problems
from penstock.console.store.errors import OperatorRefused
from penstock.console.store.operator import OperatorConnection
from penstock.sdk.message import RecordTuple
from store.records.record_bytes import walk
from store.wire.messages import FailureCode
from store.wire.operator_messages import DeadLetters, DeadLettersFound, OperatorDone, SettleDeadLetter

AT_ONCE = 50
"""Requests of one settling that wait for their answers; all of a console share OperatorConnection's."""
STEP_LETTERS = 500
STEP_S = 2.0
"""A step of settling all ends at the first of these."""
MOST_LISTED = 1_000
"""Letters that one DeadLetters may ask for."""
MOST_LEFT = 100
"""Letters of a step that cannot be settled, before it ends."""


class LetterPlace(NamedTuple):
    """A letter: its queue_offset in the queue of dead letters, and its log_offset."""

    queue_offset: int
    log_offset: int


class OpenLetter(NamedTuple):
    """A letter that is not settled. `record`: None: it is larger than an answer. `size_bytes`: in the log."""

    place: LetterPlace
    record: RecordTuple | None
    size_bytes: int


class OpenLetters(NamedTuple):
    """`next`: where to go on; None: that was all. `end`: where the queue of dead letters ended; None: not said."""

    letters: list[OpenLetter]
    next: int | None
    end: int | None


class LeftLetter(NamedTuple):
    """A letter that cannot be settled so, and why."""

    place: LetterPlace
    why: str


@dataclass(slots=True)
class SettledLetters:
    """What came of settling: how many were settled now (`done`) and before (`gone`), and those that were left."""

    done: int = 0
    gone: int = 0
    left: list[LeftLetter] = field(default_factory=list)


class StepEnd(NamedTuple):
    """Where the next step of settling all begins, and where the last one ends (queue_offsets)."""

    at: int
    until: int


class HowToSettle(NamedTuple):
    """Publish letters of a group `again`, or drop them. `by`: who does it, for the audit log."""

    group: str
    again: bool
    by: str


async def open_letters(operator: OperatorConnection, group: str, after: int, limit: int) -> OpenLetters:
    """Those that are not settled, oldest first, from a queue_offset on. Raises an OperatorError."""
    found = await operator.ask(DeadLetters(group, after, min(limit, MOST_LISTED)), DeadLettersFound)
    large = {queue_offset: (log_offset, size_bytes) for queue_offset, log_offset, size_bytes in found.large}
    letters = []
    for queue_offset, data in found.letters:
        if data:
            (record,) = walk(memoryview(data))
            letters.append(OpenLetter(LetterPlace(queue_offset, record[0]), record, len(data)))
        else:
            log_offset, size_bytes = large.get(queue_offset, (0, 0))
            letters.append(OpenLetter(LetterPlace(queue_offset, log_offset), None, size_bytes))
    return OpenLetters(letters, found.next, found.end)


async def open_letter(operator: OperatorConnection, group: str, queue_offset: int) -> OpenLetter:
    """Raises Problem, or an OperatorError."""
    found = await open_letters(operator, group, queue_offset, 1)
    if not found.letters or found.letters[0].place.queue_offset != queue_offset:
        raise Problem(
            404,
            "no-such-dead-letter",
            f"dead letter {queue_offset} of this group is not open",
            "it was settled, or is not kept any more; see the list of them",
        )
    return found.letters[0]


@contextmanager
def counted(settled: SettledLetters) -> Iterator[None]:
    """The operator's errors as problems that say how many letters were settled before. Raises Problem."""
    try:
        with operator_problems():
            yield
    except Problem as problem:
        raise Problem(
            problem.status,
            problem.kind,
            f"{problem.detail} ({settled.done} dead letters were settled before)",
            f"{problem.remedy}: the same request goes on, and settles no letter twice",
            problem.headers,
            settled=settled.done,
        ) from None


async def settle_some(
    operator: OperatorConnection, how: HowToSettle, places: Iterable[LetterPlace], settled: SettledLetters
) -> None:
    """Settle these letters; `settled` counts also if it raises an OperatorError: others are open then."""
    waiting = list(places)
    while waiting:
        some, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        answers = await asyncio.gather(*(_settle(operator, how, each) for each in some), return_exceptions=True)
        errors = [each for place, answer in zip(some, answers, strict=True) for each in _count(settled, place, answer)]
        if errors:
            raise errors[0]


async def settle_all(
    operator: OperatorConnection, how: HowToSettle, begin: StepEnd | None, settled: SettledLetters
) -> StepEnd | None:
    """One step of settling all letters that were there at the first step: STEP_LETTERS at most, for STEP_S about.

    Returns where the next step begins; None: that was all. Letters that died since then are left. Raises Problem, or an
    OperatorError: the same step may be taken again, since what is settled is not found any more.
    """
    loop = asyncio.get_running_loop()
    stop_s, most = loop.time() + STEP_S, settled.done + settled.gone + STEP_LETTERS
    at, until = begin if begin is not None else (0, None)
    while True:
        found = await open_letters(operator, how.group, at, AT_ONCE)
        if until is None:
            until = _end(found)
        await settle_some(operator, how, (each.place for each in found.letters if each.place[0] < until), settled)
        if found.next is None or found.next >= until:
            return None
        at = found.next
        if settled.done + settled.gone >= most or len(settled.left) >= MOST_LEFT or loop.time() > stop_s:
            return StepEnd(at, until)


def _end(found: OpenLetters) -> int:
    """Where the queue ended at the first step: a message that dies again is not published again. Raises Problem."""
    if found.end is None:
        raise Problem(501, "store-too-old", "this store does not say where its dead letters end", "upgrade the store")
    return found.end


async def _settle(operator: OperatorConnection, how: HowToSettle, place: LetterPlace) -> OperatorDone:
    request = SettleDeadLetter(how.group, *place, how.again, how.by)
    return await operator.ask(request, OperatorDone)


def _count(
    settled: SettledLetters, place: LetterPlace, answer: OperatorDone | BaseException
) -> Sequence[BaseException]:
    """Count an answer; an error that is not about this letter alone is returned."""
    match answer:
        case OperatorDone(found=True):
            settled.done += 1
        case OperatorDone():
            settled.gone += 1
        case OperatorRefused(code=FailureCode.BAD_REQUEST):
            settled.left.append(LeftLetter(place, str(answer)))
        case BaseException():
            return (answer,)
    return ()
