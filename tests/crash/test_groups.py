"""Consumer groups of a `penstock store` that is killed, and consumers that hang."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.settings import StoreSettings
from store.state.group_settings import GroupSettings
from store.wire.messages import Append, Appended
from tests.conftest import KILLED_WITH_EITHER_FLUSH
from tests.crash.replayed import assert_index_equals_replay
from tests.support.server_process import ROOT
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import PeerClosed
from tests.support.store_protocol_consumer import GroupConsumer, Handed
from tests.support.stores import batch_of, wait_until

INVISIBLE_MS = 1_500
KILLS = 6
MESSAGES = 3_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path, settings={"wire.lease_ms": 2_000})
    yield store
    store.close()


def publish(store: StoreProcess, first: int, count: int) -> None:
    peer = store.connect(f"publisher-{first}")
    records = bytes(batch_of(*(b"%d" % number for number in range(first, first + count)), topic=b"work/1"))
    assert isinstance(peer.call(Append(1), records), Appended)
    peer.close()


def pop_until(consumer: GroupConsumer, count: int) -> list[Handed]:
    """What comes, until it is so much, and a little while longer."""
    found: list[Handed] = []
    while len(found) < count:
        found += consumer.pop(100, wait_ms=10_000)
    return found + consumer.pop(100, wait_ms=300)


def numbers(handed: list[Handed]) -> list[int]:
    return sorted(int(each.payload) for each in handed)


@pytest.mark.catalogue("K41")
def test_unacknowledged_messages_return(store: StoreProcess) -> None:
    publish(store, 0, 10)
    consumer = GroupConsumer(store.url, "c", "g", "work/#", GroupSettings(invisible_ms=INVISIBLE_MS))
    popped_s = time.monotonic()
    handed = consumer.pop(10)
    assert numbers(handed) == list(range(10))
    assert consumer.ack(handed[:7]) == []
    again = pop_until(consumer, 3)
    assert time.monotonic() - popped_s >= INVISIBLE_MS / 1000
    assert numbers(again) == [7, 8, 9]
    assert {each.deliveries for each in again} == {2}
    consumer.close()


@KILLED_WITH_EITHER_FLUSH
@pytest.mark.catalogue("K41")
def test_unacknowledged_messages_return_after_a_kill(tmp_path: Path, flush: str) -> None:
    store = StoreProcess(tmp_path, settings={"store.flush": flush})
    try:
        publish(store, 0, 10)
        consumer = GroupConsumer(store.url, "c", "g", "work/#", GroupSettings(invisible_ms=INVISIBLE_MS))
        handed = consumer.pop(10)
        assert consumer.ack(handed[:7]) == []
        consumer.close()
        store.restart()
        consumer = GroupConsumer(store.url, "c", "g", "work/#")
        assert numbers(pop_until(consumer, 3)) == [7, 8, 9]  # what was answered is not forgotten
        consumer.close()
    finally:
        store.close()


class Worker(threading.Thread):
    """Pops and acks until told to stop, whatever happens to the store."""

    def __init__(self, store: StoreProcess, name: str, settled: dict[bytes, float]) -> None:
        super().__init__()
        self.unanswered: set[bytes] = set()  # acked, but the store was killed before it answered: it may know, or not
        self.stopping = threading.Event()
        self.errors: list[str] = []
        self.deliveries = 0
        self._store = store
        self._name = name
        self._settled = settled  # when its ack was answered
        self._rng = random.Random(name)

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                consumer = GroupConsumer(self._store.url, self._name, "g", "work/#")
                try:
                    self._work(consumer)
                finally:
                    consumer.close()
            except (PeerClosed, OSError):
                time.sleep(0.02)

    def _work(self, consumer: GroupConsumer) -> None:
        while not self.stopping.is_set():
            asked_s = time.monotonic()
            handed = consumer.pop(self._rng.randrange(1, 40), wait_ms=100)
            self.deliveries += len(handed)
            for each in handed:
                if self._settled.get(each.payload, asked_s) < asked_s:
                    self.errors.append(f"{each.payload!r} came again although its ack was answered")
            kept = [each for each in handed if self._rng.random() < 0.9]  # the others come again
            if kept:
                try:
                    stale = consumer.ack(kept)
                except (PeerClosed, OSError):
                    self.unanswered.update(each.payload for each in kept)
                    raise
                for each in kept:
                    if each.receipt not in stale:
                        self._settled[each.payload] = time.monotonic()


@KILLED_WITH_EITHER_FLUSH
@pytest.mark.catalogue("K41")
def test_group_loses_nothing_in_kills(tmp_path: Path, flush: str) -> None:
    store = StoreProcess(tmp_path, settings={"store.flush": flush})
    settled: dict[bytes, float] = {}
    workers = [Worker(store, f"w{number}", settled) for number in range(3)]

    def done() -> set[bytes]:
        return set(settled.copy()).union(*(worker.unanswered.copy() for worker in workers))

    try:
        first = GroupConsumer(store.url, "first", "g", "work/#", GroupSettings(invisible_ms=500, max_deliveries=0))
        first.close()
        for worker in workers:
            worker.start()
        for kill in range(KILLS):
            publish(store, kill * MESSAGES // KILLS, MESSAGES // KILLS)
            wanted = (kill * MESSAGES + MESSAGES // 2) // KILLS
            wait_until(lambda wanted=wanted: len(done()) >= wanted, 60)  # type: ignore[misc]
            store.restart()
        last = GroupConsumer(store.url, "last", "g", "work/#")
        wait_until(lambda: last.info().lag == 0, 60)
        last.close()
    finally:
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            if worker.ident is not None:
                worker.join()
        store.close()
    (tmp_path / "scratch").mkdir()
    assert_index_equals_replay(store.data, StoreSettings(data=store.data), tmp_path / "scratch")
    assert [error for worker in workers for error in worker.errors] == []
    assert sorted(map(int, done())) == list(range(MESSAGES))
    assert len(settled) > MESSAGES * 0.9
    assert sum(worker.deliveries for worker in workers) > MESSAGES


class ConsumerProcess:
    """tests.support.store_protocol_consumer as a process."""

    def __init__(self, store: StoreProcess, name: str, folder: Path, work_s: float) -> None:
        self._output = folder / f"{name}.out"
        command = [
            sys.executable,
            "-m",
            "tests.support.store_protocol_consumer",
            store.url,
            name,
            "g",
            "work/#",
            str(work_s),
        ]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output)

    def said(self, word: str) -> set[int]:
        lines = self._output.read_text().splitlines(keepends=True)
        return {int(line.split()[1]) for line in lines if line.endswith("\n") and line.split()[0] == word}

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


@pytest.mark.catalogue("K40")
def test_a_consumer_that_hangs_holds_back_nothing(store: StoreProcess, tmp_path: Path) -> None:
    consumers = [ConsumerProcess(store, f"c{number}", tmp_path, 60 if number == 0 else 0.01) for number in range(4)]
    hung, *others = consumers
    published = 0
    try:
        while not all(each.said("got") for each in consumers):
            publish(store, published, 20)
            published += 20
            time.sleep(0.05)
        hung.process.send_signal(signal.SIGSTOP)
        publish(store, published, 300)
        published += 300

        def acked() -> set[int]:
            return set().union(*(each.said("acked") for each in others))

        held = hung.said("got")
        wait_until(lambda: acked() == set(range(published)), 30)
        assert held
        assert not hung.said("acked")
    finally:
        for each in consumers:
            each.end()
