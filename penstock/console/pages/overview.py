"""The overview: what is wrong, what happens now, and charts of what happened."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from penstock.console.access.admin import operator_for
from penstock.console.errors import Problem
from penstock.console.observe.gateways import GatewayState
from penstock.console.observe.growth import ACKNOWLEDGED, DELIVERED
from penstock.console.observe.history import ALL, HistoryChart
from penstock.console.observe.overview import Overview
from penstock.console.observe.samples import SamplePoint
from penstock.console.pages.own_overview import own_overview
from penstock.console.pages.rendering import PageVisit, page, query, size, when

ChartLine = tuple[str, str | tuple[str, float], float]
SPANS = {"15m": (900, "15 minutes"), "1h": (3_600, "1 hour"), "6h": (21_600, "6 hours"), "1d": (86_400, "1 day")}
LINES: dict[str, tuple[ChartLine, ...]] = {
    "rates": (("in", "in", 1.0), ("out", "out", 1.0)),
    "latency": (
        ("p50", (DELIVERED, 0.5), 1e3),
        ("p99", (DELIVERED, 0.99), 1e3),
        ("ack p99", (ACKNOWLEDGED, 0.99), 1e3),
    ),
    "lag": (("slowest group", "group_lag", 1.0),),
    "log": (("log", "log_bytes", 1e-6),),
}
"""The lines of each chart: label, which number of a sample or which quantile, and what it is multiplied by."""
CHARTS = (("rates", "Messages a second"), ("latency", "Latency, ms"), ("lag", "Lag, messages"), ("log", "Log, MB"))
OF_GATEWAYS = ("rates", "latency")
"""What a gateway has by itself."""
GAP_STEPS = 2.5
"""Without a sample for so many steps a line is interrupted."""


@page("/")
async def overview_page(visit: PageVisit) -> Response:
    try:
        operator = await operator_for(visit.console, visit.caller)
    except Problem as problem:
        if problem.kind in ("not-permitted", "no-operator") and not visit.is_part:
            return await own_overview(visit)
        raise
    overview = visit.console.overview
    look = await overview.look(operator)
    span, gateway = _span(visit), _gateway(visit)
    return visit.show(
        "overview_part.html" if visit.is_part else "overview.html",
        server=look.server,
        figures=_shown(overview.now(look)),
        troubles=overview.troubles(look),
        gateways=[_row(overview, state) for state in overview.gateways.all()],
        charts=[(title, _address(name, span, gateway)) for name, title in _charts(gateway)],
        spans=[(name, title, _page(name, gateway)) for name, (_, title) in SPANS.items()],
        span=span,
        sample_ms=1_000 * overview.history.sample_s,
        step_s=overview.history.chart(gateway or ALL, SPANS[span][0]).step_s,
        since=overview.history.since_ms,
        gateway=gateway,
        here=_page(span, gateway),
    )


def _charts(gateway: str) -> list[tuple[str, str]]:
    return [(name, title) for name, title in CHARTS if not gateway or name in OF_GATEWAYS]


def _page(span: str, gateway: str) -> str:
    return query("/", span=span if span != "1h" else "", gateway=gateway)


def _address(chart: str, span: str, gateway: str) -> str:
    return query("/overview/chart", of=chart, span=span, gateway=gateway)


def _span(visit: PageVisit) -> str:
    """Raises Problem."""
    span = visit.asked("span", "1h", 16)
    if span not in SPANS:
        raise Problem(400, "bad-parameter", f"span: not one of {', '.join(SPANS)}", "choose one of the page's links")
    return span


def _gateway(visit: PageVisit) -> str:
    """Whose charts are shown; empty: of all together."""
    return visit.asked("gateway", "", 1_024)


def _shown(now: SamplePoint) -> list[tuple[str, str, str]]:
    """Label, text, and why it is not known; empty if it is."""
    numbers = now.numbers
    counted = "counted at the next look"
    no_gateway = "no gateway is connected"
    free = numbers.get("disk_free")
    return [
        ("in", *_known(rate(numbers.get("in")), counted)),
        ("out", *_known(rate(numbers.get("out")), counted if "clients" in numbers else no_gateway)),
        ("p50", *_known(duration(now.quantile_s(DELIVERED, 0.5)), "nothing was delivered")),
        ("p99", *_known(duration(now.quantile_s(DELIVERED, 0.99)), "nothing was delivered")),
        ("clients", *_known(number(numbers.get("clients")), no_gateway)),
        ("lag", *_known(number(numbers.get("group_lag")), counted)),
        ("log", *_known(size(numbers.get("log_bytes", 0)), "")),
        ("disk free", *_known(size(free) if free is not None else "", "the system does not tell")),
    ]


def _known(text: str, why_not: str) -> tuple[str, str]:
    return (text, "") if text else (why_not, why_not)


def rate(found: float | None) -> str:
    """Empty: it is not known."""
    if found is None:
        return ""
    return f"{found:,.1f}/s" if found < 100 else f"{found:,.0f}/s"


def number(found: float | None) -> str:
    return "" if found is None else f"{found:,.0f}"


def duration(seconds: float | None) -> str:
    """For people.

    >>> duration(0.00123), duration(2.5)
    ('1.23 ms', '2.5 s')
    """
    if seconds is None:
        return ""
    return f"{seconds * 1_000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _row(overview: Overview, state: GatewayState) -> dict[str, object]:
    """A gateway as the table has it: what is not known is empty."""
    of_minutes = overview.minutes_of(state)
    return {
        "name": state.name,
        "page": query("/", gateway=state.name) if overview.history.has(state.name) else "",
        "presence": state.presence,
        "is_here": state.is_here,
        "in": rate(state.received_rate),
        "out": rate(state.sent_rate),
        "clients": number(state.clients),
        "p50": duration(of_minutes.quantile_s(DELIVERED, 0.5)),
        "p99": duration(of_minutes.quantile_s(DELIVERED, 0.99)),
        "version": state.process.version if state.process is not None else "",
        "seen": when(state.seen_ms) if state.process is not None else "never",
    }


@page("/overview/chart")
async def chart(visit: PageVisit) -> Response:
    """One of LINES, for a script."""
    await operator_for(visit.console, visit.caller)
    span, gateway, of = _span(visit), _gateway(visit), visit.asked("of", "rates", 16)
    if of not in LINES:
        raise Problem(400, "bad-parameter", f"of: not one of {', '.join(LINES)}", "choose one of them")
    history = visit.console.overview.history
    span_s, _ = SPANS[span]
    found = history.chart(gateway or ALL, span_s)
    points = _with_gaps(found)
    lines = [
        {"label": label, "values": [_value(point, which, factor) for point in points]}
        for label, which, factor in LINES[of]
    ]
    note = f"{len(found.points):,} points" if found.points else "No sample was taken so far."
    drawn = {"times": [point.time_ms for point in points], "series": lines, "note": note, "from_zero": True}
    return JSONResponse(drawn)


def _with_gaps(found: HistoryChart) -> list[SamplePoint]:
    """With a point that knows nothing where none was taken."""
    points: list[SamplePoint] = []
    longest_ms = GAP_STEPS * found.step_s * 1_000
    for point in found.points:
        if points and point.time_ms - points[-1].time_ms > longest_ms:
            points.append(SamplePoint(points[-1].time_ms + found.step_s * 1_000, {}, {}))
        points.append(point)
    return points


def _value(point: SamplePoint, which: str | tuple[str, float], factor: float) -> float | None:
    found = point.numbers.get(which) if isinstance(which, str) else point.quantile_s(*which)
    return None if found is None else found * factor
