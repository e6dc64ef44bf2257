"""Consuming a group: messages are popped, each with a handle, and the handle says of which one what became of it."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.console.access.callers import Caller
from penstock.console.access.state import ConsoleState, caller_of, console_of
from penstock.console.api.groups import GroupNamed
from penstock.console.api.messages import JSON, MOST_FILTER, MessageModel
from penstock.console.api.problems import AGAIN, bad_parameter
from penstock.console.api.streams import over
from penstock.console.errors import Problem
from penstock.console.store.connection import StoreConnection
from penstock.console.store.consuming import Handed, HttpConsumer, Joining, PopLimits, consumer_of
from penstock.console.store.handles import (
    HANDLE_CHARACTERS,
    BadHandle,
    DeliveryPlace,
    ForeignHandle,
    HandleSeal,
)
from penstock.console.views.messages import MessageFields, StoredMessage, encoded, made
from penstock.console.views.sizes import ANSWER_BYTES, fitting
from penstock.sdk.errors import ConnectionLost, StoreRefused, TimedOut
from penstock.sdk.group_options import MOST_WHY_CHARACTERS, group_name, group_start, group_tag
from store.records.record_bytes import walk
from store.state.group_settings import MOST_MS, MOST_TAGS
from store.wire import group_messages as of_group
from store.wire.base import WireMessage
from store.wire.messages import FailureCode

MOST_POPPED = 1_000
MOST_WAIT_S = 30
MOST_GROUP_NAME = 255
MULTI_STATUS = 207

router = APIRouter(tags=["groups"])
Asking = Annotated[Caller, Depends(caller_of)]
T = TypeVar("T")


class OfGroup(BaseModel):
    """What each of these requests says."""

    model_config = ConfigDict(extra="forbid", strict=True)

    topic_filter: str = Field(alias="filter", min_length=1, max_length=MOST_FILTER, description="The group's filter.")


class PopWanted(OfGroup):
    most: int = Field(10, ge=1, le=MOST_POPPED, description="Messages of the answer, which may have fewer. Default 10.")
    wait_s: float = Field(
        0,
        ge=0,
        le=MOST_WAIT_S,
        description="Seconds to wait for the first message, fewer if console.max_pop_wait_s says so. Default 0.",
    )
    invisible_s: float | None = Field(
        None,
        ge=0.001,
        le=MOST_MS // 1000,
        description="Seconds for which they are this program's. null: as the group says (30 unless it was told).",
    )
    start: str | None = Field(
        None,
        max_length=64,
        description="Where a group begins that is made by this request: earliest, now, -1h, RFC 3339, or @7. It is "
        "refused where the filter has no queue of what was stored since then. null: the earliest that its queue has.",
    )
    tag: str | None = Field(
        None,
        max_length=MOST_TAGS * 258,
        description="The group has messages with one of these tags alone (A||B), or first (A > *). null: as it has it.",
    )


Handle = Annotated[str, Field(max_length=64)]


class HandlesSettled(OfGroup):
    handles: list[Handle] = Field(min_length=1, max_length=MOST_POPPED, description="Of messages, as pop had them.")


class HandlesToRetry(HandlesSettled):
    after_s: float | None = Field(
        None, ge=0, le=MOST_MS // 1000, description="Seconds to wait before. null: as the group's settings say."
    )


class HandlesToExtend(HandlesSettled):
    invisible_s: float = Field(ge=0.001, le=MOST_MS // 1000, description="Seconds from now on.")


class HandlesToReject(HandlesSettled):
    reason: str = Field(
        "rejected",
        min_length=1,
        max_length=MOST_WHY_CHARACTERS,
        description="The dead letter has it. Default: rejected.",
    )


class PoppedMessageModel(BaseModel):
    handle: str = Field(description="Names this delivery; it is good until the message is delivered again.")
    attempt: int = Field(description="How often it has been delivered, this time included.")
    message: MessageModel


class PoppedModel(BaseModel):
    """Its payloads have 4 MiB together, decompressed, or it has one message."""

    messages: list[PoppedMessageModel] = Field(description="Empty: there were none in time.")


class SettledModel(BaseModel):
    settled: int = Field(description="Deliveries of which it is in the log now.")
    stale: list[str] = Field(
        description="Handles that changed nothing: the message was settled before, or has been delivered again."
    )


SOME_STALE: dict[int | str, dict[str, Any]] = {
    MULTI_STATUS: {"model": SettledModel, "description": "Some of the handles were stale."}
}


class PoppedMessage(Struct):
    """As PoppedMessageModel."""

    handle: str
    attempt: int
    message: StoredMessage


@router.post(
    "/groups/{group}/pop",
    operation_id="pop_messages",
    summary="Take messages of a group",
    response_model=PoppedModel,
)
async def pop(request: Request, caller: Asking, group: GroupNamed, wanted: PopWanted) -> Response:
    """A message is this program's for `invisible_s`. Acknowledge it by then: otherwise the next program that pops gets
    it. A group that is not there is made. With `wait_s` the answer comes with the first message, or is empty.

    What is delivered is the store's to remember: it outlives a restart of this process.
    """
    key = _key(caller.connection, group, wanted.topic_filter)
    joining = Joining(group_tag(wanted.tag), None if wanted.start is None else group_start(wanted.start))
    console = console_of(request)
    wait_s = min(wanted.wait_s, console.settings.max_pop_wait_s)
    limits = PopLimits(wanted.most, round((wanted.invisible_s or 0) * 1000), wait_s)
    with _counted(console, caller), _explained():
        consumer = await consumer_of(caller.connection, key)
        popping = consumer.pop(joining, limits)
        found = await (_unless_left(console, caller, request, consumer, popping) if wait_s else popping)
        return Response(await _answer(caller.connection, key, consumer, *found), media_type=JSON)


@router.post(
    "/groups/{group}/ack",
    operation_id="ack_messages",
    summary="Acknowledge messages: they are done with",
    responses=SOME_STALE,
)
async def ack(response: Response, caller: Asking, group: GroupNamed, wanted: HandlesSettled) -> SettledModel:
    """The answer comes once it is as safe as the flush policy of the store promises: then they never come again. 410:
    all handles were stale.
    """
    return await _settle(response, caller, group, wanted, of_group.Ack)


@router.post(
    "/groups/{group}/retry",
    operation_id="retry_messages",
    summary="Have messages delivered again",
    responses=SOME_STALE,
)
async def retry(response: Response, caller: Asking, group: GroupNamed, wanted: HandlesToRetry) -> SettledModel:
    """After a while, to whoever pops then; this delivery counts. 410: all handles were stale."""
    delay_ms = None if wanted.after_s is None else round(wanted.after_s * 1000)
    return await _settle(
        response, caller, group, wanted, lambda ref, receipts: of_group.Reject(ref, receipts, delay_ms, "")
    )


@router.post(
    "/groups/{group}/extend",
    operation_id="extend_messages",
    summary="Keep messages for longer",
    responses=SOME_STALE,
)
async def extend(response: Response, caller: Asking, group: GroupNamed, wanted: HandlesToExtend) -> SettledModel:
    """They are this program's for so long from now on. 410: all handles were stale."""
    invisible_ms = round(wanted.invisible_s * 1000)
    return await _settle(
        response, caller, group, wanted, lambda ref, receipts: of_group.ChangeInvisible(ref, receipts, invisible_ms)
    )


