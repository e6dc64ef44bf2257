"""Messages with an identity of their own, such as CloudEvents: each is stored once, however often it is sent.

What was stored within a day is remembered here. Beyond that, and after a restart of the console, the store is asked for
a message of the topic with the same key and headers. That needs a user who may read the topic.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from penstock.console.store.connection import StoreConnection
from penstock.console.store.publishing import MessageToPublish, Outcome, PublishReceipt, publish_all
from penstock.console.store.stored_before import REMEMBERED_S, receipt_of_stored
from penstock.sdk.errors import ClientError, NotPermitted
from store.wire.messages import FailureCode

MOST_IDENTITIES = 20_000
"""That are remembered; some 500 bytes each."""
FINDS_AT_ONCE = 64
MOST_ALIKE = 100
"""Messages with one key that are looked at: anybody who may publish to the topic may give it to others."""


class IdentifiedMessage(NamedTuple):
    """A message with a key of its identity; `marks`: headers by which one that is stored is known to be the same."""

    message: MessageToPublish
    marks: tuple[tuple[str, str], ...]


Identity = bytes
Found = Mapping[Identity, Outcome]


class _Stored(NamedTuple):
    """A message that was stored, or is being stored: the request that does it."""

    found: asyncio.Task[Found]
    ends_s: float


def key_of(kind: str, *identity: str) -> str:
    """The key of a message with this identity.

    >>> key_of("event", "/line/7", "1")
    'event:0408338d07acf2b121a3af8d9870cc29'
    """
    return f"{kind}:{blake2b(msgspec.json.encode(identity), digest_size=16).hexdigest()}"


class StoredOnce:
    """Owner of what is remembered, of all users: who may publish to a topic says which of its messages are the same."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stored: OrderedDict[Identity, _Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    async def publish(self, connection: StoreConnection, messages: Sequence[IdentifiedMessage]) -> list[Outcome]:
        """As publish_all(); a message that is stored already has the receipt of that. Raises ClientError if nothing was
        sent.
        """
        now_s = self._loop.time()
        self._forget(now_s)
        names = [_identity(connection, each) for each in messages]
        new: dict[Identity, IdentifiedMessage] = {}
        for name, each in zip(names, messages, strict=True):
            if name not in self._stored:
                new.setdefault(name, each)
        repeated = {each.message.topic for name, each in zip(names, messages, strict=True) if name not in new}
        if new:
            task = asyncio.create_task(_publish(connection, new))
            task.add_done_callback(partial(self._settle, tuple(new)))
            self._stored |= dict.fromkeys(new, _Stored(task, now_s + REMEMBERED_S))
        tasks = [self._stored[name].found for name in names]  # one that fails is forgotten meanwhile
        forbidden = await _forbidden(connection, repeated)
        return [
            forbidden.get(each.message.topic) or (await asyncio.shield(task))[name]
            for name, each, task in zip(names, messages, tasks, strict=True)
        ]

    def _settle(self, names: Iterable[Identity], task: asyncio.Task[Found]) -> None:
        """Forget messages that were not stored, so that they can be sent again."""
        is_lost = task.cancelled() or task.exception() is not None
        for name in names:
            stored = self._stored.get(name)
            is_own = stored is not None and stored.found is task
            if is_own and (is_lost or isinstance(task.result()[name], ClientError)):
                del self._stored[name]

    def _forget(self, now_s: float) -> None:
        while self._stored:
            first = next(iter(self._stored.values()))
            is_due = now_s > first.ends_s or len(self._stored) >= MOST_IDENTITIES
            if not is_due or not first.found.done():
                return
            self._stored.popitem(last=False)


def _identity(connection: StoreConnection, identified: IdentifiedMessage) -> Identity:
    """Of a message in its topic."""
    where = connection.names.topic(identified.message.topic), identified.message.key
    return blake2b(msgspec.json.encode(where), digest_size=16).digest()


async def _publish(connection: StoreConnection, new: Mapping[Identity, IdentifiedMessage]) -> Found:
    """Publish those messages that the store does not have yet. Raises ClientError if nothing was sent."""
    waiting = list(new.items())
    found: dict[Identity, Outcome] = {}
    for start in range(0, len(waiting), FINDS_AT_ONCE):
        some = waiting[start : start + FINDS_AT_ONCE]
        receipts = await asyncio.gather(*(_stored_before(connection, each) for _, each in some))
        found |= {name: receipt for (name, _), receipt in zip(some, receipts, strict=True) if receipt is not None}
    forbidden = await _forbidden(connection, {new[name].message.topic for name in found})
    found |= {name: forbidden.get(new[name].message.topic, receipt) for name, receipt in found.items()}
    missing = [name for name in new if name not in found]
    if missing:
        outcomes = await publish_all(connection, [new[name].message for name in missing])
        found |= dict(zip(missing, outcomes, strict=True))
    return found


async def _stored_before(connection: StoreConnection, identified: IdentifiedMessage) -> PublishReceipt | None:
    """The receipt of the first such message of the last day; None: the store has none, or this user may not read.
    Raises ClientError.
    """
    message, marks = identified
    since = timedelta(seconds=REMEMBERED_S)
    try:
        alike = await connection.find(message.key or "", topic=message.topic, since=since, limit=MOST_ALIKE)
    except NotPermitted:
        return None
    for each in reversed(alike):
        if all(each.headers.get(name) == value for name, value in marks):
            return await receipt_of_stored(connection, each, message.topic)
    return None


async def _forbidden(connection: StoreConnection, topics: Iterable[str]) -> dict[str, NotPermitted]:
    """Those topics to which this user may not publish, so a receipt is none of theirs. Raises ClientError."""
    asked = list(topics)
    allowed = await connection.permitted("publish", asked) if asked else []
    return {
        topic: NotPermitted(FailureCode.NOT_PERMITTED, f"publish {topic}")
        for topic, is_allowed in zip(asked, allowed, strict=True)
        if not is_allowed
    }
