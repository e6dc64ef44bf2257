"""The log on the disk: its segments, what one holds, who reads it under a name, and who writes most of it."""

from __future__ import annotations

import time

from starlette.responses import Response

from penstock.console.access.admin import operator_for
from penstock.console.errors import Problem
from penstock.console.pages.rendering import PageVisit, page
from penstock.console.store.connection import StoreConnection
from penstock.console.views import log_samples
from store.wire import log_messages as of_log
from store.wire.operator_messages import ListLogReaders, LogReaderInfo, LogReadersListed

SPANS = {"minute": 60, "hour": 3_600, "day": 86_400}
"""Lengths of time in seconds."""
ROWS = 200


@page("/log")
async def log_page(visit: PageVisit) -> Response:
    found = await _segments(visit.caller.connection)
    ends = [base for base, _ in found.segments[1:]] + [found.log_end]
    rows = [(base, made_ms, end - base) for (base, made_ms), end in zip(found.segments, ends, strict=True)]
    try:
        operator = await operator_for(visit.console, visit.caller)
        readers: list[LogReaderInfo] = (await operator.ask(ListLogReaders(), LogReadersListed)).readers
        unknown = ""
    except Problem as problem:
        readers, unknown = [], f"{problem.detail}; {problem.remedy}"
    return visit.show(
        "log.html",
        rows=rows[::-1][:ROWS],
        number=len(rows),
        base=found.log_base,
        end=found.log_end,
        readers=readers,
        unknown=unknown,
    )


async def _segments(connection: StoreConnection) -> of_log.SegmentsFound:
    found, _ = await connection.request(of_log.Segments(0), of_log.SegmentsFound)
    while found.more:
        start = found.segments[-1][0] + 1
        more, _ = await connection.request(of_log.Segments(start), of_log.SegmentsFound)
        found = of_log.SegmentsFound(found.segments + more.segments, more.more, more.log_base, more.log_end)
    return found


@page("/log/segment")
async def segment_page(visit: PageVisit) -> Response:
    start, found = visit.number("start", 0), await _segments(visit.caller.connection)
    bases = [base for base, _ in found.segments]
    if start not in bases:
        raise Problem(404, "no-such-segment", "the log has no segment that begins there", "choose one on the page Log")
    ends = [*bases[1:], found.log_end]
    begins = max(start, found.log_base)
    sample = await log_samples.between(visit.caller.connection, begins, ends[bases.index(start)])
    return visit.show("segment.html", start=start, sample=sample)


@page("/talkers")
async def talkers_page(visit: PageVisit) -> Response:
    """Who published most within a `span`: minute, hour or day."""
    span = visit.asked("span", "minute", 8)
    if span not in SPANS:
        raise Problem(400, "bad-parameter", "span: no length of time", "use minute, hour or day")
    since_ms = int((time.time() - SPANS[span]) * 1_000)
    sample = await log_samples.since(visit.caller.connection, since_ms)
    return visit.show("talkers.html", span=span, spans=SPANS, sample=sample)