@router.post(
    "/groups/{group}/reject",
    operation_id="reject_messages",
    summary="Make dead letters of messages",
    responses=SOME_STALE,
)
async def reject(response: Response, caller: Asking, group: GroupNamed, wanted: HandlesToReject) -> SettledModel:
    """They are of no use, are published to `$dead/GROUP/TOPIC` with the reason, and are done with. 410: all handles
    were stale.
    """
    return await _settle(
        response, caller, group, wanted, lambda ref, receipts: of_group.Reject(ref, receipts, None, wanted.reason)
    )


def _key(connection: StoreConnection, group: str, topic_filter: str) -> tuple[str, str]:
    """A group as the log has it. Raises Problem, BadOption."""
    name = connection.names.group(group_name(group))
    if len(name) > MOST_GROUP_NAME:
        raise bad_parameter("group", f"with its namespace a name has {MOST_GROUP_NAME} characters at most")
    if "\0" in topic_filter:
        raise bad_parameter("filter", "U+0000 is in no topic filter")
    return name, connection.names.topic(topic_filter)


@contextmanager
def _counted(console: ConsoleState, caller: Caller) -> Iterator[None]:
    """Count a request for messages while it is under way. Raises Problem if there are too many."""
    settings, of = console.settings, caller.payer
    for number, most, which in (
        (console.pops_of[of], settings.max_pops_per_user, "_per_user"),
        (console.pops["open"], settings.max_pops, ""),
    ):
        if number >= most:
            whose = " of this user" if which else ""
            raise Problem(
                429 if which else 503,
                "too-many-pops" + which.replace("_", "-"),
                f"{most} requests for messages{whose} wait",
                f"let them end, pop more messages at a time, or raise the setting console.max_pops{which}",
                AGAIN,
            )
    console.pops.update(open=1, total=1)
    console.pops_of[of] += 1
    caller.connection.holders += 1
    try:
        yield
    finally:
        caller.connection.holders -= 1
        console.pops["open"] -= 1
        console.pops_of[of] -= 1
        if not console.pops_of[of]:
            del console.pops_of[of]


