"""Numbers in the JSON of a topic's messages for a chart: all of them, or pieces that are spread evenly over the range.

`series` reads all of a range and gives means of steps; this reads at most 10,000 messages of any range.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.console.views.history import HistoryPages, HistorySpan
from penstock.console.views.json_numbers import number_at, path_of
from penstock.console.views.messages import MessageFields
from penstock.console.views.sizes import bounded_payload, in_worker
from penstock.sdk.errors import NotFound, Unreadable
from penstock.sdk.message import TIMESTAMP, Message
from penstock.sdk.message_id import StorePlace

MOST_MESSAGES = 10_000
PIECES = 100
PIECE_MESSAGES = 50
PAGE_MESSAGES = 1_000
READ_S = 3.0


@dataclass(frozen=True, slots=True)
class FieldSeries:
    """Of each field a value, or None, at each of these times (Unix, ms). `read` of `messages` were read; `is_late`: of
    the oldest ones, since reading took too long.
    """

    times: list[int]
    values: list[list[float | None]]
    read: int
    messages: int
    is_late: bool = False


async def chart_values(history: HistoryPages, place: StorePlace, span: HistorySpan, fields: list[str]) -> FieldSeries:
    """Raises a ClientError."""
    try:
        first, end = await history.queue_offset(span, span.start), await history.queue_offset(span, span.stop)
    except NotFound:
        return FieldSeries([], [[] for _ in fields], 0, 0)
    found = FieldSeries([], [[] for _ in fields], 0, max(0, end - first))
    paths = [path_of(field) for field in fields]
    read = 0
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + READ_S
    for begin, until in _pieces(first, end):
        at = begin
        while at < until:  # a page may have fewer, where they are large
            page = await history.in_queue(span, at, until)
            if not page.messages:
                break
            read += await in_worker(_add_all, found, page.messages, place, paths, loop, deadline_s)
            if loop.time() > deadline_s:
                return FieldSeries(found.times, found.values, read, found.messages, read < found.messages)
            last = page.messages[-1][1]
            at = until if last is None else last + 1
    return FieldSeries(found.times, found.values, read, found.messages)


def _add_all(
    found: FieldSeries,
    messages: list[MessageFields],
    place: StorePlace,
    paths: list[list[str]],
    clock: asyncio.AbstractEventLoop,
    deadline_s: float,
) -> int:
    """How many were added before the deadline."""
    for number, (record, queue_offset) in enumerate(messages):
        if clock.time() > deadline_s:
            return number
        _add(found, record[TIMESTAMP], Message(record, queue_offset, place), paths)
    return len(messages)


def _pieces(first: int, end: int) -> list[tuple[int, int]]:
    """Which queue_offsets are read.

    >>> _pieces(0, 2_500), len(_pieces(0, 1_000_000)), _pieces(7, 7)
    ([(0, 1000), (1000, 2000), (2000, 2500)], 100, [])
    """
    number = end - first
    if number <= MOST_MESSAGES:
        return [(at, min(end, at + PAGE_MESSAGES)) for at in range(first, end, PAGE_MESSAGES)]
    ends = (first + PIECE_MESSAGES + (number - PIECE_MESSAGES) * each // (PIECES - 1) for each in range(PIECES))
    return [(until - PIECE_MESSAGES, until) for until in ends]


def _add(found: FieldSeries, time_ms: int, message: Message, paths: list[list[str]]) -> None:
    try:
        payload = bounded_payload(message)
    except Unreadable:
        return
    values = [number_at(payload, path) for path in paths]
    if any(value is not None for value in values):
        found.times.append(time_ms)
        for column, value in zip(found.values, values, strict=True):
            column.append(value)
