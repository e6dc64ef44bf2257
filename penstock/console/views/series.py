"""A numeric field of a topic's JSON payloads over time, in steps: what a chart needs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from penstock.console.store.connection import StoreConnection
from penstock.console.views.json_numbers import number_at
from penstock.console.views.messages import rfc3339
from penstock.console.views.sizes import bounded_payload, in_worker, payload_bytes
from penstock.sdk.errors import Unreadable
from penstock.sdk.message import Message
from penstock.sdk.positions import Position
from penstock.sdk.reading import Reading

MOST_MESSAGES = 1_000_000
READ_S = 10.0
MOST_STEPS = 10_000
PART_MESSAGES = 2_048
PART_BYTES = 4 << 20
"""Of payloads that a thread looks into at a time."""
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LONGEST_STEP_MS = 366 * 86_400_000


class SeriesPoint(Struct):
    """The values of one step. `time`: where it begins; `value`: their mean."""

    time: str
    value: float
    min: float
    max: float
    last: float
    count: int


class Series(Struct):
    """`points` of steps that have values. `left_out`: messages without a number there. `is_complete`: all of the range
    was read; else it ends at `until`, and a request from there goes on.
    """

    points: list[SeriesPoint]
    messages: int
    left_out: int
    is_complete: bool
    until: str | None


def step_ms_of(text: str) -> int:
    """A step such as 500ms, 10s, 1m, 2h or 1d in ms. Raises ValueError.

    >>> step_ms_of("1m")
    60000
    """
    found = re.fullmatch(r"(\d{1,9})(ms|s|m|h|d)", text)
    step_ms = int(found[1]) * UNITS_MS[found[2]] if found is not None else 0
    if not 0 < step_ms <= LONGEST_STEP_MS:
        raise ValueError(f"{text!r} is no step; write it as 500ms, 10s, 1m, 2h or 1d")
    return step_ms


class _Steps:
    """The values so far, by step."""

    def __init__(self, step_ms: int, path: list[str]) -> None:
        self._step_ms = step_ms
        self._path = path
        self._points: dict[int, list[float]] = {}  # sum, min, max, last, count
        self.messages = self.left_out = 0

    @property
    def is_full(self) -> bool:
        return len(self._points) >= MOST_STEPS

    def add(self, stored_ms: int, payload: bytes) -> None:
        self.messages += 1
        value = number_at(payload, self._path)
        if value is None:
            self.left_out += 1
            return
        step = stored_ms - stored_ms % self._step_ms
        point = self._points.get(step)
        if point is None:
            self._points[step] = [value, value, value, value, 1]
            return
        point[0] += value
        point[1] = min(point[1], value)
        point[2] = max(point[2], value)
        point[3] = value
        point[4] += 1

    def shown(self) -> list[SeriesPoint]:
        return [
            SeriesPoint(rfc3339(step), total / count, low, high, last, int(count))
            for step, (total, low, high, last, count) in sorted(self._points.items())
        ]


async def series(
    connection: StoreConnection, topic: str, field: str, start: Position, stop: Position, step_ms: int
) -> Series:
    """Read a range of a topic. `field`: names with dots between them; empty: the payload is a number.

    Raises a ClientError.
    """
    steps = _Steps(step_ms, field.split(".") if field else [])
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + READ_S
    reading = connection.read(topic, start=start, stop=stop)
    stopped_ms = await _read(reading, steps, lambda: loop.time() > deadline_s)
    until = None if stopped_ms is None else rfc3339(stopped_ms)
    return Series(steps.shown(), steps.messages, steps.left_out, until is None, until)


async def _read(reading: Reading, steps: _Steps, is_late: Callable[[], bool]) -> int | None:
    """Read to the end; else the time of the first message that was not read, in ms."""
    async for batch in reading.batches():
        messages = iter(batch)
        while True:
            is_over, stopped_ms = await in_worker(_add_part, messages, steps, is_late)
            if stopped_ms is not None:
                reading.close()
                return stopped_ms
            if is_over:
                break
    return None


def _add_part(messages: Iterator[Message], steps: _Steps, is_late: Callable[[], bool]) -> tuple[bool, int | None]:
    """Add some of the messages. Whether these were all; and the time of the first one that is not read, in ms."""
    size_bytes = 0
    for number, message in enumerate(messages):
        if steps.messages >= MOST_MESSAGES or steps.is_full or is_late():
            return False, message.stored_ms
        try:
            steps.add(message.stored_ms, bounded_payload(message))
        except Unreadable:
            steps.left_out += 1
        size_bytes += payload_bytes(message.record)
        if number == PART_MESSAGES - 1 or size_bytes > PART_BYTES:
            return False, None
    return True, None
