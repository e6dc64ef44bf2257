"""A store that loses connections, as those that append with numbers see it."""

from __future__ import annotations

import asyncio
import random

from penstock.sdk.errors import ConnectionLost, StoreRefused
from penstock.sdk.outgoing import Outgoing, PublishLater, outgoing
from store.records.record_bytes import walk
from store.wire.messages import FailureCode, Welcome


class StoreModel:
    """What a store has under one name: at a new connection it tells only the part of it that is safe."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.stored: list[tuple[str, bytes]] = []
        self.number = 0
        self.safe = 0
        self.line: AppendsModel | None = None

    def append(self, number: int, records: bytes) -> bool:
        found = [(topic.decode(), payload) for *_, topic, _, _, _, payload in walk(records)] if records else []
        if any(topic.startswith("refused/") for topic, _ in found):
            raise StoreRefused(FailureCode.BAD_REQUEST, "not such a topic")
        if self.chance.random() < 0.1:
            self.safe = self.number
        if number <= self.number:
            return False
        self.number = number
        self.stored += found
        return True


class AppendsModel:
    """One process's connection, lost now and then, before the store has an Append or behind that."""

    def __init__(self, store: StoreModel) -> None:
        self._store = store

    @property
    def welcome(self) -> Welcome:
        if self._store.line is not self:
            raise ConnectionLost("another one came")
        return Welcome(1, "store", 0, 1 << 20, 1 << 16, 100, [], 0, max_changes=100)

    async def connected(self) -> int:
        while self._store.line is not None:
            await asyncio.sleep(0)
            if self._store.chance.random() < 0.1:
                break
        self._store.line = self
        return self._store.safe

    def append(self, number: int, records: bytes) -> asyncio.Future[bool]:
        _ = self.welcome
        return asyncio.ensure_future(self._append(number, records))

    async def _append(self, number: int, records: bytes) -> bool:
        for _ in range(self._store.chance.randrange(4)):
            await asyncio.sleep(0)
        self._maybe_lost()
        stored = self._store.append(number, records)
        self._maybe_lost()
        self._store.safe = max(self._store.safe, number)  # else there is no answer
        return stored

    def _maybe_lost(self) -> None:
        if self._store.line is self and self._store.chance.random() < 0.03:
            self._store.line = None
        if self._store.line is not self:
            raise ConnectionLost("lost")


def make(topic: str, payload: bytes | str, options: PublishLater) -> Outgoing:
    return outgoing(topic, payload, False, key=options.get("key"), headers=options.get("headers"))
