"""What the server did in the last day, and its gateways; for admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field
from starlette.requests import Request

from penstock.console.access.admin import operator_for
from penstock.console.access.callers import Caller
from penstock.console.access.state import caller_of, console_of
from penstock.console.api.clients import time_of
from penstock.console.api.problems import bad_parameter
from penstock.console.errors import Problem
from penstock.console.observe.growth import ACKNOWLEDGED, DELIVERED, FLUSHED
from penstock.console.observe.history import ALL
from penstock.console.observe.samples import SamplePoint
from penstock.console.store.admin import operator_problems
from penstock.console.views.series import step_ms_of

router = APIRouter(tags=["server"])
Asking = Annotated[Caller, Depends(caller_of)]


class LatencyModel(BaseModel):
    """Of a histogram: times that half, and 99 % of all, did not exceed, in seconds; null: there were none."""

    p50_s: float | None
    p99_s: float | None


class HistoryPointModel(BaseModel):
    """Of a step. null: not known; a gateway alone has no lag, log or disk."""

    time: str = Field(description="When its last sample was taken.")
    messages_in: float | None = Field(description="A second: stored; of a gateway: taken from clients.")
    messages_out: float | None = Field(description="A second, sent to clients of MQTT.")
    clients: int | None
    group_lag: int | None = Field(description="Messages, of the slowest group.")
    reader_lag_bytes: int | None = Field(description="Of the slowest reader of the log.")
    log_bytes: int | None
    disk_free_bytes: int | None
    delivered: LatencyModel = Field(description="From a message's storing to its sending.")
    acknowledged: LatencyModel = Field(description="From a PUBLISH to its acknowledgement.")
    flushed: LatencyModel = Field(description="Of the log to its disk.")


class HistoryModel(BaseModel):
    since: str | None = Field(description="When the console began: it keeps 8,640 samples from then on.")
    step_s: int = Field(description="What a point stands for, in seconds.")
    points: list[HistoryPointModel] = Field(description="Oldest first; steps without a sample are left out.")


class GatewayModel(BaseModel):
    name: str
    state: str = Field(description="`connected`, `does not answer`, or `away`: then the rest is its last report.")
    reported: str | None = Field(description="When it reported last; null: never.")
    started: str | None
    version: str | None
    unready: str = Field(description="Why no clients should come; empty if they may.")
    messages_in: float | None = Field(description="A second, since the sample before the last one.")
    messages_out: float | None
    clients: int | None
    delivered: LatencyModel = Field(description="Of the last five minutes.")
    acknowledged: LatencyModel


class GatewaysModel(BaseModel):
    """Gateways that are processes of their own."""

    gateways: list[GatewayModel]


@router.get("/server/history", operation_id="get_history", summary="Rates, latencies, lag and sizes of the last day")
async def history(
    request: Request,
    caller: Asking,
    span: Annotated[
        str, Query(max_length=16, description="How far back: `10s` to `1d`, or what console.sample_s keeps.")
    ] = "1h",
    gateway: Annotated[str, Query(max_length=1_024, description="Of this one alone; empty: of all together.")] = "",
) -> HistoryModel:
    """A sample every ten seconds (console.sample_s), joined so that 720 points at most are told: rates as means,
    latencies exactly, of the rest what is worst."""
    try:
        span_s = step_ms_of(span) // 1_000
    except ValueError as error:
        raise bad_parameter("span", str(error)) from None
    overview = console_of(request).overview
    await operator_for(console_of(request), caller)
    kept = overview.history
    if not kept.sample_s <= span_s <= kept.longest_s:
        raise bad_parameter("span", f"{span} is not from {kept.sample_s}s to {kept.longest_s}s")
    if gateway and not kept.has(gateway) and gateway not in overview.gateways:
        raise Problem(404, "not-found", f"there is no gateway {gateway[:200]!r}", "see /api/v1/server/gateways")
    found = kept.chart(gateway or ALL, span_s)
    return HistoryModel(since=time_of(kept.since_ms), step_s=found.step_s, points=[*map(_point, found.points)])


@router.get("/server/gateways", operation_id="list_gateways", summary="Gateways that are processes of their own")
async def gateways(request: Request, caller: Asking) -> GatewaysModel:
    """Those that are away are listed for an hour, with their last report."""
    overview = console_of(request).overview
    operator = await operator_for(console_of(request), caller)
    with operator_problems():
        await overview.look(operator)
    found = []
    for state in overview.gateways.all():
        times, process = overview.minutes_of(state), state.process
        found.append(
            GatewayModel(
                name=state.name,
                state=state.presence,
                reported=time_of(state.seen_ms) if process is not None else None,
                started=time_of(process.started_ms) if process is not None else None,
                version=process.version if process is not None else None,
                unready=process.unready if process is not None else "",
                messages_in=state.received_rate,
                messages_out=state.sent_rate,
                clients=_whole(state.clients),
                delivered=_latency(times, DELIVERED),
                acknowledged=_latency(times, ACKNOWLEDGED),
            )
        )
    return GatewaysModel(gateways=found)


def _point(point: SamplePoint) -> HistoryPointModel:
    numbers = point.numbers
    return HistoryPointModel(
        time=time_of(point.time_ms) or "",
        messages_in=numbers.get("in"),
        messages_out=numbers.get("out"),
        clients=_whole(numbers.get("clients")),
        group_lag=_whole(numbers.get("group_lag")),
        reader_lag_bytes=_whole(numbers.get("reader_lag")),
        log_bytes=_whole(numbers.get("log_bytes")),
        disk_free_bytes=_whole(numbers.get("disk_free")),
        delivered=_latency(point, DELIVERED),
        acknowledged=_latency(point, ACKNOWLEDGED),
        flushed=_latency(point, FLUSHED),
    )


def _latency(point: SamplePoint, name: str) -> LatencyModel:
    return LatencyModel(p50_s=point.quantile_s(name, 0.5), p99_s=point.quantile_s(name, 0.99))


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)
