"""Clients and their sessions, and bans: what only admins see and touch."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.console.access.admin import by
from penstock.console.access.callers import Caller
from penstock.console.access.state import caller_of, console_of
from penstock.console.api.parameters import After, PageLimit
from penstock.console.api.problems import bad_parameter
from penstock.console.errors import Problem
from penstock.console.views.cursor import PageCursor, parse_cursor, query_of, text_of
from penstock.console.views.messages import rfc3339
from store.state.changes import BanKind
from store.wire import operator_messages as of_operator
from store.wire.base import WireMessage

MOST_NAME = 65_535

router = APIRouter(tags=["clients"])


class ClientModel(BaseModel):
    """A session, whether its client is connected or not."""

    client_id: str
    user: str | None = Field(description="Its owner; null where that is not known.")
    online: bool
    gateway: str
    address: str = Field(description="Of its connection; empty: not known.")
    since: str | None = Field(description="Since when it is connected, or is not.")
    subscriptions: int = Field(description="Those in the log.")
    session_expiry_interval: int = Field(description="Seconds.")


class ClientsModel(BaseModel):
    clients: list[ClientModel]
    next: str | None


class SubscriptionModel(BaseModel):
    topic_filter: str
    qos: int


class ShownClientModel(ClientModel):
    subscribed: list[SubscriptionModel] = Field(description="Up to 1,000 of them.")
    has_will: bool
    acked_log_offset: int


class Disconnecting(BaseModel):
    reason: str = Field("", max_length=1_024, description="For the logs, and for an MQTT 5 client.")


class BanModel(BaseModel):
    kind: BanKind
    value: str
    until: str | None = Field(description="null: until it is lifted.")
    reason: str
    set_by: str
    set_at: str | None
    automatic: bool = Field(description="A gateway set it after failed logins.")


class BansModel(BaseModel):
    bans: list[BanModel]
    next: str | None


class NewBan(BaseModel):
    kind: BanKind
    value: str = Field(min_length=1, max_length=MOST_NAME, description="An address or network, user or client id.")
    for_s: int = Field(0, ge=0, le=10**10, description="Seconds; 0: until it is lifted.")
    reason: str = Field("", max_length=1_024)


Asking = Annotated[Caller, Depends(caller_of)]


@router.get("/clients", operation_id="list_clients", summary="Clients and sessions")
async def clients(
    request: Request,
    caller: Asking,
    prefix: Annotated[str, Query(max_length=2_048, description="Of the client identifier.")] = "",
    online: Annotated[bool, Query(description="Connected clients alone.")] = False,
    after: After = None,
) -> ClientsModel:
    """Some hundred at a time, in no order."""
    query = query_of("clients", prefix, online)
    at = parse_cursor(after, query).at if after is not None else 0
    wanted = of_operator.ListClients(prefix, online, at)
    found = await console_of(request).admin.ask(caller.connection, wanted, of_operator.ClientsListed)
    goes_on = None if found.next is None else text_of(PageCursor(query, found.next))
    return ClientsModel(clients=[_client(each) for each in found.clients], next=goes_on)


@router.get("/clients/{client_id:path}", operation_id="get_client", summary="One client and its session")
async def client(request: Request, caller: Asking, client_id: str) -> ShownClientModel:
    wanted = of_operator.ShowClient(checked_name(client_id))
    found = await console_of(request).admin.ask(caller.connection, wanted, of_operator.ClientShown)
    if found.client is None:
        raise no_such("client", client_id)
    return ShownClientModel(
        **_client(found.client).model_dump(),
        subscribed=[SubscriptionModel(topic_filter=name, qos=qos) for name, qos in found.subscriptions],
        has_will=found.has_will,
        acked_log_offset=found.acked,
    )


@router.post(
    "/clients/{client_id:path}/disconnect",
    operation_id="disconnect_client",
    summary="End its connection",
    status_code=204,
)
async def disconnect(request: Request, caller: Asking, client_id: str, wanted: Disconnecting) -> Response:
    """It may connect again; a ban prevents that."""
    message = of_operator.DisconnectClient(checked_name(client_id), wanted.reason, by(request, caller))
    return await _done(request, caller, message, "connection of client", client_id)


@router.delete(
    "/clients/{client_id:path}", operation_id="end_client_session", summary="End its session", status_code=204
)
async def end_session(request: Request, caller: Asking, client_id: str) -> Response:
    """With its subscriptions, the messages that wait for it, and its connection."""
    message = of_operator.EndSession(checked_name(client_id), by(request, caller))
    return await _done(request, caller, message, "session of client", client_id)


@router.get("/bans", operation_id="list_bans", summary="Bans in force, oldest first", tags=["bans"])
async def bans(request: Request, caller: Asking, limit: PageLimit, after: After = None) -> BansModel:
    query = query_of("bans")
    at = parse_cursor(after, query).at if after is not None else 0
    found = await console_of(request).admin.ask(
        caller.connection, of_operator.ListBans(at, limit), of_operator.BansListed
    )
    goes_on = None if found.next is None else text_of(PageCursor(query, found.next))
    return BansModel(bans=[_ban(each) for each in found.bans], next=goes_on)


@router.post(
    "/bans",
    operation_id="add_ban",
    summary="Ban an address, a network, a user or a client identifier",
    status_code=204,
    tags=["bans"],
)
async def add_ban(request: Request, caller: Asking, wanted: NewBan) -> Response:
    """Its connections end. A ban of an address or a user holds at all doors: MQTT, the store's port, and here."""
    value = normal_ban(wanted.kind, wanted.value)
    message = of_operator.AddBan(wanted.kind, value, wanted.for_s, wanted.reason, by(request, caller))
    await console_of(request).admin.ask(caller.connection, message, of_operator.OperatorDone)
    return Response(status_code=204)


@router.delete(
    "/bans/{kind}/{value:path}", operation_id="lift_ban", summary="Lift a ban", status_code=204, tags=["bans"]
)
async def lift_ban(request: Request, caller: Asking, kind: BanKind, value: str) -> Response:
    message = of_operator.LiftBan(kind, normal_ban(kind, checked_name(value)), by(request, caller))
    return await _done(request, caller, message, f"ban of {kind}", value)


async def _done(request: Request, caller: Caller, message: WireMessage, what: str, name: str) -> Response:
    done = await console_of(request).admin.ask(caller.connection, message, of_operator.OperatorDone)
    if not done.found:
        raise no_such(what, name)
    return Response(status_code=204)


def no_such(what: str, name: str) -> Problem:
    return Problem(404, "not-found", f"there is no {what} {name[:200]!r}", "see the list of them")


def checked_name(name: str) -> str:
    """Raises Problem."""
    if len(name.encode(errors="replace")) > MOST_NAME:
        raise bad_parameter("name", "too long")
    return name


def normal_ban(kind: BanKind, value: str) -> str:
    """What is banned, as gateways write it. Raises Problem."""
    from gateway.auth.bans import normal
    from gateway.auth.errors import AuthError

    try:
        return normal(kind, value)
    except AuthError as error:
        raise bad_parameter("value", str(error)) from None


def time_of(unix_ms: int) -> str | None:
    return rfc3339(unix_ms) if unix_ms else None


def _client(found: of_operator.ClientInfo) -> ClientModel:
    fields = msgspec.structs.asdict(found)
    return ClientModel(since=time_of(fields.pop("since_ms")), **fields)


def _ban(found: of_operator.BanInfo) -> BanModel:
    fields = msgspec.structs.asdict(found)
    return BanModel(until=time_of(fields.pop("until_ms")), set_at=time_of(fields.pop("set_ms")), **fields)
