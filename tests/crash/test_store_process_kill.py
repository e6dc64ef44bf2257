"""SIGKILL of a `penstock store` while peers append: after a restart they send again what had no answer, and each
message is stored exactly once, in the order of its peer."""

from __future__ import annotations

import random
import threading
from collections import deque
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from store.records.records import RecordType, read_records
from store.settings import StoreSettings
from store.state.changes import PeerAppended, decode_change
from store.wire.messages import Append, Appended
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import PeerClosed, WirePeer
from tests.support.stores import batch_of, payloads

PEERS = 3
KILLS = 8
IN_FLIGHT = 30
PER_APPEND = 7


class Publisher(threading.Thread):
    """Appends numbered messages until told to stop, whatever happens to the store."""

    def __init__(self, store: StoreProcess, number: int, seed: int) -> None:
        super().__init__()
        self.topic = b"k/%d" % number
        self.answered = 0  # Appends
        self.sent = 0
        self.reconnects = 0
        self.found = 0  # Appends whose answer was lost, and that are in the log
        self.resent = 0
        self.error: AssertionError | None = None
        self.stopping = threading.Event()
        self._store = store
        self._name = f"peer-{number}"
        self._rng = random.Random(seed * 100 + number)
        self._unanswered: deque[tuple[int, bytes]] = deque()

    def run(self) -> None:
        try:
            while not (self.stopping.is_set() and not self._unanswered):
                try:
                    self._publish()
                except (PeerClosed, OSError):
                    self.reconnects += 1
        except AssertionError as error:
            self.error = error

    def _publish(self) -> None:
        with WirePeer(self._store.url, self._name) as peer:
            if self.sent and self.reconnects:
                assert peer.welcome.resumed
            assert self.answered <= peer.welcome.appended <= self.sent
            while self._unanswered and self._unanswered[0][0] <= peer.welcome.appended:
                self.found += 1
                self._done()
            self.resent += len(self._unanswered)
            asked = deque(peer.ask(Append(sequence), records) for sequence, records in self._unanswered)
            while self._unanswered or not self.stopping.is_set():
                while len(self._unanswered) < IN_FLIGHT and not self.stopping.is_set():
                    asked.append(peer.ask(Append(self.sent + 1), self._next()))
                answer = peer.answer(asked.popleft())
                assert isinstance(answer, Appended), answer
                self._done()

    def _next(self) -> bytes:
        self.sent += 1
        numbered = [b"%d.%d" % (self.sent, i) + bytes(self._rng.randrange(300)) for i in range(PER_APPEND)]
        records = bytes(batch_of(*numbered, topic=self.topic))
        self._unanswered.append((self.sent, records))
        return records

    def _done(self) -> None:
        self.answered = self._unanswered.popleft()[0]


@pytest.mark.parametrize(
    ("seed", "flush"), [(1, "async"), (2, "sync"), pytest.param(3, "async", marks=pytest.mark.nightly)]
)
@pytest.mark.catalogue("C10")
def test_each_message_is_stored_once(tmp_path: Path, seed: int, flush: str) -> None:
    rng = random.Random(seed)
    settings = {"store.flush": flush, "store.segment_bytes": 2 << 20, "wire.lease_ms": 60_000}
    store = StoreProcess(tmp_path, settings=settings)
    publishers = [Publisher(store, number, seed) for number in range(PEERS)]
    try:
        for publisher in publishers:
            publisher.start()
        for _ in range(KILLS):
            threading.Event().wait(rng.uniform(0.05, 0.6))
            store.restart()
        wanted = [publisher.answered + 10 for publisher in publishers]
        for publisher, count in zip(publishers, wanted, strict=True):
            while publisher.answered < count and publisher.is_alive():
                threading.Event().wait(0.01)
            publisher.stopping.set()
        for publisher in publishers:
            publisher.join(30)
            assert publisher.error is None, publisher.error
            assert not publisher.is_alive()
        store.terminate()
    finally:
        for publisher in publishers:
            publisher.stopping.set()
        store.close()
    assert sum(publisher.reconnects for publisher in publishers) >= KILLS
    assert sum(publisher.found for publisher in publishers) > 0
    assert sum(publisher.resent for publisher in publishers) > 0
    check_stored(store.data, publishers)


def check_stored(data: Path, publishers: list[Publisher]) -> None:
    messages = MessageStore(StoreSettings(data=data))
    try:
        for publisher in publishers:
            stored = [payload.rstrip(b"\0") for payload in payloads(messages, publisher.topic.decode())]
            assert stored == [
                b"%d.%d" % (sequence, i) for sequence in range(1, publisher.sent + 1) for i in range(PER_APPEND)
            ]
        check_markers(messages, publishers)
    finally:
        messages.close()


def check_markers(messages: MessageStore, publishers: list[Publisher]) -> None:
    """The log itself has every sequence of every peer once, in order, from the first to the last."""
    found: dict[str, list[int]] = {}
    for _, data in messages.log.ranges(messages.log.first, 1 << 20):
        for record in read_records(data):
            if record.type == RecordType.PEER_APPENDED:
                change = decode_change(record.type, record.payload)
                assert isinstance(change, PeerAppended)
                found.setdefault(change.name, []).append(change.sequence)
    for publisher in publishers:
        assert found[publisher._name] == list(range(publisher.sent + 1))
