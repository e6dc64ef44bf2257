"""Who has received a message: sessions and groups, as their positions say; for admins who may read the message."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field
from starlette.requests import Request

from penstock.console.access.callers import Caller
from penstock.console.access.state import caller_of, console_of
from penstock.console.api.parameters import After
from penstock.console.store.receivers import receivers_of
from penstock.console.views.cursor import PageCursor, parse_cursor, query_of, text_of
from penstock.console.views.messages import rfc3339
from store.namespaces import Namespace
from store.state.receiver_states import ReceiverState
from store.wire.operator_messages import GroupReceiver, SessionReceiver, TracedMessage

MOST_ID = 256

router = APIRouter(tags=["messages"])


class TracedModel(BaseModel):
    topic: str
    stored_at: str = Field(description="RFC 3339 in UTC.")
    queue_offset: int = Field(description="Its place in its topic.")
    qos: int
    client_id: str | None = Field(description="Of the MQTT client that published it; null: the record names none.")
    user: str | None = Field(description="For whom it counts against quotas; null: the record does not say.")


class SessionReceiverModel(BaseModel):
    client_id: str
    topic_filter: str = Field(description="The subscription that decides, where several match.")
    qos: int
    state: ReceiverState
    online: bool


class GroupReceiverModel(BaseModel):
    group: str
    topic_filter: str
    state: ReceiverState
    paused: bool
    deliveries: int = Field(description="So far, of a message that the group holds.")
    due_at: str | None = Field(description="When the message is handed out again, of one that the group holds.")
    consumer: str | None = Field(description="That has it.")
    letter_log_offset: int | None = Field(description="Of its dead letter; null: none, or it is yet to be written.")


class ReceiversModel(BaseModel):
    """`state` says what the position is:

    received: behind the message. in_flight: handed out, not acknowledged. under_way: in front, and the client is
    connected. waiting: in front, not handed out. retry: a group hands it out again. dead_letter: a group gave it up.
    later: the subscription or the group began after it. filtered: No Local, or another tag.
    unknown: no position says, as at QoS 0.
    """

    message: TracedModel | None = Field(description="On the first page.")
    groups: list[GroupReceiverModel]
    sessions: list[SessionReceiverModel]
    next: str | None = Field(description="The cursor of the next page, which may be empty; null: that was all.")


@router.get("/messages/{message_id}/receivers", operation_id="list_receivers", summary="Who has received a message")
async def receivers(
    request: Request,
    caller: Annotated[Caller, Depends(caller_of)],
    message_id: Annotated[str, Path(max_length=MOST_ID)],
    after: After = None,
) -> ReceiversModel:
    """For users with the right `admin` who may read the message. Groups come first; for a page 2,000 are looked at.

    Positions are those of the log, which has a connected client's a moment later. A client without a stored session
    (clean start, or QoS 0 alone) has none, and is not listed.
    """
    query = query_of("receivers", message_id)
    at = parse_cursor(after, query).at if after is not None else 0
    found = await receivers_of(console_of(request).admin, caller.connection, message_id, at)
    names = caller.connection.names
    return ReceiversModel(
        message=_message(found.message, names) if found.message is not None else None,
        groups=[_group(each, names) for each in found.groups],
        sessions=[_session(each, names) for each in found.sessions],
        next=None if found.next is None else text_of(PageCursor(query, found.next)),
    )


def _message(found: TracedMessage, names: Namespace) -> TracedModel:
    return TracedModel(
        topic=names.plain_topic(found.topic),
        stored_at=rfc3339(found.stored_ms),
        queue_offset=found.queue_offset,
        qos=found.qos,
        client_id=names.plain_client_id(found.client_id) or None,
        user=found.user or None,
    )


def _group(found: GroupReceiver, names: Namespace) -> GroupReceiverModel:
    return GroupReceiverModel(
        group=names.plain_group(found.group),
        topic_filter=names.plain_filter(found.topic_filter),
        state=found.state,
        paused=found.paused,
        deliveries=found.deliveries,
        due_at=rfc3339(found.due_ms) if found.due_ms else None,
        consumer=found.consumer or None,
        letter_log_offset=found.letter,
    )


def _session(found: SessionReceiver, names: Namespace) -> SessionReceiverModel:
    return SessionReceiverModel(
        client_id=found.client_id,
        topic_filter=names.plain_filter(found.topic_filter),
        qos=found.qos,
        state=found.state,
        online=found.online,
    )
