"""What a group makes of one message, where equal messages, another group of its name or many letters could mislead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.groups.group_queue import GroupQueue
from lightqueue.groups.receivers import LOOK_RECORDS, LOOKS, GroupVerdict, group_verdict
from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue
from store.records._records import RecordBatch, records_bytes
from store.records.records import Attribute, RecordType, encode_attribute, read_records
from store.state.group_settings import MOST_IN_FLIGHT, GroupSettings
from tests.support.stores import Stores, crash_copy, publish, read_all

ONE = ("peer", "one")
LATER_MS = 60_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    stores = Stores(tmp_path / "data", segment_bytes=32 << 20)
    yield stores()
    stores.close()


def make(store: MessageStore, topic_filter: str) -> GroupQueue:
    found = store.groups.make(("g", topic_filter), GroupSettings(most_in_flight=MOST_IN_FLIGHT), lambda: 0)
    found.group.join(ONE)
    return found


def verdict(store: MessageStore, found: GroupQueue, log_offset: int) -> GroupVerdict:
    (message,) = read_records(memoryview(records_bytes(store.records_at([log_offset]))))
    (said,) = [each for each in group_verdict(store.queues, found, message) if each is not None]
    return said


def give_up(store: MessageStore, found: GroupQueue, dead: str = "no use", most: int = 8_192) -> None:
    """All that it may have now; with an empty `dead` it is acknowledged."""
    now_ms = store.now_ms()
    for each in found.pop(ONE, most, 8 << 20, now_ms, now_ms + LATER_MS).ranges:
        if dead:
            found.reject(each.serial, each.first, each.number, now_ms, None, dead)
        else:
            found.ack(each.serial, each.first, each.number)
    while found.group.dead or found.group.has_changes:
        store.groups.write_due(now_ms, at_once=True)


def test_of_equal_messages_one_is_a_dead_letter_and_of_two_groups_of_one_name(store: MessageStore) -> None:
    gives_up, takes = make(store, "t/#"), make(store, "t/1")
    places = [publish(store, "t/1", b"same") for _ in range(2)]
    give_up(store, gives_up, most=1)
    give_up(store, gives_up, dead="")
    give_up(store, takes, dead="")
    takes.state.dead_letters += 1  # of another message
    first, second = (verdict(store, gives_up, place) for place in places)
    assert first.state == "dead_letter"
    assert first.letter is not None
    assert second.state == "received"
    assert [verdict(store, takes, place).state for place in places] == ["received", "received"]


def test_a_message_with_another_tag_is_filtered(store: MessageStore) -> None:
    found = store.groups.make(("tagged", "t/#"), None, lambda: 0, tag="a||b")
    found.group.join(ONE)
    batch = RecordBatch()
    for tag in (b"a", b"c", b""):
        attributes = encode_attribute(Attribute.TAG, tag) if tag else b""
        batch.append(RecordType.MESSAGE, b"x", topic=b"t/1", attributes=attributes)
    places = [record.log_offset for record in read_all(store, stored(store, batch))]
    assert [verdict(store, found, place).state for place in places] == ["waiting", "filtered", "filtered"]
    give_up(store, found, dead="")
    assert [verdict(store, found, place).state for place in places] == ["received", "filtered", "filtered"]


def stored(store: MessageStore, batch: RecordBatch) -> Queue:
    """The queue of their topic."""
    store.append(batch)
    return store.queues.topic_queue(b"t/1")


def test_after_more_letters_than_are_looked_at_it_is_not_known(store: MessageStore) -> None:
    found = make(store, "t/#")
    place = publish(store, "t/1", b"taken")
    give_up(store, found, dead="")
    publish(store, "t/1", *[b"x"] * (LOOKS * LOOK_RECORDS + 1))
    give_up(store, found)
    assert verdict(store, found, place).state == "unknown"


def test_where_a_group_began_is_in_the_log_and_in_the_index(store: MessageStore, tmp_path: Path) -> None:
    early = publish(store, "t/1", b"early")
    store.groups.make(("late", "t/1"), None, lambda: 1)
    reset = store.groups.make(("reset", "t/1"), None, lambda: 0)
    store.groups.reset(reset, 1)
    store.write_index()
    copies = Stores(crash_copy(store.settings.data, tmp_path / "copy"))
    for each in (store, copies()):
        states = {queue.state.name: verdict(each, queue, early).state for queue in each.groups}
        assert states == {"late": "later", "reset": "unknown"}
    copies.close()
    reset.state.start = None  # as an older store left it
    assert verdict(store, reset, early).state == "unknown"
