"""A gateway's store at the other end of a wire: what is asked for, and what comes by itself."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue
from lightqueue.reading.following import FROM_NOW, Followed
from notify.local.hub import Hub
from notify.local.store import LocalStore
from notify.remote import reads as remote_reads
from notify.remote.store import RemoteStore
from store.records._records import Records
from store.records.records import Record
from tests.support.mqtt_bench import FakeLoop
from tests.support.store_protocol_between import WireBetween
from tests.support.stores import batch_of, publish, read_all, small


class Reading:
    """A queue that is followed over a wire, and read from its beginning."""

    def __init__(self, folder: Path) -> None:
        self.loop = FakeLoop()
        self.store = MessageStore(small(folder))
        self.hub = Hub(self.store)
        self.wire = WireBetween(self.hub, self.loop, 10)
        self.position = 0
        followed: list[Followed] = []
        self.gateway.queues.follow("t/#", FROM_NOW, True, True, followed.extend)
        self.loop.run()
        self.queue: Queue = followed[0].queue

    @property
    def gateway(self) -> RemoteStore:
        return self.wire.gateway

    def publish(self, *payloads: bytes) -> None:
        publish(self.store, "t/1", *payloads)
        self.hub.tell_changes()
        self.loop.run()

    def read(self) -> Records | None:
        return self.gateway.queues.read(self.queue, self.position, 100, 1 << 20)

    def asked(self) -> Records:
        """A range that has to be asked for."""
        assert self.read() is None
        self.loop.run()
        return self.had()

    def had(self) -> Records:
        """A range that is there."""
        records = self.read()
        assert records is not None
        self.position = records.next
        return records


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Reading]:
    reading = Reading(tmp_path)
    yield reading
    reading.store.close()


def test_the_first_range_is_asked_for_the_next_ones_come(reading: Reading) -> None:
    reading.publish(b"1", b"2")
    assert reading.asked().count == 2
    reading.publish(b"3")
    reading.publish(b"4", b"5")
    assert reading.gateway.queues.collect_grown() == [reading.queue]
    assert [reading.had().count, reading.had().count] == [1, 2]
    assert reading.read() is None
    assert reading.wire.figures.reads == 1


def test_pushes_stop_when_nobody_reads_them(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_reads, "MOST_UNREAD_BYTES", 1_000)
    reading.publish(b"1")
    reading.asked()
    for _ in range(20):
        reading.publish(bytes(200))
    pushes = reading.wire.figures.pushes
    assert 3 < pushes < 6
    for _ in range(pushes):
        reading.had()
    reading.asked()
    assert reading.position == reading.queue.next_offset == 21
    reading.publish(b"2")
    assert reading.had().count == 1
    assert reading.wire.figures.pushes == pushes + 1


def test_pushed_range_is_asked_for_after_it_left_the_cache(reading: Reading) -> None:
    reading.publish(b"1")
    reading.asked()
    reading.publish(b"2")
    reading.gateway.queues.ranges.cache.clear()
    assert reading.asked().count == 1


def read_on(reading: Reading) -> tuple[list[bytes], int]:
    """All that there is, and how often that had to be waited for."""
    payloads: list[bytes] = []
    rounds = 0
    while reading.position < reading.queue.next_offset:
        records = reading.read()
        if records is None:
            rounds += 1
            reading.loop.run()
            continue
        at = reading.position - records.first
        payloads += [Record._make(records[i]).payload for i in range(at, records.count)]
        reading.position = records.next
    return payloads, rounds


def test_reader_far_behind_reads_ranges_ahead(reading: Reading) -> None:
    sent = [b"%d" % number for number in range(2_000)]
    reading.publish(*sent)
    received, rounds = read_on(reading)
    assert received == sent
    assert rounds <= 1 + 20 // remote_reads.AHEAD
    reads = reading.wire.figures.reads
    reading.publish(*sent[:150])
    assert read_on(reading)[0] == sent[:150]
    assert reading.wire.figures.reads <= reads + 2  # not far behind any more


def test_ranges_asked_for_ahead_may_be_shorter_than_expected(reading: Reading) -> None:
    chosen = random.Random(5)
    sent = [bytes(chosen.choice((1, 1_000, 60_000))) + b"%d" % number for number in range(600)]
    for at in range(0, len(sent), 100):
        reading.publish(*sent[at : at + 100])
    assert read_on(reading)[0] == sent


def test_reader_far_behind_skips_a_record_that_no_frame_can_hold(reading: Reading) -> None:
    """The range that says so has no records."""
    sent = [b"%d" % number for number in range(500)]
    reading.publish(*sent)
    reading.gateway.queues.ranges.cache.add(1, [(reading.queue, 0, Records(1))])
    assert reading.had().count == 0
    assert read_on(reading)[0] == sent[1:]


def test_only_so_many_are_asked_ahead_for(reading: Reading) -> None:
    reading.publish(*[bytes(100)] * 3_000)
    reading.asked()
    before = reading.wire.figures.reads
    for _ in range(5):
        reading.loop.run()
        reading.had()
    reading.loop.run()
    assert reading.wire.figures.reads - before <= 5 + remote_reads.AHEAD


def test_events_of_an_unfollowed_queue_are_ignored(reading: Reading) -> None:
    reading.publish(b"1")
    reading.asked()
    reading.gateway.queues.unfollow(reading.queue)
    publish(reading.store, "t/1", b"2")
    reading.hub.tell_changes()  # the store does not know it yet
    reading.loop.run()
    assert reading.gateway.queues.collect_grown() == []
    assert reading.gateway.queues.ranges.cache.get(reading.queue, 1) is None


def test_last_member_is_told_of_queues_that_grew_before_and_after(tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path))
    hub = Hub(store)
    left, stays = LocalStore.join(hub, "left"), LocalStore.join(hub, "stays")
    followed: list[Followed] = []
    for topic_filter in ("t/1", "t/2"):
        stays.queues.follow(topic_filter, FROM_NOW, True, True, followed.extend)
    publish(store, "t/1", b"1")
    hub.tell_changes(left.member)
    hub.leave(left.member, {})
    publish(store, "t/2", b"2")
    assert stays.queues.collect_grown() == [each.queue for each in followed]
    assert stays.queues.collect_grown() == []
    store.close()


def test_batches_appended_while_the_store_is_away_fit_its_frames(reading: Reading) -> None:
    reading.wire.cut()
    payloads = [b"%02d" % number + bytes(5_000) for number in range(20)]
    batch = batch_of(*payloads, topic=b"t/1")
    assert batch.size > reading.store.log.largest_append_bytes
    reading.gateway.appends.append(batch)
    reading.wire.connect()
    reading.loop.run()
    assert reading.gateway.appends.unstored_bytes == 0
    queue = reading.store.queues.topic_queue(b"t/1")
    assert [record.payload for record in read_all(reading.store, queue)] == payloads
