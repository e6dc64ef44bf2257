"""A log of which any records are lost: applying it never fails, and what is left of it is delivered at least once."""

import os
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from lightqueue.groups.group_queue import GroupQueue
from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue
from store.files.segment import HEADER_BYTES, segment_paths
from store.log.index import Index
from store.records.records import RECORD_HEADER_BYTES, Record, RecordType, read_records
from store.recovery.rewriting import fill
from store.recovery.salvage import Hole
from store.state.changes import (
    Change,
    GroupAdvanced,
    GroupDropped,
    GroupMade,
    Progress,
    Sent,
    SessionClosed,
    SessionEnded,
    SessionOpened,
    Subscribed,
    SubscriptionState,
    Unsubscribed,
    WillFired,
    WillState,
    decode_change,
)
from store.state.group_settings import GroupSettings
from store.state.groups import ConsumerKey
from store.state.sessions import renewed
from tests.support.store_workload import Workload
from tests.support.stores import change, crash_copy, read_all, small, write_step

OPTIONS = {"segment_bytes": 1 << 20, "index_write_buffer_bytes": 64 << 10, "cached_topics": 15, "group_flush_ms": 1}
GROUPS = [("one", "d/#"), ("two", "l3"), ("ordered", "d/#"), ("three", "x/#"), ("all", "#")]
CONSUMER: ConsumerKey = ("peer", "consumer")
FOREVER_MS = 1 << 50


class Place(NamedTuple):
    """A record in the log, and the header of the batch that it is in."""

    start: int
    end: int
    batch: int | None


