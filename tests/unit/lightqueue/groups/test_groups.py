"""Consumer groups over a store's own queues: what the log and the index make of them, and messages that are gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.groups.group_queue import GroupQueue
from lightqueue.groups.groups import Groups, TooManyGroups
from lightqueue.message_store import MessageStore
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordType, decode_attributes, encode_attribute, read_records
from store.state.group_leases import Lease, LeaseAlarms
from store.state.group_settings import GroupSettings
from store.state.group_states import GroupState
from tests.support.stores import KEPT_BYTES, Stores, crash_copy, fill, payloads, publish, read_all, run_upkeep

KEY = ("g", "t/#")
ONE = ("peer", "one")
TWO = ("peer", "two")
SOON_MS = 10_000


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data")
    yield stores
    stores.close()


class Clock:
    """Of a group's consumers; a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 5_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(store: MessageStore, settings: GroupSettings | None = None, topic_filter: str = "t/#") -> GroupQueue:
    found = store.groups.make(("g", topic_filter), settings, lambda: 0)
    found.group.join(ONE)
    return found


def pop(found: GroupQueue, clock: Clock, most: int = 100) -> list[tuple[bytes, tuple[int, int, int]]]:
    """(payload, receipt) of what is handed out."""
    dealt = found.pop(ONE, most, 1 << 20, clock.now_ms, clock.now_ms + SOON_MS)
    receipts = [(each.serial, each.first + i, 1) for each in dealt.ranges for i in range(each.number)]
    records = read_records(memoryview(dealt.records))
    return [(record.payload, receipt) for record, receipt in zip(records, receipts, strict=True)]


def states(groups: Groups) -> list[GroupState]:
    return [each.state for each in groups]


@pytest.mark.parametrize("expires", [False, True])
def test_messages_that_are_looked_at_one_by_one_are_few_in_an_answer(
    stores: Stores, clock: Clock, expires: bool
) -> None:
    """Thousands of them would take some 50 ms of the loop at once. All of them come, in their order."""
    store = stores()
    clock.now_ms = store.now_ms()
    found = make(store)
    sent = [b"%d" % number for number in range(1_000)]
    publish(store, "t/1", *sent, properties=bytes([2, 0, 0, 9, 9]) if expires else b"")
    if not expires:
        assert len(pop(found, clock, 8_192)) == len(sent)  # new ones are handed out as a whole
        found.group.leave(ONE, clock.now_ms)
        found.group.join(ONE)
    seen: list[bytes] = []
    while handed := pop(found, clock, 8_192):
        assert len(handed) <= 128
        seen += [payload for payload, _ in handed]
    assert seen == sent


@pytest.mark.parametrize("ranges_per_record", [2, 500])
def test_the_log_and_the_index_say_the_same(
    stores: Stores, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges_per_record: int
) -> None:
    monkeypatch.setattr("lightqueue.groups.advances.RANGES_PER_RECORD", ranges_per_record)
    store = stores()
    found = make(store, GroupSettings(retry_ms=1_000, max_deliveries=2))
    other = make(store, GroupSettings(partitions=3), "t/+")
    for turn in range(6):
        publish(store, f"t/{turn}", *(b"%d" % number for number in range(20)))
        handed = pop(found, clock, 15)
        for number, (_, receipt) in enumerate(handed):
            if number % 3 == 0:
                found.ack(*receipt)
            elif number % 3 == 1:
                found.reject(*receipt, clock.now_ms, None, "")
        for _, receipt in pop(other, clock):
            other.ack(*receipt)
        clock.now_ms += 2_000
        store.groups.write_due(clock.now_ms, at_once=True)
        if turn % 2:
            store.write_index()
        copy = stores(crash_copy(store.settings.data, tmp_path / f"copy-{turn}"))
        assert states(copy.groups) == states(store.groups)
        assert all(each.entries for each in states(copy.groups)[:1])
        stores.stop(copy)
    assert found.state.dead_letters > 0


def test_closing_writes_what_was_done(stores: Stores, clock: Clock) -> None:
    store = stores()
    found = make(store)
    publish(store, "t/1", b"a", b"b")
    for _, receipt in pop(found, clock):
        found.ack(*receipt)
    stores.stop(store)
    assert pop(make(stores()), clock) == []


