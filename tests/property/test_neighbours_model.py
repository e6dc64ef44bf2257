"""Thousands of topics whose entries go to RocksDB under keys of neighbours and under keys of their own, in turn.

Against a dictionary: whatever is published, written, dropped by retention, closed or killed, each topic's queue has
exactly its messages, in order, by every way of reading. Windows are cut by steps, and kills fall between these.
"""

import random
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.queues import neighbours, resident, table
from lightqueue.queues._queues import ENTRY_BYTES, Queue, newest_neighbour, pack_entry, unpacked_neighbours
from lightqueue.upkeep import trimming
from store.log.api import OpenLog
from store.log.opening import open_log
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordType, encode_attribute
from tests.support.index_entries import neighbours_keys, stored_entries
from tests.support.plain_log import open_plain_log
from tests.support.stores import crash_copy, read_all, run_upkeep, small, write_step

TOPICS = [f"n/{i}" for i in range(2_200)]
TAG = b"even"
OPTIONS = {
    "segment_bytes": 256 << 10,
    "retention_bytes": 1 << 20,
    "index_write_buffer_bytes": 64 << 10,
    "index_flush_ms": 10**6,
    "cached_topics": 300,
}
Message = tuple[int, bool]  # log_offset, whether it has the tag


class Machine:
    """A store, and what was published to it."""

    def __init__(self, folder: Path, seed: int, opens: OpenLog = open_log) -> None:
        self._opens = opens
        self.randomly = random.Random(seed)
        self.folder = folder
        self.opened = 0
        self.messages: defaultdict[str, list[Message]] = defaultdict(list)
        self.most_keys = 0
        self.store = self._open(folder / "data-0")

    def _open(self, data: Path) -> MessageStore:
        return MessageStore(small(data, **OPTIONS), opens=self._opens)

    def run(self, steps: int) -> None:
        things: list[Callable[[], object]] = [self.all_in_turn, self.some, self.some_neighbours, self.few_often]
        things += [self.look_at_some, self.write, self.write_some, self.write_some, self.evict, self.trim]
        things += [self.reopen, self.kill, self.kill_within_groups]
        for _ in range(steps):
            self.randomly.choice(things)()
            self.check(self.randomly.sample(TOPICS, 15))
        self.check(TOPICS)

    def publish(self, topics: list[str]) -> None:
        for at in range(0, len(topics), 1_000):
            batch, places = RecordBatch(), []
            for topic in topics[at : at + 1_000]:
                has_tag = self.randomly.random() < 0.3
                places.append((topic, batch.size, has_tag))
                tag = encode_attribute(Attribute.TAG, TAG) if has_tag else b""
                payload = bytes(self.randomly.randrange(60))
                batch.append(RecordType.MESSAGE, payload, topic=topic.encode(), attributes=tag)
            start = self.store.append(batch)
            for topic, place, has_tag in places:
                self.messages[topic].append((start + place, has_tag))

    def all_in_turn(self) -> None:
        self.publish(TOPICS)
        if self.randomly.random() < 0.5:
            self.write()

    def some(self) -> None:
        self.publish(self.randomly.sample(TOPICS, self.randomly.choice((300, 1_200, 2_000))))

    def some_neighbours(self) -> None:
        first = self.randomly.randrange(len(TOPICS) - 1_300)
        self.publish(TOPICS[first : first + 1_300 : self.randomly.choice((1, 1, 3))])

    def few_often(self) -> None:
        """They become objects, and their entries packs."""
        self.publish(self.randomly.sample(TOPICS, 30) * self.randomly.choice((2, 5)))

    def look_at_some(self) -> None:
        for topic in self.randomly.sample(TOPICS, 40):
            self.store.queues.topic_queue(topic.encode())

    def write(self) -> None:
        self.store.write_index()
        self._flush()

    def write_some(self) -> None:
        self.store.log.commit()
        for _ in range(self.randomly.randrange(1, 25)):
            write_step(self.store, self.store.end)
        self._flush()

    def _flush(self) -> None:
        """What is flushed is what a kill leaves of the index."""
        if self.randomly.random() < 0.5:
            self.store.index.flush()
        self.most_keys = max(self.most_keys, neighbours_keys(self.store.index))

    def evict(self) -> None:
        for _ in range(20):
            self.store.queues.evict_idle()

    def trim(self) -> None:
        """Sometimes only a part of it."""
        if self.randomly.random() < 0.5:
            run_upkeep(self.store)
            self.nothing_old_is_left()
        else:
            self.store.upkeep._next_check_s = 0
            for _ in range(self.randomly.randrange(30)):
                self.store.tick()

    def nothing_old_is_left(self) -> None:
        for _, value in self.store.index.scan(b"n", b"o"):
            assert not 0 < newest_neighbour(unpacked_neighbours(value)) < self.store.log.first

    def reopen(self) -> None:
        data = self.store.settings.data
        self.store.close()
        self.store = self._open(data)

    def kill(self) -> None:
        self.opened += 1
        data = self.store.settings.data
        copy = crash_copy(data, self.folder / f"data-{self.opened}")
        self.store.close()
        shutil.rmtree(data)
        self.store = self._open(copy)
        stored_entries(self.store.index)  # none twice, and groups' keys in order

    def kill_within_groups(self) -> None:
        """Of their entries RocksDB has the newer ones, of topics that were no objects, and replay makes all alike."""
        self.write()
        first = self.randomly.randrange(len(TOPICS) - 400)
        for topic in TOPICS[first : first + 400 : self.randomly.choice((2, 3))]:
            self.store.queues.topic_queue(topic.encode())
        self.publish(TOPICS)
        self.write_some()
        self.store.index.flush()
        self.kill()

    # --- looking

    def check(self, topics: list[str]) -> None:
        for topic in topics:
            queue = self.store.queues.topic_queue(topic.encode())
            self.same_queue(queue, self.messages[topic])

    def same_queue(self, queue: Queue, messages: list[Message]) -> None:
        queues, first = self.store.queues, self.store.log.first
        assert queue.next_offset == len(messages)
        gone = sum(log_offset < first for log_offset, _ in messages)
        for start in {0, gone, len(messages) // 2}:
            found = [
                record.log_offset for record in read_all(self.store, queue, start, self.randomly.choice((1, 1_000)))
            ]
            assert found == [log_offset for log_offset, _ in messages[max(start, gone) :]]
        assert self.tagged(queue) == [log_offset for log_offset, has_tag in messages[gone:] if has_tag]
        assert queues.first_offset(queue) <= gone
        assert queues.position_of(queue, first) == gone
        if messages[gone:]:
            at = self.randomly.randrange(gone, len(messages))
            assert queues.position_of(queue, messages[at][0]) == at
            assert queues.log_offset_at(queue, at) == messages[at][0]
        in_rocksdb = queue.tail_first_offset
        stored = {
            at + i: pack_entry(pack, i)
            for at, pack in queues.stored_entries(queue, 0, in_rocksdb)
            for i in range(len(pack) // ENTRY_BYTES)
        }
        kept = range(min(gone, in_rocksdb), in_rocksdb)
        assert {at: stored[at] for at in kept} == {at: messages[at][0] for at in kept}

    def tagged(self, queue: Queue) -> list[int]:
        found: list[int] = []
        at = 0
        while at < queue.next_offset:
            records, at, _, _ = self.store.queues.read_tagged(
                queue, at, TAG, 2**63, self.randomly.choice((1, 1_000)), 1 << 20
            )
            found += [records[i][0] for i in range(records.count)]
        return found


@pytest.mark.parametrize(("seed", "opens"), [*((seed, open_log) for seed in range(6)), (6, open_plain_log)])
@pytest.mark.catalogue("C10", "E16")
def test_every_queue_has_exactly_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, opens: OpenLog
) -> None:
    monkeypatch.setattr(table, "STEP_COST", 40)
    monkeypatch.setattr(table, "ENTRIES_PER_COST", 5)
    monkeypatch.setattr(table, "DIRTY_SHARE", 1_000)
    monkeypatch.setattr(trimming, "KEYS_PER_STEP", 7 if seed % 2 else 500)
    monkeypatch.setattr(resident, "IDLE_S", 0.0)
    monkeypatch.setattr(neighbours, "KEYS_LOOKED_AT", 3 if seed % 3 == 0 else 1_024)
    machine = Machine(tmp_path, seed, opens)
    machine.publish(TOPICS)
    machine.run(45)
    assert machine.most_keys > 20
    machine.store.close()