class Users(Workload):
    """Sessions and groups that take what they are given, and remember what they are done with."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.done: dict[tuple[str, str], set[int]] = {}  # of each group, log_offsets
        self.acked: dict[str, int] = {}
        self.now_ms = 1_000

    def run(self, store: MessageStore, steps: int) -> None:
        things = [self.publish] * 6 + [self.publish_mixed, self.go, self.progress, self.write_step, self.dispatch]
        things += [self.publish_delayed, self.cancel] + [self.consume] * 6 + [self.make_or_drop]
        for _ in range(steps):
            self.now_ms += 1
            self.randomly.choice(things)(store)

    def go(self, store: MessageStore) -> None:
        client = self.randomly.choice(self.clients)
        will = WillState("will", b"gone", 1, False, b"", 0) if self.randomly.random() < 0.3 else None
        names = self.randomly.sample(["d/+/t", "d/#", "l1", "x/+"], 2)
        state = store.sessions.get(client)
        acked = state.acked if state is not None else 0
        clean = self.randomly.random() < 0.2
        changes: list[Change] = [SessionOpened(client, clean, 600, will)] * 3
        changes += [Subscribed(client, [SubscriptionState(name, 1) for name in names])] * 4
        changes += [SessionClosed(client, 600, will is not None, acked), Unsubscribed(client, names[:1])]
        changes += [SessionEnded(client), WillFired(client)]
        chosen = self.randomly.choice(changes)
        if isinstance(chosen, SessionEnded) or (isinstance(chosen, SessionOpened) and clean):
            self.acked.pop(client, None)
        change(store, chosen)

    def progress(self, store: MessageStore) -> None:
        state = store.sessions.get(self.randomly.choice(self.clients))
        if state is not None:
            acked = self.randomly.randrange(state.acked, store.end + 1)
            sent = [Sent(self.randomly.randrange(1, 9), acked, 2, False)] if acked < store.end else []
            released, completed = [self.randomly.randrange(1, 9)], [self.randomly.randrange(1, 9)]
            self.acked[state.client_id] = acked
            for packet_id in completed:  # what is put down as completed was so
                if packet_id in state.sent:
                    self.acked.setdefault(f"{state.client_id} {state.sent[packet_id].log_offset}", 1)
            if not any(each.packet_id in completed for each in sent):
                change(store, Progress(state.client_id, acked, sent, released, completed, [3]))

    def make_or_drop(self, store: MessageStore) -> None:
        key = self.randomly.choice(GROUPS)
        found = store.groups.get(key)
        if found is None:
            settings = GroupSettings(partitions=3 if key[0] == "ordered" else 0, max_deliveries=0)
            begin = self.randomly.choice((0, 1))
            made = store.groups.make(key, settings, lambda: begin and store.queues.end_of(key[1]))
            made.group.join(CONSUMER)
            self.done[key] = {record.log_offset for record in read_all(store, made.queue)[: made.state.positions[0]]}
        elif self.randomly.random() < 0.1:
            store.groups.drop(found)
            del self.done[key]

    def consume(self, store: MessageStore) -> None:
        found = store.groups.get(self.randomly.choice(GROUPS))
        if found is None:
            return
        dealt = found.pop(CONSUMER, self.randomly.randrange(1, 40), 1 << 20, self.now_ms, self.now_ms + 50)
        read = list(read_records(memoryview(dealt.records)))
        for each in dealt.ranges:
            records, read = read[: each.number], read[each.number :]
            for offset, record in enumerate(records, each.first):
                if self.randomly.random() < 0.7:
                    found.ack(each.serial, offset, 1)
                    self.done[found.state.key].add(record.log_offset)
        if self.randomly.random() < 0.7:
            store.groups.write(found, self.now_ms)


def places(segment: Path) -> list[Place]:
    """Every record of a segment but batches, in order."""
    data, found = segment.read_bytes(), []
    at, batch, batch_end = HEADER_BYTES, None, 0
    while length := int.from_bytes(data[at : at + 4], "little"):
        if data[at + 24] == RecordType.BATCH:
            batch, batch_end = at, at + length
            at += RECORD_HEADER_BYTES
            continue
        found.append(Place(at, at + length, batch if at < batch_end else None))
        at += length
    return found


def lose(segment: Path, randomly: random.Random) -> list[Hole]:
    """Put GAP records in the place of one to three runs of records; of a batch that is hurt the header goes too."""
    found = places(segment)
    lost: set[tuple[int, int]] = set()
    for _ in range(randomly.choice((1, 1, 2, 3))):
        first = randomly.randrange(len(found))
        for place in found[first : first + randomly.choice((1, 3, 20, 100))]:
            lost.add((place.start, place.end))
            if place.batch is not None:
                lost.add((place.batch, place.batch + RECORD_HEADER_BYTES))
    holes = [Hole(start, end, "") for start, end in sorted(lost)]
    fd = os.open(segment, os.O_RDWR)
    for hole in holes:
        fill(fd, 0, hole)
    os.close(fd)
    return holes


def lose_around(segment: Path, log_offset: int, randomly: random.Random) -> list[Hole]:
    """Put one GAP record in the place of a run of records, so that a log_offset is in its middle; returns the lost."""
    found = places(segment)
    at = next(number for number, place in enumerate(found) if place.end > log_offset)
    first = found[max(0, at - randomly.randint(1, 12))]
    start = first.start if first.batch is None else first.batch
    end = found[min(len(found) - 1, at + randomly.randint(0, 12))].end
    fd = os.open(segment, os.O_RDWR)
    fill(fd, 0, Hole(start, end, ""))
    os.close(fd)
    assert start < log_offset < end
    return [Hole(place.start, place.end, "") for place in found if start <= place.start and place.end <= end]


def stored(store: MessageStore, topic_filter: str) -> Queue:
    queue = store.queues.stored(topic_filter)
    assert queue is not None
    return queue


class Expected:
    """What a store has to have again that lost these parts of its log."""

    def __init__(self, store: MessageStore, users: Users, holes: list[Hole]) -> None:
        self.lost = {hole.start for hole in holes}
        self.users = users
        messages = {record.log_offset: record for record in read_all(store, stored(store, "#"))}
        self.kept = {at for at in messages if at not in self.lost}
        self.groups = {key: self._of_group(store, key) for key in users.done}
        self.placed = {key: placed(store, key) for key in users.done}
        records = [record for _, data in store.log.ranges(0, 1 << 30) for record in read_records(data)]
        self.pending = {each for each in store.delayed.page(0, 0, 10_000) if each.log_offset not in self.lost}
        self.sessions: dict[str, dict[str, set[int]]] = {}
        for state in store.sessions:
            for name, subscription in state.subscriptions.items():
                since = min(
                    (
                        at
                        for at, who, what in self._subscribed(records)
                        if (who, what) == (state.client_id, name) and at >= subscription.since
                    ),
                    default=None,
                )
                queue = store.queues.stored(name)
                if since is None or queue is None:
                    continue
                acked = max(since, users.acked.get(state.client_id, 0), state.acked)
                unacked = {each.log_offset for each in read_all(store, queue, store.queues.position_of(queue, acked))}
                unacked -= state.done | {sent.log_offset for sent in state.sent.values()}
                self.sessions.setdefault(state.client_id, {})[name] = unacked & self.kept

    def _subscribed(self, records: list[Record]) -> list[tuple[int, str, str]]:
        """Subscriptions that are not lost: where, whose, to what."""
        changes = [
            (record.log_offset, decode_change(record.type, record.payload))
            for record in records
            if record.type == RecordType.SUBSCRIBED and record.log_offset not in self.lost
        ]
        return [
            (at, each.client_id, subscription.topic_filter)
            for at, each in changes
            if isinstance(each, Subscribed)
            for subscription in each.subscriptions
        ]

    def _of_group(self, store: MessageStore, key: tuple[str, str]) -> set[int]:
        queue = store.queues.stored(key[1])
        assert queue is not None
        found = {record.log_offset for record in read_all(store, queue)}
        return (found - self.users.done[key]) & self.kept

    def check(self, store: MessageStore, made: set[tuple[str, str]]) -> None:
        """`made`: groups of which a record is left that says where its queue ended."""
        assert self.pending <= set(store.delayed.page(0, 0, 10_000))
        for key, wanted in self.groups.items():
            found = store.groups.get(key)
            if found is None:
                assert key not in made
                continue
            began, places = placed(store, key)
            if began == self.placed[key][0]:
                assert all(self.placed[key][1].get(at) == place for at, place in places.items()), key
            found.group.join(CONSUMER)
            assert wanted <= everything(found), key
        for client_id, subscriptions in self.sessions.items():
            found_session = store.sessions.get(client_id)
            assert found_session is not None
            state = renewed(found_session) if found_session.gap else found_session
            owed = {each.log_offset for each in state.owed}
            for name, wanted in subscriptions.items():
                assert name in state.subscriptions
                queue = store.queues.stored(name)
                assert queue is not None
                start = max(state.acked, state.frontier, state.subscriptions[name].since)
                got = {each.log_offset for each in read_all(store, queue, store.queues.position_of(queue, start))}
                assert wanted <= (got - state.done) | owed


def placed(store: MessageStore, key: tuple[str, str]) -> tuple[int, dict[int, int]]:
    """What a consumer is told that its group began with, and the queue_offset of each message by log_offset."""
    found, queue = store.groups.get(key), store.queues.stored(key[1])
    assert found is not None
    assert queue is not None
    places = {}
    for place in range(queue.next_offset):
        records = store.read(queue, place, 1, 1 << 30)
        if records.count and records.first == place:
            places[Record._make(records[0]).log_offset] = place
    return found.state.began, places


def everything(found: GroupQueue) -> set[int]:
    """log_offsets of all that a group hands out from now on, if nothing is acknowledged."""
    got: set[int] = set()
    now_ms = FOREVER_MS
    while True:
        dealt = found.pop(CONSUMER, 100_000, 1 << 30, now_ms, now_ms + 1)
        read = list(read_records(memoryview(dealt.records)))
        if not read:
            return got
        got |= {record.log_offset for record in read}
        for each in dealt.ranges:
            found.ack(each.serial, each.first, each.number)


def known_groups(segment: Path) -> set[tuple[str, str]]:
    """Groups of whose records the newest run is not all lost."""
    data = memoryview(segment.read_bytes())
    made: set[tuple[str, str]] = set()
    for place in places(segment):
        record = next(read_records(data[place.start : place.end]))
        if record.type in (RecordType.GROUP_MADE, RecordType.GROUP_ADVANCED, RecordType.GROUP_RESET):
            change = decode_change(record.type, record.payload)
            if isinstance(change, GroupMade | GroupAdvanced) and change.end >= 0:
                made.add((change.name, change.topic_filter))
        elif record.type == RecordType.GROUP_DROPPED:
            dropped = decode_change(record.type, record.payload)
            assert isinstance(dropped, GroupDropped)
            made.discard((dropped.name, dropped.topic_filter))
    return made


@pytest.mark.parametrize("seed", range(12))
def test_messages_that_survive_gaps_come_at_least_once(tmp_path: Path, seed: int) -> None:
    users = Users(seed)
    users.randomly.seed(seed)
    data = tmp_path / "data"
    store = MessageStore(small(data, **OPTIONS))
    change(store, SessionOpened("all", False, 600), Subscribed("all", [SubscriptionState("#", 1)]))
    indexes = []
    for number in range(3):
        users.run(store, 120)
        write_step(store, users.randomly.choice((store.end, store._state.applied)))
        store.index.flush()
        indexes.append(crash_copy(data, tmp_path / f"then-{number}") / "index")
    for found in store.groups:
        found.write(users.now_ms)
    store.write_index()
    for number in range(4):
        copy = crash_copy(data, tmp_path / f"copy-{number}")
        shutil.rmtree(copy / "index")
        if number:
            shutil.copytree(indexes[number - 1], copy / "index")
        segment = segment_paths(copy / "log")[0]
        expected = Expected(store, users, lose(segment, users.randomly))
        again = MessageStore(small(copy, **OPTIONS))
        killed = crash_copy(copy, tmp_path / f"killed-{number}")
        expected.check(again, known_groups(segment))
        again.close()
        shutil.rmtree(copy)
        again = MessageStore(small(killed, **OPTIONS))
        expected.check(again, set())
        again.close()
    store.close()


@pytest.mark.parametrize("which", ["applied_offset", "state_offset"])
@pytest.mark.parametrize("seed", range(12))
def test_an_index_that_stands_in_a_gap_goes_on_behind_it(tmp_path: Path, seed: int, which: str) -> None:
    """Of what was lost it has nothing, a part, or all but some entries."""
    users = Users(seed)
    users.randomly.seed(seed)
    data = tmp_path / "data"
    store = MessageStore(small(data, **OPTIONS))
    change(store, SessionOpened("all", False, 600), Subscribed("all", [SubscriptionState("#", 1)]))
    users.run(store, 200)
    write_step(store, store._state.applied if seed % 3 == 0 else store.end)
    store.index.flush()
    indexed = crash_copy(data, tmp_path / "then") / "index"
    users.run(store, 150)
    for found in store.groups:
        found.write(users.now_ms)
    store.write_index()
    copy = crash_copy(data, tmp_path / "copy")
    shutil.rmtree(copy / "index")
    shutil.copytree(indexed, copy / "index")
    index = Index(indexed, 1 << 20)
    place: int = getattr(index, which)
    index.close()
    segment = segment_paths(copy / "log")[0]
    expected = Expected(store, users, lose_around(segment, place, users.randomly))
    store.close()
    again = MessageStore(small(copy, **OPTIONS))
    killed = crash_copy(copy, tmp_path / "killed")
    expected.check(again, known_groups(segment))
    again.close()
    again = MessageStore(small(killed, **OPTIONS))
    expected.check(again, set())
    again.close()