def test_the_queue_of_a_group_is_kept(stores: Stores, clock: Clock) -> None:
    store = stores(queue_grace_s=0)
    make(store, topic_filter="t/+/x")
    run_upkeep(store)
    publish(store, "t/1/x", b"a")
    stores.stop(store)
    store = stores(queue_grace_s=0)
    run_upkeep(store)
    found = store.groups.get(("g", "t/+/x"))
    assert found is not None
    found.group.join(ONE)
    assert [payload for payload, _ in pop(found, clock)] == [b"a"]
    store.groups.drop(found)
    run_upkeep(store)
    run_upkeep(store)
    assert store.queues.stored("t/+/x") is None


def test_group_skips_messages_that_retention_dropped(stores: Stores, clock: Clock) -> None:
    store = stores(retention_bytes=KEPT_BYTES)
    found = make(store)
    publish(store, "t/1", b"a", b"b", b"c")
    assert len(pop(found, clock, 1)) == 1
    fill(store, 5)
    run_upkeep(store)
    publish(store, "t/1", b"d")
    clock.now_ms += 2 * SOON_MS
    assert [payload for payload, _ in pop(found, clock)] == [b"d"]
    assert found.lag == 1


def lost_in(found: GroupQueue, clock: Clock, max_bytes: int = 1 << 20, done: bool = False) -> list[int]:
    """What each message that is handed out says of those that are gone. `done`: they are acknowledged."""
    dealt = found.pop(ONE, 100, max_bytes, clock.now_ms, clock.now_ms + SOON_MS)
    for each in dealt.ranges if done else ():
        found.ack(each.serial, each.first, each.number)
    attributes = [decode_attributes(record.attributes) for record in read_records(memoryview(dealt.records))]
    return [int.from_bytes(each.get(Attribute.LOST, b""), "little") for each in attributes]


@pytest.mark.parametrize("partitions", [0, 2])
def test_each_message_that_is_gone_is_told_once(stores: Stores, clock: Clock, partitions: int) -> None:
    """Those that retention drops before a group reads them, and those that it drops between reading and handing out."""
    store = stores(retention_bytes=KEPT_BYTES)
    found = make(store, GroupSettings(partitions=partitions))
    publish(store, "t/1", *[b"%d" % number for number in range(20)])
    assert lost_in(found, clock, max_bytes=200)[0] == 0
    found.group.leave(ONE, clock.now_ms)  # what was handed out is to be handed out again
    found.group.join(ONE)
    fill(store, 4)
    run_upkeep(store)
    publish(store, "t/1", *[b"%d" % number + bytes(100) for number in range(20)])
    told: list[int] = []
    for _ in range(100):
        told += lost_in(found, clock, max_bytes=200, done=True)
    assert len(told) == 20
    assert (sum(told), found.reads.skipped) == (20, 20)
    assert found.reads.skipped == 20


def test_a_message_that_comes_again_says_again_what_is_gone(stores: Stores, clock: Clock) -> None:
    store = stores(retention_bytes=KEPT_BYTES)
    found = make(store)
    publish(store, "t/1", b"a", b"b")
    fill(store, 4)
    run_upkeep(store)
    publish(store, "t/1", b"c", b"d")
    for _ in range(2):
        assert lost_in(found, clock) == [2, 0]
        found.group.leave(ONE, clock.now_ms)
        found.group.join(ONE)


def test_expired_messages_are_not_handed_out(stores: Stores, clock: Clock) -> None:
    store = stores()
    found = make(store)
    publish(store, "t/1", b"short", properties=b"\2\0\0\0\1")
    publish(store, "t/1", b"long", properties=b"\2\x0f\0\0\0")
    clock.now_ms = store.log.memory.timestamp_ms(store.queues.log_offset_at(found.queue, 0)) + 1_500
    assert [payload for payload, _ in pop(found, clock)] == [b"long"]
    assert found.lag == 1


def test_a_dead_letter_keeps_what_it_was(stores: Stores, clock: Clock) -> None:
    store = stores()
    found = make(store)
    batch = RecordBatch()
    content_type = b"\3\0\4text"
    batch.append(
        RecordType.MESSAGE,
        b"payload",
        topic=b"t/1",
        client_id=b"m7",
        attributes=encode_attribute(Attribute.KEY, b"k"),
        properties=content_type,
        flags=5,
    )
    store.append(batch)
    ((_, receipt),) = pop(found, clock)
    found.reject(*receipt, clock.now_ms, None, "no")
    store.groups.write_due(clock.now_ms, at_once=True)
    dead = store.queues.stored("$dead/g/t/1")
    assert dead is not None
    (record,) = read_all(store, dead)
    assert (record.client_id, record.payload, record.qos, record.retain) == (b"m7", b"payload", 1, False)
    (message,) = read_all(store, found.queue)
    letter_of = encode_attribute(Attribute.LETTER_OF, message.log_offset.to_bytes(8, "little"))
    assert record.attributes == encode_attribute(Attribute.KEY, b"k") + letter_of
    assert record.properties.startswith(content_type + b"\x26\0\x0fpenstock-reason\0\2no")
    assert store.groups.get(KEY) is found
    assert not found.state.entries


