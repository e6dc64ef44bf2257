"""Dead letters of a group: a list, one, and publishing some or all of them again, or dropping them; for admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.console.access.admin import by
from penstock.console.access.callers import Caller
from penstock.console.access.state import caller_of, console_of
from penstock.console.api.messages import JSON, MessageModel
from penstock.console.api.parameters import After, PageLimit
from penstock.console.api.problems import bad_parameter
from penstock.console.store.admin import operator_problems
from penstock.console.store.dead_letters import (
    HowToSettle,
    LetterPlace,
    SettledLetters,
    StepEnd,
    counted,
    open_letter,
    open_letters,
    settle_all,
    settle_some,
)
from penstock.console.store.operator import OperatorConnection
from penstock.console.views.cursor import PageCursor, parse_cursor, query_of, text_of
from penstock.console.views.dead_letters import DeadLettersShown, letter_shown
from penstock.console.views.messages import encoded

MOST_CHOSEN = 1_000
MOST_OFFSET = 1 << 62

router = APIRouter(tags=["groups"])
Asking = Annotated[Caller, Depends(caller_of)]
GroupNamed = Annotated[str, Path(min_length=1, max_length=255)]
Offset = Annotated[int, Field(ge=0, lt=MOST_OFFSET)]


class LetterChosen(BaseModel):
    """Both as the list has them, so that no other message is taken for it."""

    queue_offset: Offset
    log_offset: Offset


class DeadLetterModel(LetterChosen):
    """A message that a group gave up, as it is stored. What the letter does not say is empty."""

    message_id: str
    size_bytes: int
    topic: str = Field(description="Where its message was published, and is published again.")
    reason: str
    deliveries: int
    topic_filter: str = Field(description="Of the group that gave it up; several groups may have one name.")
    died_at: str = Field(description="RFC 3339 in UTC.")
    message: MessageModel | None = Field(description="null: it is larger than an answer; read it by its message_id.")


class DeadLettersModel(BaseModel):
    dead_letters: list[DeadLetterModel]
    next: str | None = Field(description="The cursor of the next page; null: that was all.")


class LettersToSettle(BaseModel):
    """Some letters, or all."""

    letters: list[LetterChosen] | None = Field(None, min_length=1, max_length=MOST_CHOSEN)
    all: bool = Field(
        False,
        description="All that were there at the first request: each request takes some hundred of them, for two "
        "seconds at most, and `next` of its answer is `after` of the next one.",
    )
    after: str | None = Field(None, max_length=1_024, description="With `all`: `next` of the answer before.")


class LeftLetterModel(LetterChosen):
    why: str


class LettersSettled(BaseModel):
    settled: int = Field(description="Published again, or dropped, by this request.")
    gone: int = Field(description="Settled before, or not kept any more.")
    left: list[LeftLetterModel] = Field(description="Those that cannot be settled so, and why; they stay open.")
    next: str | None = Field(description="With `all`: there are more; send it as `after`. null: that was all.")


@router.get(
    "/groups/{group}/dead-letters",
    operation_id="list_dead_letters",
    summary="Dead letters that are open",
    response_model=DeadLettersModel,
)
async def dead_letters(
    request: Request,
    caller: Asking,
    group: GroupNamed,
    limit: PageLimit,
    after: After = None,
) -> Response:
    """Oldest first, of all groups of this name."""
    query = query_of("dead letters", group)
    at = parse_cursor(after, query).at if after is not None else 0
    place = caller.connection.place
    operator = await console_of(request).admin.operator(caller.connection)
    with operator_problems():
        found = await open_letters(operator, caller.connection.names.group(group), at, limit)
    goes_on = None if found.next is None else text_of(PageCursor(query, found.next))
    page = DeadLettersShown([letter_shown(each, place) for each in found.letters], goes_on)
    return Response(encoded(page), media_type=JSON)


@router.get(
    "/groups/{group}/dead-letters/{queue_offset:int}",
    operation_id="get_dead_letter",
    summary="One dead letter that is open",
    response_model=DeadLetterModel,
)
async def dead_letter(
    request: Request, caller: Asking, group: GroupNamed, queue_offset: Annotated[int, Path(ge=0, lt=MOST_OFFSET)]
) -> Response:
    operator = await console_of(request).admin.operator(caller.connection)
    with operator_problems():
        found = await open_letter(operator, caller.connection.names.group(group), queue_offset)
    return Response(encoded(letter_shown(found, caller.connection.place)), media_type=JSON)


@router.post(
    "/groups/{group}/dead-letters/publish",
    operation_id="publish_dead_letters",
    summary="Publish dead letters again, to their first topics",
)
async def publish_letters(
    request: Request, caller: Asking, group: GroupNamed, wanted: LettersToSettle
) -> LettersSettled:
    """Each is published once, also if the request is sent again or the store is killed, and is not open any more.

    One that dies again while all are published is a new letter, which is left.
    """
    return await _settled(request, caller, group, True, wanted)


@router.post("/groups/{group}/dead-letters/drop", operation_id="drop_dead_letters", summary="Drop dead letters")
async def drop_letters(request: Request, caller: Asking, group: GroupNamed, wanted: LettersToSettle) -> LettersSettled:
    """They are not open any more. The log keeps them as long as its retention says."""
    return await _settled(request, caller, group, False, wanted)


async def _settled(
    request: Request, caller: Asking, group: str, again: bool, wanted: LettersToSettle
) -> LettersSettled:
    if (wanted.letters is None) != wanted.all or (wanted.after is not None and not wanted.all):
        raise bad_parameter("letters", "name some letters, or say all = true, and `after` with that alone")
    operator = await console_of(request).admin.operator(caller.connection)
    how = HowToSettle(caller.connection.names.group(group), again, by(request, caller))
    settled = SettledLetters()
    with counted(settled):
        goes_on = await _settle(operator, how, wanted, settled)
    left = [
        LeftLetterModel(queue_offset=place.queue_offset, log_offset=place.log_offset, why=why)
        for place, why in settled.left
    ]
    return LettersSettled(settled=settled.done, gone=settled.gone, left=left, next=goes_on)


async def _settle(
    operator: OperatorConnection, how: HowToSettle, wanted: LettersToSettle, settled: SettledLetters
) -> str | None:
    """Returns the cursor of the next step of all, if there is one."""
    if wanted.letters is not None:
        places = [LetterPlace(each.queue_offset, each.log_offset) for each in wanted.letters]
        await settle_some(operator, how, places, settled)
        return None
    query = query_of("settle all", how.group, how.again)
    cursor = parse_cursor(wanted.after, query) if wanted.after is not None else None
    end = await settle_all(operator, how, None if cursor is None else StepEnd(cursor.at, cursor.until), settled)
    return None if end is None else text_of(PageCursor(query, end.at, end.until))
