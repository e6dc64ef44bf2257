"""Messages of a queue, a broker that hands out again, and a store that loses connections: each is stored once."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.flows.counts import FlowCounts
from penstock.flows.definition import Flow, read_flows
from penstock.flows.sources import known_ids
from penstock.flows.sources.amqp.messages import QueuedMessage
from penstock.flows.sources.known_ids import DIGEST_BYTES, KnownIds
from penstock.flows.sources.messages import message_of_queue
from penstock.flows.sources.queue_feed import QueueFeed, Settle, StoredForm
from tests.unit.penstock.flows.sources.store_model import AppendsModel, StoreModel, make

FLOW = """
[flow.orders]
from = "amqp://127.0.0.1/orders"
to = "penstock:"
where = "!string(payload).startsWith('left')"
"""
IDS = "$flows/orders/ids/x"
MESSAGES = 300

pytestmark = pytest.mark.asyncio


class Body(NamedTuple):
    payload: bytes


class QueueModel:
    """A queue; what its consumers have and do not settle comes again."""

    def __init__(self, bodies: Sequence[tuple[str, str, bytes]]) -> None:
        """Ids, routing keys and bodies."""
        self.waiting = deque(bodies)
        self.rejected: list[bytes] = []
        self.unsettled = 0


class ProcessModel:
    """A feed, and a consumer whose connection is lost now and then."""

    def __init__(self, flow: Flow, store: StoreModel, queue: QueueModel) -> None:
        self.counts = FlowCounts()
        self._store, self._queue, self._chance = store, queue, store.chance
        known = KnownIds(IDS, make, self._find)
        form = StoredForm(partial(message_of_queue, flow))
        self.feed = QueueFeed(flow, make, AppendsModel(store), known, self.counts, form)
        self._in_hand: dict[int, tuple[str, str, bytes]] = {}
        self._tag = 0
        self._link = 0
        self._broken: set[int] = set()
        self._tasks = [asyncio.create_task(self.feed.run()), asyncio.create_task(self._consume())]

    async def _find(self, _: str, topic: str, limit: int) -> list[Body]:
        return [Body(payload) for where, payload in reversed(self._store.stored) if where == topic][:limit]

    async def _consume(self) -> None:
        self.feed.begin(self._settle_of(self._link))
        while True:
            await asyncio.sleep(0)
            while self._queue.waiting and len(self._in_hand) < 40 and self._chance.random() < 0.7:
                self._tag += 1
                message = self._queue.waiting.popleft()
                self._in_hand[self._tag] = message
                self._queue.unsettled += 1
                id_, routing_key, body = message
                self.feed.add(QueuedMessage(self._tag, body, routing_key, message_id=id_))
            if self._link in self._broken or self._chance.random() < 0.01:
                self._lose()
                self.feed.clear()
                self.feed.begin(self._settle_of(self._link))

    def _lose(self) -> None:
        self._queue.waiting.extendleft(reversed(self._in_hand.values()))
        self._queue.unsettled -= len(self._in_hand)
        self._in_hand.clear()
        self._link += 1
        self._tag = 0

    def _settle_of(self, link: int) -> Settle:
        async def settle(done: int, rejected: Sequence[int]) -> None:
            await asyncio.sleep(0)
            if link != self._link or link in self._broken or self._chance.random() < 0.05:
                self._broken.add(link)
                return
            for tag in rejected:
                self._queue.rejected.append(self._in_hand.pop(tag)[2])
            assert not done or done in self._in_hand  # RabbitMQ ends the channel otherwise
            settled = [tag for tag in self._in_hand if tag <= done]
            for tag in settled:
                del self._in_hand[tag]
            self._queue.unsettled -= len(settled) + len(rejected)

        return settle

    async def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._lose()


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    (tmp_path / "flows.toml").write_text(FLOW)
    (found,) = read_flows(tmp_path / "flows.toml")
    return found


def queued(chance: random.Random) -> list[tuple[str, str, bytes]]:
    """Some of them twice, as a publisher sends again what was not confirmed."""
    kinds = [("in.a", b"%d"), ("in.b", b"%d"), ("refused.c", b"refused %d"), ("bad.#", b"bad %d"), ("in.a", b"left %d")]
    found: list[tuple[str, str, bytes]] = []
    for number in range(MESSAGES):
        routing_key, body = chance.choices(kinds, (60, 20, 3, 3, 14))[0]
        found.append((str(number), routing_key, body % number))
        if chance.random() < 0.1:
            found.append(found[-chance.randrange(1, min(10, len(found) + 1))])
    return found


@pytest.mark.parametrize("seed", range(20))
async def test_each_message_is_stored_once_whatever_is_lost(flow: Flow, seed: int) -> None:
    chance = random.Random(seed)
    store, found = StoreModel(chance), queued(chance)
    queue = QueueModel(found)
    processes = [ProcessModel(flow, store, queue) for _ in range(2)]
    async with asyncio.timeout(60):
        while queue.waiting or queue.unsettled:
            await asyncio.sleep(0)
            if chance.random() < 0.01:
                which = chance.randrange(2)
                await processes[which].kill()
                if store.line is not None:
                    store.line = None
                processes[which] = ProcessModel(flow, store, queue)
    for process in processes:
        await process.kill()
    bodies = dict.fromkeys(body for _, _, body in found)
    stored = [payload for topic, payload in store.stored if topic != IDS]
    assert sorted(stored) == sorted(body for body in bodies if body.isdigit())
    assert set(queue.rejected) == {body for body in bodies if body.startswith((b"refused", b"bad"))}


async def test_the_newest_ids_are_known_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_ids, "REMEMBERED", 3)
    noted: list[Body] = []

    async def find(_: str, topic: str, limit: int) -> list[Body]:
        assert topic == IDS
        return noted[:limit]

    known = KnownIds(IDS, make, find)
    digests = [bytes([number]) * DIGEST_BYTES for number in range(6)]
    known.note(digests[:3])
    known.note(digests[2:4])
    assert [digest in known for digest in digests] == [False, True, True, True, False, False]
    _, mark = known.mark()
    noted[:] = [Body(b"".join(digests[4:6])), Body(digests[0])]
    assert not await known.learn(mark)
    assert digests[5] not in known
    noted.insert(0, Body(mark))
    assert await known.learn(mark)
    assert digests[5] in known
    assert digests[1] not in known