@contextmanager
def _explained() -> Iterator[None]:
    """Say what helps. Raises Problem, ClientError."""
    try:
        yield
    except (ConnectionLost, TimedOut) as error:
        remedy = "send the request again; what was settled already is stale then, and messages come again"
        raise Problem(503, "store-away", str(error), remedy, AGAIN) from None


async def _unless_left(
    console: ConsoleState,
    caller: Caller,
    request: Request,
    consumer: HttpConsumer,
    popping: Coroutine[Any, Any, tuple[list[Handed], memoryview]],
) -> tuple[list[Handed], memoryview]:
    """What was popped; nothing if the program leaves meanwhile, its login ends, or this process."""
    task = asyncio.create_task(popping)
    leaving, ending = asyncio.create_task(_left(request)), over(console, caller)
    try:
        await asyncio.wait((task, leaving, ending), return_when=FIRST_COMPLETED)
        if task.done():
            handed, records = task.result()
            if not leaving.done():
                return handed, records
            consumer.give_back(handed)
        return [], memoryview(b"")
    finally:
        for each in (task, leaving, ending):
            each.cancel()


async def _left(request: Request) -> None:
    """Until the program closes its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _answer(
    connection: StoreConnection,
    key: tuple[str, str],
    consumer: HttpConsumer,
    handed: list[Handed],
    records: memoryview,
) -> bytes:
    """What was popped, as JSON. What is more than an answer may have goes back."""
    if not handed:
        return b'{"messages":[]}'
    found = list(walk(records))
    places = [
        (DeliveryPlace(serial, first + at), times) for serial, times, first, count in handed for at in range(count)
    ]
    number = max(1, fitting(found, ANSWER_BYTES))
    consumer.give_back((serial, 1, at, 1) for (serial, at), _ in places[number:])
    seal = HandleSeal(await consumer.log_identity(), connection.account, key)
    is_topic = not set("+#") & set(key[1])

    def answer(messages: list[StoredMessage]) -> bytes:
        shown = [
            PoppedMessage(seal.handle(place), times, message)
            for (place, times), message in zip(places, messages, strict=False)
        ]
        return encoded({"messages": shown})

    fields: list[MessageFields] = [
        (record, place.queue_offset if is_topic else None)
        for record, (place, _) in zip(found[:number], places, strict=False)
    ]
    return await made(answer, fields, connection.place)


async def _settle(
    response: Response,
    caller: Caller,
    group: str,
    wanted: HandlesSettled,
    verdict: Callable[[int, list[of_group.Receipt]], WireMessage],
) -> SettledModel:
    """Raises Problem, ClientError."""
    key = _key(caller.connection, group, wanted.topic_filter)
    with _explained():
        consumer = await consumer_of(caller.connection, key)
        seal = HandleSeal(await consumer.log_identity(), caller.connection.account, key)
        handles = _places(seal, wanted.handles)
        try:
            stale = await consumer.settle(lambda ref: verdict(ref, _receipts(handles.values())))
        except StoreRefused as error:
            if error.code != FailureCode.NO_SUCH_POSITION:
                raise
            text = f"there is no group {group[:MOST_GROUP_NAME]!r} over {wanted.topic_filter[:200]!r}"
            raise Problem(404, "no-such-group", text, "pop messages first, which makes it") from None
    late = {(serial, first + at) for serial, first, number in stale for at in range(number)}
    changed_nothing = [handle for handle, place in handles.items() if place in late]
    if len(changed_nothing) == len(handles):
        raise Problem(
            410,
            "stale-handles",
            "each of these messages was settled before, or its time was over and it has been delivered again",
            "drop what was done with them if it may not be done twice, and pop again; give `invisible_s` more seconds, "
            "or extend it, where the work takes longer",
            stale=changed_nothing,
        )
    if changed_nothing:
        response.status_code = MULTI_STATUS
    return SettledModel(settled=len(handles) - len(changed_nothing), stale=changed_nothing)


def _places(seal: HandleSeal, handles: Iterable[str]) -> dict[str, DeliveryPlace]:
    """The places of these handles, each once. Raises Problem."""
    try:
        return {handle: seal.place(handle) for handle in handles}
    except BadHandle as error:
        text = f"a handle has {HANDLE_CHARACTERS} characters; send it as pop had it"
        raise Problem(400, "bad-handle", str(error), text) from None
    except ForeignHandle as error:
        text = "settle a message by the user who popped it, with the name and filter of its group"
        raise Problem(403, "foreign-handle", str(error), text) from None


def _receipts(places: Iterable[DeliveryPlace]) -> list[of_group.Receipt]:
    """Those that lie side by side together."""
    receipts: list[of_group.Receipt] = []
    for serial, at in sorted(set(places)):
        last = receipts[-1] if receipts else None
        if last is not None and last.serial == serial and last.first + last.number == at:
            receipts[-1] = last._replace(number=last.number + 1)
        else:
            receipts.append(of_group.Receipt(serial, at, 1))
    return receipts
