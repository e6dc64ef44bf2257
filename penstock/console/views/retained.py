"""Retained messages of a filter, or of all filters that a user may subscribe to, a page at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import blake2b
from typing import NamedTuple

from penstock.console.errors import Problem
from penstock.console.store.connection import StoreConnection
from penstock.console.views.readable import EVERYTHING, readable_below
from penstock.console.views.sizes import ANSWER_BYTES, shown_bytes
from penstock.sdk.errors import NotFound, NotPermitted
from penstock.sdk.filters import matches_any
from penstock.sdk.message import TOPIC, Message
from store.wire import messages as wire

AT_A_TIME = 8
"""Messages that are read at a time."""


class RetainedPlace(NamedTuple):
    """Where a page goes on. `filter_number` names the filter (0: the first one), `after` a topic as the log has it."""

    filter_number: int = 0
    after: str = ""


async def retained_page(
    connection: StoreConnection, topic_filter: str, place: RetainedPlace, limit: int
) -> tuple[list[Message], RetainedPlace | None]:
    """Those that this user may read and an answer has room for, and where it goes on (None: that was all).

    `#` stands for all that the user may read. Raises Problem, or a ClientError.
    """
    filters = await readable_below(connection, "") if topic_filter == EVERYTHING else [topic_filter]
    names, found, left_bytes = connection.names, list[Message](), ANSWER_BYTES
    for number in range(_index(filters, place.filter_number), len(filters)):
        each = filters[number]
        after: str | None = place.after if number_of(each) == place.filter_number else ""
        while after is not None:
            if limit <= 0:
                return found, RetainedPlace(number_of(each), after)
            request = wire.Retained(names.topic(each), after, limit)
            answer, _ = await connection.request(request, wire.RetainedFound)
            limit -= max(1, len(answer.messages))
            async for message in _read(connection, [log_offset for log_offset, _, _ in answer.messages]):
                if matches_any(filters[:number], message.topic):  # it came before
                    continue
                left_bytes -= shown_bytes(message.record)
                if left_bytes < 0 and found:
                    return found, RetainedPlace(number_of(each), after)
                found.append(message)
                after = message.record[TOPIC].decode()
            after = answer.next
    return found, None


def number_of(topic_filter: str) -> int:
    return int.from_bytes(blake2b(topic_filter.encode(), digest_size=7).digest(), "big") + 1


def _index(filters: list[str], filter_number: int) -> int:
    """The place in a list at which a filter stands. Raises Problem."""
    numbers = [number_of(each) for each in filters]
    if filter_number and filter_number not in numbers:
        raise Problem(400, "bad-cursor", "the permissions are not as they were", "begin with the first page again")
    return numbers.index(filter_number) if filter_number else 0


async def _read(connection: StoreConnection, log_offsets: list[int]) -> AsyncIterator[Message]:
    for at in range(0, len(log_offsets), AT_A_TIME):
        read = await asyncio.gather(*(_at(connection, each) for each in log_offsets[at : at + AT_A_TIME]))
        for message in read:
            if message is not None:
                yield message


async def _at(connection: StoreConnection, log_offset: int) -> Message | None:
    """The message there, if it is still kept, and this user may read it."""
    try:
        return await connection.get(connection.place.message_id(log_offset))
    except (NotFound, NotPermitted):
        return None
