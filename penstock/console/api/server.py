"""The server: its version, health, settings and figures; for admins."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.console.access.admin import by
from penstock.console.access.callers import Caller
from penstock.console.access.state import caller_of, console_of
from penstock.console.api.clients import checked_name, no_such, time_of
from penstock.console.api.parameters import After
from penstock.console.api.problems import bad_parameter
from penstock.console.api.topics import check_topic
from penstock.console.views.cursor import PageCursor, parse_cursor, query_of, text_of
from penstock.console.views.sizes import ANSWER_BYTES
from store.wire.operator_messages import (
    ForgetLogReader,
    ListLogReaders,
    LogReadersListed,
    OperatorDone,
    TopicReaders,
    TopicReadersFound,
)

MOST_READERS = 10_000

router = APIRouter(tags=["server"])
Asking = Annotated[Caller, Depends(caller_of)]


class ServerModel(BaseModel):
    version: str
    started: str | None
    health: str = Field(description="What to look at; empty if all is well.")
    unready: str = Field(description="Why no clients should come; empty if all is well.")
    settings: dict[str, Any] = Field(description="Those in force, by their paths; secrets are ***.")
    console: dict[str, Any] = Field(
        description="Of the console: users, connections, streams, and requests that it refused, by kind."
    )


class FigureModel(BaseModel):
    """A metric as Prometheus has it."""

    name: str
    labels: dict[str, str]
    value: float


class FiguresModel(BaseModel):
    figures: list[FigureModel]


class ReaderModel(BaseModel):
    client_id: str
    topic_filter: str
    qos: int
    online: bool


class ReadersModel(BaseModel):
    sessions: list[ReaderModel]
    groups: list[tuple[str, str]] = Field(description="Name and topic filter of each; all on the first page.")
    next: str | None = Field(description="The cursor of the next page; null: that was all.")


class LogReaderModel(BaseModel):
    """A process that reads the log itself under a name: the cold tier, an export, a Spark stream."""

    name: str
    log_offset: int = Field(description="It is done with all before that.")
    behind_bytes: int
    holds: bool = Field(description="Retention waits for it; false: it was heard of in the last 10 minutes.")
    most_behind_bytes: int = Field(description="How far behind it may be; 0: as far as store.most_behind_bytes says.")
    when_behind: str = Field(description="What happens if it is further behind: drop (it loses messages) or refuse.")
    advanced: str | None = Field(description="When it moved last.")
    lost_bytes: int = Field(description="That retention dropped before it had read them.")


class LogReadersModel(BaseModel):
    readers: list[LogReaderModel]


@router.get("/server", operation_id="get_server", summary="Version, health and settings in force")
async def server(request: Request, caller: Asking) -> ServerModel:
    console = console_of(request)
    found, settings, _ = await console.admin.server(caller.connection)
    own = {
        "users": len(console.connections),
        "connections": dict(console.sockets),
        "streams": dict(console.streams),
        "pops": dict(console.pops),
        "refused": dict(console.refused),
    }
    return ServerModel(
        version=found.version,
        started=time_of(found.started_ms),
        health=found.health,
        unready=found.unready,
        settings=settings,
        console=own,
    )


@router.get("/server/figures", operation_id="list_figures", summary="Figures of the server, as Prometheus has them")
async def figures(
    request: Request,
    caller: Asking,
    name: Annotated[str, Query(max_length=255, description="Those that begin so; empty: all.")] = "",
) -> FiguresModel:
    """Of a gateway that is a process of its own they have the label `gateway`."""
    admin = console_of(request).admin
    _, _, found = await admin.server(caller.connection)
    samples = [*found, *await admin.gateway_samples(caller.connection)]
    return FiguresModel(
        figures=[
            FigureModel(name=each, labels=labels, value=value)
            for each, labels, value in samples
            if each.startswith(name)
        ]
    )


@router.get("/readers", operation_id="list_readers", summary="Who reads a topic: sessions and groups", tags=["topics"])
async def readers(
    request: Request,
    caller: Asking,
    topic: Annotated[str, Query(min_length=1, max_length=2_048)],
    after: After = None,
) -> ReadersModel:
    """Sessions in the log whose filters match; a page has 10,000 at most, and 4 MiB of their names and filters."""
    check_topic(topic, "topic")
    if not topic:
        raise bad_parameter("topic", "it is empty")
    admin = console_of(request).admin
    sessions: list[ReaderModel] = []
    groups: list[tuple[str, str]] = []
    query = query_of("readers", topic)
    at: int | None = parse_cursor(after, query).at if after is not None else 0
    left_bytes = ANSWER_BYTES
    while at is not None and len(sessions) < MOST_READERS and left_bytes > 0:
        found = await admin.ask(caller.connection, TopicReaders(topic, at), TopicReadersFound)
        left_bytes -= sum(len(each.client_id) + len(each.topic_filter) for each in found.sessions)
        groups += found.groups
        sessions += [
            ReaderModel(client_id=each.client_id, topic_filter=each.topic_filter, qos=each.qos, online=each.online)
            for each in found.sessions
        ]
        at = found.next
    goes_on = None if at is None else text_of(PageCursor(query, at))
    return ReadersModel(sessions=sessions, groups=groups, next=goes_on)


@router.get("/log-readers", operation_id="list_log_readers", summary="Readers of the log, and how far they are")
async def log_readers(request: Request, caller: Asking) -> LogReadersModel:
    """All of them, by name; 200 at most."""
    found = await console_of(request).admin.ask(caller.connection, ListLogReaders(), LogReadersListed)
    readers = [
        LogReaderModel(advanced=time_of(fields.pop("advanced_ms")), **fields)
        for fields in map(msgspec.structs.asdict, found.readers)
    ]
    return LogReadersModel(readers=readers)


@router.delete(
    "/log-readers/{name:path}",
    operation_id="forget_log_reader",
    summary="Have retention no longer wait for a reader of the log",
    status_code=204,
)
async def forget_log_reader(request: Request, caller: Asking, name: str) -> Response:
    """What it has not read may be gone when it comes back."""
    message = ForgetLogReader(checked_name(name), by(request, caller))
    done = await console_of(request).admin.ask(caller.connection, message, OperatorDone)
    if not done.found:
        raise no_such("reader of the log", name)
    return Response(status_code=204)