def test_a_message_too_large_to_be_handed_out(stores: Stores, clock: Clock) -> None:
    store = stores()
    store.groups.most_bytes = 1_000
    found = make(store)
    publish(store, "t/1", b"a", bytes(2_000), b"b")
    assert [payload for payload, _ in pop(found, clock)] == [b"a", b"b"]
    store.groups.write_due(clock.now_ms, at_once=True)
    assert payloads(store, "$dead/g/t/1") == [bytes(2_000)]


def test_keys_say_the_order(stores: Stores, clock: Clock) -> None:
    store = stores()
    found = make(store, GroupSettings(partitions=64))
    for number in range(4):
        batch = RecordBatch()
        key = encode_attribute(Attribute.KEY, b"same")
        batch.append(RecordType.MESSAGE, b"%d" % number, topic=b"t/%d" % number, attributes=key)
        store.append(batch)
    for number in range(4):
        ((payload, receipt),) = pop(found, clock)
        assert payload == b"%d" % number
        found.ack(*receipt)


def test_groups_are_bounded(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightqueue.groups.groups.MOST_GROUPS", 2)
    store = stores()
    make(store)
    make(store, topic_filter="u")
    with pytest.raises(TooManyGroups):
        make(store, topic_filter="v")


def test_new_messages_are_dealt_in_slices_of_one_read(stores: Stores, clock: Clock) -> None:
    store = stores()
    found = make(store)
    found.group.join(TWO)
    publish(store, "t/1", *(b"%d" % number for number in range(6)))
    records = found.new(100, 1 << 20, clock.now_ms)
    assert records is not None
    due_ms = clock.now_ms + SOON_MS
    one = found.hand_out_new(ONE, records, 0, 4, clock.now_ms, due_ms)
    two = found.hand_out_new(TWO, records, 4, 1, clock.now_ms, due_ms)
    lasting = two.lasting()
    publish(store, "t/1", b"6")
    assert [payload for payload, _ in pop(found, clock)] == [b"5", b"6"]
    assert [lasting.first, lasting.count, lasting[0][-1]] == [4, 1, b"4"]
    assert one.ranges[0].serial < two.ranges[0].serial
    assert (one.ranges[0].first, one.ranges[0].number) == (0, 4)
    assert found.ack(two.ranges[0].serial, 4, 1) == []
    found.group.leave(ONE, clock.now_ms)
    assert found.new(100, 1 << 20, clock.now_ms) is None  # what was given back comes first


def test_records_that_need_a_look_each_are_not_dealt_whole(stores: Stores, clock: Clock) -> None:
    store = stores()
    found = make(store)
    assert found.new(100, 1 << 20, clock.now_ms) is None
    assert not found.may_have(clock.now_ms)
    publish(store, "t/1", bytes(1_000), bytes(1_000))
    assert found.may_have(clock.now_ms)
    assert found.new(100, 500, clock.now_ms) is None
    assert found.new(1, 1_200, clock.now_ms) is not None
    publish(store, "t/1", b"expires", properties=bytes([2, 0, 0, 0, 9]))
    assert found.new(100, 1 << 20, clock.now_ms) is None
    assert len(pop(found, clock)) == 3
    ordered = make(store, GroupSettings(partitions=2), "t/+")
    assert ordered.new(100, 1 << 20, clock.now_ms) is None
    assert ordered.may_have(clock.now_ms)


def test_lease_alarms_of_settled_leases_are_deleted(clock: Clock) -> None:
    told: list[Lease] = []
    alarms = LeaseAlarms(told.append)
    leases = [Lease([number], 0, 1, 1, clock.now_ms + number % 7) for number in range(5_000)]
    for lease in leases:
        alarms.set(lease)
        if lease.offsets[0] % 100:
            alarms.cancel(lease)
            alarms.cancel(lease)
    assert len(alarms) == 50
    assert len(alarms._heap) < 2_000
    alarms.run(clock.now_ms - 1)
    assert told == []
    alarms.run(clock.now_ms + 3)
    assert [lease.due_ms for lease in told] == sorted(lease.due_ms for lease in told)
    assert {lease.offsets[0] for lease in told} == {n for n in range(0, 5_000, 100) if n % 7 <= 3}
    alarms.run(clock.now_ms + 7)
    assert len(told) == 50
    assert not alarms
