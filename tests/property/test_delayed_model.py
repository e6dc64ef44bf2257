"""Delayed messages against a model: random publishes, cancels, clocks, retention, and kills in the middle of it."""

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.upkeep import dispatching, retention
from store.state import delayed
from tests.support.stores import KEPT_BYTES, crash_copy, fill, publish_delayed, read_all, run_upkeep, small

STEPS = 150
TOPIC = "t"


class Machine:
    """A store and what is true of it: when each pending message is due, and where it was first stored."""

    def __init__(self, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.randomly = random.Random(seed)
        self.now_ms = 1_700_000_000_000
        monkeypatch.setattr(time, "time_ns", lambda: self.now_ms * 1_000_000)
        monkeypatch.setattr(time, "time", lambda: self.now_ms / 1000)
        monkeypatch.setattr(time, "clock_gettime", lambda _: self.now_ms / 1000)
        self._folder = folder
        self._kills = 0
        self._published = 0
        self._seen = 0  # queue_offset up to which dispatches were looked at
        self.pending: dict[bytes, tuple[int, int]] = {}
        self.store = self._open(folder / "0")

    def _open(self, data: Path) -> MessageStore:
        return MessageStore(small(data, retention_bytes=KEPT_BYTES, index_flush_ms=30))

    def run(self) -> None:
        things: list[Callable[[], None]] = [self.publish] * 3 + [self.cancel, self.fill, self.upkeep, self.pass_time]
        things += [self.store_tick, self.write, self.kill]
        for _ in range(STEPS):
            self.randomly.choice(things)()
            self.check()

    def publish(self) -> None:
        self._published += 1
        payload, due_ms = b"%d" % self._published, self.now_ms + self.randomly.randrange(-50, 3_000)
        self.pending[payload] = due_ms, publish_delayed(self.store, TOPIC, payload, due_ms=due_ms)

    def cancel(self) -> None:
        if self.pending:
            payload = self.randomly.choice(list(self.pending))
            assert self.store.dispatching.cancel(*self.pending.pop(payload))

    def fill(self) -> None:
        fill(self.store, self.randomly.choice((0, 1, 2)))

    def upkeep(self) -> None:
        """Retention, all of it or a part."""
        if self.randomly.random() < 0.3:
            run_upkeep(self.store)
            return
        self.store.upkeep._next_check_s = 0
        for _ in range(self.randomly.randrange(1, 12)):
            self.store.tick()

    def pass_time(self) -> None:
        self.now_ms += self.randomly.randrange(-100, 800)

    def store_tick(self) -> None:
        self.store.tick()

    def write(self) -> None:
        self.store.write_index()
        self.store.index.flush()

    def kill(self) -> None:
        self._kills += 1
        killed = crash_copy(self.store.settings.data, self._folder / str(self._kills))
        self.store.close()
        shutil.rmtree(self.store.settings.data)
        self.store = self._open(killed)

    def check(self) -> None:
        """What was dispatched was pending, and due; what is pending is what the store says."""
        queue = self.store.queues.stored(TOPIC)
        assert queue is not None
        for record in read_all(self.store, queue, self._seen):
            due_ms, _ = self.pending.pop(record.payload)  # it would not be there a second time
            assert due_ms <= record.timestamp_ms
        self._seen = queue.next_offset
        found = self.store.delayed.page(0, 0, 1 << 20)
        assert [(each.due_ms, each.first_offset) for each in found] == sorted(self.pending.values())

    def end(self) -> None:
        """In the end each comes."""
        self.now_ms += 10**7
        while self.store.tick():
            self.check()
        self.check()
        assert not self.pending
        assert self.store.dispatching.lost == 0


@pytest.mark.parametrize("seed", range(8))
def test_each_is_dispatched_once_and_never_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(retention, "DELAYED_PER_STEP", 3)
    monkeypatch.setattr(dispatching, "PER_STEP", 5)
    monkeypatch.setattr(delayed, "KEYS_PER_STEP", 4)
    machine = Machine(tmp_path, seed, monkeypatch)
    try:
        machine.run()
        machine.end()
    finally:
        machine.store.close()
