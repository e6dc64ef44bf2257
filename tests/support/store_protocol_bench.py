"""The store's side of the wire without sockets or a loop, and peers that speak to it in bytes.

    bench = WireBench(tmp_path)
    gateway = bench.connect("gw-1")
    assert isinstance(gateway.call(Append(1), records), Appended)

The clock stands until the test moves it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lightqueue.message_store import MessageStore
from notify.local.hub import Hub
from notify.requests.users import UserJudge
from notify.server.arrival import Arrival
from notify.server.conversation import Conversation
from notify.server.line import WireCounters
from notify.server.peers import Peers
from notify.settings import WireSettings
from store.errors import StoreError, WireError
from store.records._records import RecordBatch
from store.state.changes import Change, encode_change
from store.wire.frames import Frame, FrameReader, Readable, encode
from store.wire.handshake import ClientHandshake
from store.wire.messages import Append, Failed, Hello, Ping, Role, Welcome, WireMessage
from tests.support.stores import batch_of, small

M = TypeVar("M", bound=WireMessage)


class NotedUpkeep:
    """An ApplyingOwner that notes how much was left to apply when there was upkeep to do, and what failed."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.left_bytes: list[int] = []
        self.errors: list[StoreError] = []

    def do_upkeep(self) -> None:
        self.left_bytes.append(self._store.applying.left_bytes)

    def not_applied(self, error: StoreError) -> None:
        self.errors.append(error)


class Nowhere:
    """A StoreSender that sends nothing."""

    def flush(self) -> None: ...

    def wake(self) -> None: ...


class WireBench:
    """A store, and who is connected to it."""

    def __init__(self, data: Path, wire: WireSettings | None = None, **settings: Any) -> None:
        self.data = data
        self.wire = wire or WireSettings()
        self.now_s = 1_000.0
        self.starts = 0
        self._settings = {"segment_bytes": 8 << 20} | settings
        self.store: MessageStore
        self.hub: Hub
        self.peers: Peers
        self.start()

    def start(self) -> None:
        self.store = MessageStore(small(self.data, **self._settings))
        self.hub = Hub(self.store, waits_for_peers=True)
        self.starts += 1
        self.peers = Peers(self.hub, self.wire, f"main-{self.starts}", lambda: self.now_s)

    def restart(self) -> None:
        self.store.close()
        self.start()

    def kill(self) -> None:
        """As restart(), of a store that was not closed: the log does not have what it writes at its end."""
        left = self.data.with_name(f"{self.data.name}-{self.starts}")
        shutil.copytree(self.data, left)
        self.store.close()
        self.data = left
        self.start()

    def connect(
        self, name: str, role: Role = Role.GATEWAY, waits: bool = False, judge: UserJudge | None = None, **said: Any
    ) -> Talk:
        """`waits`: it need not be let in at once; `judge`: of users; `said`: more of its Hello."""
        talk = Talk(self, Hello([1], role, name, **said), judge)
        assert talk.is_welcome or waits
        return talk

    def wait(self, seconds: float) -> None:
        """Let time pass, with the ticks that belong to it; nobody is heard of meanwhile."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.05
            self.tick()

    def tick(self) -> None:
        self.hub.tick()
        self.peers.tick()


class Talk:
    """A peer's end of a connection."""

    def __init__(self, bench: WireBench, hello: Hello, judge: UserJudge | None = None) -> None:
        self.bench = bench
        self.woken = False
        self.frames: list[Frame] = []
        self._request_ids = 0
        self.figures = WireCounters()
        self.conversation = Conversation(
            bench.peers, {"gateway": None, "client": None}, self.figures, lambda: setattr(self, "woken", True)
        )
        self.conversation.arrival = Arrival(judge=judge)
        self._handshake = ClientHandshake(hello)
        self.welcome: Welcome
        self._reader: FrameReader
        self.conversation.received(self._handshake.greeting)
        self.take(b"".join(self.conversation.outgoing()))

    @property
    def is_welcome(self) -> bool:
        return self._handshake.welcome is not None

    def send(self, data: bytes) -> None:
        self.conversation.received(data)

    def ask(self, message: WireMessage, records: Readable = b"") -> int:
        self._request_ids += 1
        self.send(encode(message, self._request_ids, records))
        return self._request_ids

    def tell(self, message: WireMessage) -> None:
        """The store deals with it at once, however long that takes on a busy machine."""
        self.send(encode(message))
        for _ in range(1_000):
            if not self.conversation.is_full:
                return
            self.conversation.go_on()

    def flush(self) -> None:
        """A turn of the loop: what the store has to say comes here."""
        for _ in range(1_000):
            chunks = self.conversation.outgoing()
            for chunk in chunks:
                self.take(chunk)
            if not chunks and not self.conversation.is_full:
                return
            self.conversation.go_on()
        raise AssertionError("it never ends")

    def take(self, data: bytes) -> None:
        if not self.is_welcome:
            welcome = self._handshake.feed(data)
            if welcome is None:
                return
            self.welcome = welcome
            self._reader = FrameReader(welcome.max_frame_bytes, Role.STORE)
            data = self._handshake.rest
        self.frames += self._reader.feed(data)

    def answer_frame(self, request_id: int) -> Frame | None:
        """The answer, if it was given."""
        self.flush()
        found = [frame for frame in self.frames if frame.request_id == request_id]
        assert len(found) <= 1
        for frame in found:
            self.frames.remove(frame)
        return found[0] if found else None

    def answer(self, request_id: int) -> WireMessage | None:
        frame = self.answer_frame(request_id)
        return frame.message if frame is not None else None

    def call_frame(self, message: WireMessage, records: Readable = b"") -> Frame:
        request = self.ask(message, records)
        frame = self.answer_frame(request)
        while frame is None and self.bench.store.applying.left_bytes:
            self.bench.store.applying.step()
            frame = self.answer_frame(request)
        assert frame is not None
        return frame

    def call(self, message: WireMessage, records: Readable = b"") -> WireMessage:
        return self.call_frame(message, records).message

    def tell_log(self, sequence: int, *changes: Change) -> WireMessage:
        """Append state changes."""
        return self.call(Append(sequence), changes_of(*changes))

    def events(self, kind: type[M]) -> list[M]:
        """Those of a kind that came since the last call."""
        self.flush()
        found = [frame.message for frame in self.frames if isinstance(frame.message, kind)]
        self.frames = [frame for frame in self.frames if not isinstance(frame.message, kind)]
        return found

    def cut(self) -> None:
        self.conversation.lost()

    def ping(self) -> None:
        self.tell(Ping())


def message(payload: bytes, topic: bytes = b"t/1") -> bytes:
    """The record of one, for an Append."""
    return bytes(batch_of(payload, topic=topic))


def failure(answer: object) -> str:
    """The code of a Failed."""
    assert isinstance(answer, Failed)
    return answer.code


def changes_of(*changes: Change) -> bytes:
    batch = RecordBatch()
    for change in changes:
        batch.append(*encode_change(change))
    return bytes(batch)


def error_of(action: Callable[[], object]) -> str:
    """What a WireError says that an action raises."""
    try:
        action()
    except WireError as error:
        return str(error)
    raise AssertionError("it was taken")
