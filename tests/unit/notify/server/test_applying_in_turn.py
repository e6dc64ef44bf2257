"""Peers that send one large Append after another, and those beside them: the server's turns, without sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightqueue import message_store
from lightqueue.message_store import MessageStore
from lightqueue.upkeep import applying
from notify.local.hub import Hub
from notify.server.server import StoreServer, WireConnection
from notify.settings import WireSettings
from store.wire.frames import Frame, FrameReader, encode
from store.wire.handshake import ClientHandshake
from store.wire.messages import Append, Appended, Follow, Grew, Hello, Pushed, Role
from tests.bench.hops import Pipe
from tests.support.store_protocol_bench import message
from tests.support.stores import small
from tests.unit.notify.server.test_applying import COUNT, records

MANY = 6


class Loop:
    """Does in a turn what was scheduled before it."""

    def __init__(self) -> None:
        self._scheduled: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._scheduled.append(callback)

    @staticmethod
    def time() -> float:
        return time.monotonic()

    def turn(self) -> bool:
        """False if there was nothing to do."""
        scheduled, self._scheduled = self._scheduled, []
        for callback in scheduled:
            callback()
        return bool(scheduled)

    def settle(self) -> None:
        while self.turn():
            pass


class Gateway:
    def __init__(self, server: StoreServer, name: str) -> None:
        self._pipe = Pipe()
        self._connection = WireConnection(server)
        self._connection.connection_made(self._pipe)
        self._handshake = ClientHandshake(Hello([1], Role.GATEWAY, name))
        self._reader: FrameReader | None = None
        self.frames: list[Frame] = []
        self.say(self._handshake.greeting)

    def say(self, data: bytes) -> None:
        self._connection.data_received(data)

    def take(self) -> None:
        data = self._pipe.take()
        if self._reader is None and (welcome := self._handshake.feed(data)) is not None:
            self._reader = FrameReader(welcome.max_frame_bytes, Role.STORE)
            data = self._handshake.rest
        if self._reader is not None:
            self.frames += self._reader.feed(data)

    @property
    def is_welcome(self) -> bool:
        self.take()
        return self._reader is not None

    def answered(self) -> list[Appended]:
        self.take()
        return [each.message for each in self.frames if isinstance(each.message, Appended)]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(message_store, "FIRST_WORK", 1)
    monkeypatch.setattr(applying.Applying.step, "__defaults__", (1,))
    return loop


@pytest.fixture
def server(tmp_path: Path, loop: Loop) -> Iterator[StoreServer]:
    store = MessageStore(small(tmp_path / "data", segment_bytes=8 << 20))
    yield StoreServer(Hub(store, waits_for_peers=True), WireSettings(), {"gateway": None})
    store.close()


def appends(count: int = MANY) -> bytes:
    return b"".join(encode(Append(number), number, records()) for number in range(1, count + 1))


def test_a_peer_that_never_pauses_lets_others_come_in_between(server: StoreServer, loop: Loop) -> None:
    one, two = Gateway(server, "gw-1"), Gateway(server, "gw-2")
    loop.settle()
    one.say(appends())
    loop.turn()
    two.say(encode(Append(1), 1, message(b"small", b"load/b")))
    three = Gateway(server, "gw-3")
    done_before = -1
    while loop.turn():
        if three.is_welcome and done_before < 0:
            done_before = len(one.answered())
    starts = [each.start for each in one.answered()]
    assert len(starts) == MANY
    (answer,) = two.answered()
    assert answer.start < starts[3]
    assert 0 <= done_before <= 3


def test_followers_are_told_between_two_large_appends(server: StoreServer, loop: Loop) -> None:
    one, two = Gateway(server, "gw-1"), Gateway(server, "gw-2")
    loop.settle()
    two.say(encode(Follow("load/+", False, -1, False), 1))
    loop.settle()
    one.say(appends())
    told: list[int] = []  # of each event, how many Appends were answered then
    while loop.turn():
        two.take()
        events = [each for each in two.frames if isinstance(each.message, Grew | Pushed)]
        told += [len(one.answered())] * (len(events) - len(told))
    assert len(set(told)) >= MANY // 2
    assert server.hub.messages.queues.topic_queue(b"load/b").next_offset == MANY * COUNT
