"""Groups with priorities: what comes first, how far behind the rest may fall, and what a kill leaves of that."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.groups.group_queue import LOOKS_PER_POP
from lightqueue.groups.priorities import SHARE
from lightqueue.groups.queue_reads import LOOKED_AT
from store.records.records import Attribute, decode_attributes, read_records
from tests.support.stores import KEPT_BYTES, Stores, crash_copy, fill, run_upkeep
from tests.unit.lightqueue.groups.test_tagged_groups import DUE_MS, NOW_MS, ONE, Sent, made, pop, publish

BACKLOG = 2_000


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data")
    yield stores
    stores.close()


def numbered(tag: bytes | None, count: int) -> list[Sent]:
    return [(b"%s-%d" % (tag or b"other", i), tag) for i in range(count)]


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.catalogue("Q72")
def test_an_alarm_comes_before_a_backlog(stores: Stores, on_disk: bool) -> None:
    store = stores()
    found = made(store, "alarm > warning > *")
    publish(store, [*numbered(None, BACKLOG), *numbered(b"warning", 3), *numbered(b"alarm", 3)])
    if on_disk:
        store.write_index()
    assert [payload for payload, _, _ in pop(found, 6)] == [
        *(payload for payload, _ in numbered(b"alarm", 3)),
        *(payload for payload, _ in numbered(b"warning", 3)),
    ]
    assert [payload for payload, _, _ in pop(found, 1)] == [b"other-0"]


@pytest.mark.parametrize("most", [1, 3, 8, 100, 1_000])
@pytest.mark.catalogue("Q72")
def test_the_lowest_one_moves_while_higher_ones_never_end(stores: Stores, most: int) -> None:
    """Of SHARE messages one has a lower priority, each of these in turn, however few are asked for at a time."""
    store = stores()
    found = made(store, "alarm > warning > *")
    publish(store, [*numbered(None, BACKLOG), *numbered(b"warning", BACKLOG), *numbered(b"alarm", BACKLOG)])
    handed: list[bytes] = []
    while len(handed) < 1_600:
        messages = pop(found, most)
        for payload, serial, offset in messages:
            assert found.ack(serial, offset, 1) == []
            handed.append(payload)
    for kind in (b"other", b"warning"):
        of_kind = [payload for payload in handed if payload.startswith(kind)]
        assert abs(len(of_kind) - len(handed) // (2 * SHARE)) <= most
        assert of_kind == [b"%s-%d" % (kind, i) for i in range(len(of_kind))]


def test_a_backlog_that_takes_long_to_look_through_does_not_hold_up_the_rest(stores: Stores) -> None:
    """What is far ahead comes once the store has come to it, and the rest goes on meanwhile."""
    store = stores()
    found = made(store, "alarm > *")
    for _ in range(20):
        publish(store, numbered(None, LOOKED_AT))
    publish(store, numbered(b"alarm", 1))
    firsts = [pop(found, 10)[0][0] for _ in range(2 * 20 // (LOOKS_PER_POP // 2) + 2)]
    assert firsts[0] == b"other-0"
    assert b"alarm-0" in firsts


def test_what_comes_again_comes_behind_new_ones_with_a_higher_priority(stores: Stores) -> None:
    store = stores()
    found = made(store, "alarm > *")
    publish(store, [*numbered(None, 3), *numbered(b"alarm", 1)])
    for _, serial, offset in pop(found, 4):
        assert found.reject(serial, offset, 1, NOW_MS, 0, "") == []
    publish(store, [(b"new", b"alarm")])
    assert [payload for payload, _, _ in pop(found, 5)] == [b"alarm-0", b"new", b"other-0", b"other-1", b"other-2"]


def test_a_kill_forgets_no_priority_and_nothing_that_was_acknowledged(stores: Stores, tmp_path: Path) -> None:
    store = stores()
    found = made(store, "alarm > *")
    publish(store, [*numbered(None, 100), *numbered(b"alarm", 20)])
    handed = pop(found, 24)
    assert [payload for payload, _, _ in handed[:20]] == [payload for payload, _ in numbered(b"alarm", 20)]
    for _, serial, offset in handed[:10] + handed[20:]:
        assert found.ack(serial, offset, 1) == []
    found.write(NOW_MS)
    copy = stores(crash_copy(tmp_path / "data", tmp_path / "killed"))
    (again,) = copy.groups
    again.group.release_all(NOW_MS)
    again.group.join(ONE)
    assert [payload for payload, _, _ in pop(again, 12)] == [
        *(b"alarm-%d" % i for i in range(10, 20)),
        b"other-4",
        b"other-5",
    ]


def test_messages_that_another_append_is_done_with_leave_the_others(stores: Stores, tmp_path: Path) -> None:
    """The process that handed them out was killed before the log had it: what stands between them still comes."""
    store = stores()
    found = made(store, "alarm > *")
    publish(store, [(b"1", None), (b"2", b"alarm"), (b"3", None), (b"4", b"alarm"), (b"5", None)])
    pop(found, 5)
    copy = stores(crash_copy(tmp_path / "data", tmp_path / "killed"))
    (again,) = copy.groups
    again.group.join(ONE)
    assert again.may_take([2, 3], ONE[0])
    again.find([2, 3], NOW_MS)
    again.took([2, 3])
    assert [payload for payload, _, _ in pop(again, 10)] == [b"2", b"1", b"5"]
    assert pop(again, 10) == []


def test_messages_with_another_tag_do_not_come_because_one_behind_them_is_done_with(
    stores: Stores, tmp_path: Path
) -> None:
    store = stores()
    found = made(store, "a")
    publish(store, [(b"1", None), (b"2", b"a"), (b"3", None), (b"4", b"a")])
    pop(found, 5)
    copy = stores(crash_copy(tmp_path / "data", tmp_path / "killed"))
    (again,) = copy.groups
    again.group.join(ONE)
    again.find([3], NOW_MS)
    again.took([3])
    assert [payload for payload, _, _ in pop(again, 10)] == [b"2"]


def test_what_is_gone_is_told_once(stores: Stores) -> None:
    store = stores(retention_bytes=KEPT_BYTES)
    found = made(store, "alarm > *")
    publish(store, [*numbered(None, 2), *numbered(b"alarm", 3)])
    fill(store, 6)
    run_upkeep(store)
    publish(store, [*numbered(b"alarm", 1), *numbered(None, 1)])
    dealt = found.pop(ONE, 10, 1 << 20, NOW_MS, DUE_MS)
    records = list(read_records(memoryview(dealt.records)))
    assert [record.payload for record in records] == [b"alarm-0", b"other-0"]
    lost = [decode_attributes(record.attributes).get(Attribute.LOST, b"") for record in records]
    assert sum(int.from_bytes(each, "little") for each in lost) == 5
    assert found.reads.skipped == 5
