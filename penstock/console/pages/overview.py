"""The overview: what happens now, and what is wrong."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from penstock.console.access.admin import operator_for
from penstock.console.errors import Problem
from penstock.console.pages.own_overview import own_overview
from penstock.console.pages.rendering import PageVisit, page, size
from penstock.console.views.overview import DISK_FREE, GROUP_LAG, Figures, RateLook, troubles

NOT_HERE = "not known: gateways are processes of their own, which tell it at their /metrics"
NOTHING_YET = "not known: nothing was counted so far"
SECOND_LOOK = "counted at the next look"


@page("/")
async def overview_page(visit: PageVisit) -> Response:
    try:
        operator = await operator_for(visit.console, visit.caller)
    except Problem as problem:
        if problem.kind in ("not-permitted", "no-operator") and not visit.is_part:
            return await own_overview(visit)
        raise
    overview = visit.console.overview
    figures = await overview.figures(operator)
    template = "overview_part.html" if visit.is_part else "overview.html"
    shown = _shown(figures, overview.looks[-1])
    wrong = troubles(figures) + (overview.watch.troubles() if overview.watch is not None else [])
    return visit.show(template, server=figures.server, figures=shown, troubles=wrong)


def _shown(figures: Figures, look: RateLook) -> list[tuple[str, str, bool]]:
    """Title, text, and whether it is known."""
    lags = [lag for _, lag in figures.by(GROUP_LAG, "group")]
    readers = [lag for _, lag in figures.by("penstock_reader_lag_bytes", "reader")]
    has_gateway = figures.total("penstock_messages_sent_total") is not None
    online = figures.total("penstock_connections")
    return [
        ("Messages in", *_rate(look.received, "", True)),
        ("Messages out", *_rate(look.sent, "", has_gateway)),
        (
            "Connected clients",
            *_number(online if has_gateway else figures.total("penstock_sessions", state="connected")),
        ),
        ("Acknowledged within, half", *_time(figures, "penstock_publish_acknowledged_seconds", 0.5)),
        ("Acknowledged within, 99 %", *_time(figures, "penstock_publish_acknowledged_seconds", 0.99)),
        ("Delivered within, half", *_time(figures, "penstock_delivery_seconds", 0.5)),
        ("Delivered within, 99 %", *_time(figures, "penstock_delivery_seconds", 0.99)),
        ("Flush to disk, 99 %", *_time(figures, "penstock_log_sync_duration_seconds", 0.99)),
        ("Log", *_bytes(figures.total("penstock_log_bytes"))),
        ("Free on the disk", *_bytes(figures.total(DISK_FREE))),
        ("Not yet in the index", *_number(figures.total("penstock_index_pending_entries"))),
        ("Lag of the slowest group", *((f"{max(lags):,.0f} messages", True) if lags else ("no group", False))),
        ("Lag of the slowest log reader", *((size(max(readers)), True) if readers else ("no reader", False))),
    ]


def _rate(rate: float | None, unit: str, has: bool) -> tuple[str, bool]:
    if rate is None:
        return (SECOND_LOOK if has else NOT_HERE), False
    return f"{rate:,.1f}{unit}/s" if rate < 100 else f"{rate:,.0f}{unit}/s", True


def _number(number: float | None) -> tuple[str, bool]:
    return (NOT_HERE, False) if number is None else (f"{number:,.0f}", True)


def _bytes(number: float | None) -> tuple[str, bool]:
    return (NOT_HERE, False) if number is None else (size(number), True)


def _time(figures: Figures, name: str, quantile: float) -> tuple[str, bool]:
    if figures.total(f"{name}_count") is None:
        return NOT_HERE, False
    seconds = figures.quantile_s(name, quantile)
    if seconds is None:
        return NOTHING_YET, False
    return (f"{seconds * 1_000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"), True


@page("/overview/rates")
async def rates(visit: PageVisit) -> Response:
    """The looks of the last half hour, for a chart."""
    operator = await operator_for(visit.console, visit.caller)
    overview = visit.console.overview
    await overview.figures(operator)
    looks = list(overview.looks)
    named = [
        {"label": "in", "values": [look.received for look in looks]},
        {"label": "out", "values": [look.sent for look in looks]},
    ]
    return JSONResponse(
        {
            "times": [look.time_ms for look in looks],
            "series": named,
            "note": "Messages a second, since this page is open.",
        }
    )
