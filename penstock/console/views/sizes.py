"""How much an answer may have, and the threads that make what takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from penstock.sdk.errors import Unreadable
from penstock.sdk.message import COMPRESSED, FLAGS, PAYLOAD, Message, RecordTuple
from store.records.compression import NoLibrary, stated_bytes

ANSWER_BYTES = 4 << 20
"""Of the messages of one answer, decompressed; one message may be more."""
PAYLOAD_BYTES = 16 << 20
"""A compressed payload that states more is not decompressed."""
SMALL_BYTES = 16 << 10
"""What is less is made at once: a thread costs some 0.1 ms."""
WORKERS = 2

_workers = ThreadPoolExecutor(WORKERS, "penstock-console")
P = ParamSpec("P")
T = TypeVar("T")


async def in_worker(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of what would hold up the loop."""
    return await asyncio.get_running_loop().run_in_executor(_workers, lambda: function(*args, **kwargs))


def payload_bytes(record: RecordTuple) -> int:
    """The size of its payload; of a compressed one, as it states."""
    if not record[FLAGS] & COMPRESSED:
        return len(record[PAYLOAD])
    try:
        return max(len(record[PAYLOAD]), stated_bytes(record[PAYLOAD]))
    except NoLibrary:
        return len(record[PAYLOAD])


def shown_bytes(record: RecordTuple) -> int:
    """What a message takes of ANSWER_BYTES. A payload that is not shown takes what is read of it."""
    stated = payload_bytes(record)
    others = sum(len(part) for part in record[5:9])
    return others + (stated if stated <= PAYLOAD_BYTES else len(record[PAYLOAD]))


def fitting(records: Sequence[RecordTuple], left_bytes: int) -> int:
    """How many of them, from the first on, take no more than `left_bytes`."""
    for number, record in enumerate(records):
        left_bytes -= shown_bytes(record)
        if left_bytes < 0:
            return number
    return len(records)


def bounded_payload(message: Message) -> bytes:
    """As it was published. Raises Unreadable, also if it was compressed and is larger than PAYLOAD_BYTES."""
    stated = payload_bytes(message.record)
    if stated > PAYLOAD_BYTES and message.record[FLAGS] & COMPRESSED:
        raise Unreadable(f"the payload was stored compressed and has {stated} bytes; {PAYLOAD_BYTES} at most are shown")
    return message.payload
