"""Requests with an idempotency key, which are carried out once although they are sent again.

The outcome is remembered here for a day. After a restart of the console the store is asked for the messages of the
request: see stored_before.py.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from penstock.console.errors import Problem
from penstock.console.store.connection import StoreConnection
from penstock.console.store.publishing import MessageToPublish, Outcome, publish_all
from penstock.console.store.stored_before import REMEMBERED_S, RequestMark, key_reused, stored_before
from penstock.sdk.errors import ClientError

MOST_KEY_CHARACTERS = 255
MOST_REMEMBERED = 10_000
MOST_REMEMBERED_BYTES = 16 << 20

Requested = tuple[tuple[str, str], str]  # by whom, and the idempotency key


class _Done(NamedTuple):
    """A request that was carried out, or is: what it was, and its outcome."""

    mark: RequestMark
    outcome: asyncio.Task[list[Outcome]]
    ends_s: float
    size_bytes: int


class PublishedOnce:
    """Owner of the outcomes of requests with an idempotency key, of all users."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: OrderedDict[Requested, _Done] = OrderedDict()
        self._size_bytes = 0

    async def publish(
        self, key: str, body: bytes, connection: StoreConnection, messages: Sequence[MessageToPublish]
    ) -> list[Outcome]:
        """As publish_all(), once for each key of a user. Raises Problem, ClientError."""
        check_key(key)
        user = connection.account
        now_s = self._loop.time()
        self._forget(now_s)
        mark = RequestMark(key, blake2b(body, digest_size=8).hexdigest())
        done = self._done.get((user, key))
        if done is not None and done.mark != mark:
            raise key_reused(key)
        if done is None:
            size_bytes = 256 + 128 * len(messages)
            task = asyncio.create_task(_publish(mark, connection, messages))
            done = self._done[user, key] = _Done(mark, task, now_s + REMEMBERED_S, size_bytes)
            self._size_bytes += size_bytes
        try:
            outcomes = await asyncio.shield(done.outcome)
        except Exception:
            self._drop((user, key), done)  # it may be tried again, or was not the one that was sent first
            raise
        if any(isinstance(each, ClientError) for each in outcomes):
            self._drop((user, key), done)
        return outcomes

    def _drop(self, name: Requested, done: _Done) -> None:
        if self._done.get(name) is done:
            del self._done[name]
            self._size_bytes -= done.size_bytes

    def _forget(self, now_s: float) -> None:
        while self._done:
            name, done = next(iter(self._done.items()))
            is_full = len(self._done) >= MOST_REMEMBERED or self._size_bytes > MOST_REMEMBERED_BYTES
            if now_s <= done.ends_s and not is_full:
                return
            self._drop(name, done)


async def _publish(
    mark: RequestMark, connection: StoreConnection, messages: Sequence[MessageToPublish]
) -> list[Outcome]:
    """Publish those messages that the store does not have yet. Raises Problem, ClientError."""
    marked = [mark.on(message, number) for number, message in enumerate(messages)]
    stored = await stored_before(connection, mark, marked)
    missing = [number for number in range(len(marked)) if number not in stored]
    outcomes: dict[int, Outcome] = dict(stored)
    if missing:
        found = await publish_all(connection, [marked[number] for number in missing])
        outcomes |= dict(zip(missing, found, strict=True))
    return [outcomes[number] for number in range(len(marked))]


def check_key(key: str) -> None:
    """Raises Problem."""
    if not 0 < len(key) <= MOST_KEY_CHARACTERS or not key.isprintable():
        raise Problem(
            400,
            "bad-parameter",
            f"Idempotency-Key: it has 1 to {MOST_KEY_CHARACTERS} printable characters",
            "give a UUID, for example",
        )
