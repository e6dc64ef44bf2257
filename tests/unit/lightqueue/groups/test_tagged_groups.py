"""Groups that have messages with some tags alone, beside a list in plain Python."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.groups.group_queue import GroupQueue
from lightqueue.groups.queue_reads import LOOKED_AT
from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import tagged_records
from store.records._records import RecordBatch, records_from
from store.records.records import Attribute, RecordType, decode_attributes, encode_attribute, read_records
from store.state.group_settings import (
    ALL,
    MOST_PRIORITIES,
    MOST_TAGS,
    BadTags,
    GroupSettings,
    TagSet,
    logged_tags,
    tags_of,
)
from tests.support.stores import KEPT_BYTES, Stores, crash_copy, fill, run_upkeep

ONE = ("peer", "one")
KEY = ("g", "t/#")
NOW_MS, DUE_MS = 5_000_000, 5_600_000
KINDS = (None, b"a", b"b", b"c")
Sent = tuple[bytes, bytes | None]  # payload, tag


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data")
    yield stores
    stores.close()


def publish(store: MessageStore, messages: list[Sent]) -> None:
    batch = RecordBatch()
    for payload, tag in messages:
        key = encode_attribute(Attribute.KEY, payload[:1])
        attributes = key + (encode_attribute(Attribute.TAG, tag) if tag is not None else b"")
        batch.append(RecordType.MESSAGE, payload, topic=b"t/1", attributes=attributes)
    store.append(batch)


def made(store: MessageStore, tag: str, partitions: int = 0) -> GroupQueue:
    found = store.groups.make(KEY, GroupSettings(partitions=partitions), lambda: 0, tag=tag)
    found.group.join(ONE)
    return found


def pop(found: GroupQueue, most: int) -> list[tuple[bytes, int, int]]:
    """Payload, serial and queue_offset of what is handed out."""
    dealt = found.pop(ONE, most, 1 << 20, NOW_MS, DUE_MS)
    places = [(each.serial, each.first + i) for each in dealt.ranges for i in range(each.number)]
    payloads = [record.payload for record in read_records(memoryview(dealt.records))]
    return [(payload, *place) for payload, place in zip(payloads, places, strict=True)]


def numbers(messages: list[Sent], tags: set[bytes | None]) -> list[bytes]:
    return [payload for payload, tag in messages if tag in tags]


@pytest.mark.parametrize(
    ("tag", "partitions", "wanted"),
    [
        ("a||b", 0, {b"a", b"b"}),
        ("a||b", 3, {b"a", b"b"}),
        ("a > b", 0, {b"a", b"b"}),
        ("a > b||c > *", 0, set(KINDS)),
    ],
)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.catalogue("R77")
def test_each_message_with_a_tag_comes_once_and_no_other(
    stores: Stores, tmp_path: Path, seed: int, tag: str, partitions: int, wanted: set[bytes | None]
) -> None:
    """Whether its entry is in memory or on disk, before and after a kill; at the end nothing is left over."""
    chance = random.Random(seed)
    store = stores()
    found = made(store, tag, partitions)
    sent: list[Sent] = []
    done: list[bytes] = []
    for turn in range(12):
        kind = chance.choice(KINDS)
        count = chance.choice((1, 40, 2 * LOOKED_AT if kind in (None, b"c") else 300))
        alike = chance.random() < 0.5
        more = [
            (b"%d-%d" % (chance.randrange(5), len(sent) + i), kind if alike else chance.choice(KINDS))
            for i in range(count)
        ]
        publish(store, more)
        sent += more
        if chance.random() < 0.4:
            store.write_index()
        if chance.random() < 0.2:
            stores.stop(store)
            store = stores()
            (found,) = store.groups
            found.group.release_all(NOW_MS)
            found.group.join(ONE)
        for payload, serial, offset in pop(found, chance.randrange(1, 400)):
            if chance.random() < 0.9:
                assert found.ack(serial, offset, 1) == []
                done.append(payload)
            else:
                found.change_invisible(serial, offset, 1, NOW_MS)  # it comes again
        if turn % 4 == 3:
            found.write(NOW_MS)
    idle = 0
    while idle < 3 + len(sent) // LOOKED_AT:
        handed = pop(found, 200)
        idle = 0 if handed else idle + 1
        for payload, serial, offset in handed:
            assert found.ack(serial, offset, 1) == []
            done.append(payload)
    expected = numbers(sent, wanted)
    assert set(done) == set(expected)
    found.write(NOW_MS)
    assert (found.lag, found.reads.skipped) == (0, 0)
    assert found.state.acked == len(sent)
    copy = stores(crash_copy(tmp_path / "data", tmp_path / "killed"))
    (again,) = copy.groups
    again.group.join(ONE)
    assert again.state.tag == tag
    more = [(b"9-1", b"c"), (b"9-2", b"a"), (b"9-3", None)]
    publish(copy, more)
    assert {payload for payload, _, _ in pop(again, 10)} == {*numbers(more, wanted)}


def test_a_group_without_tags_has_all(stores: Stores) -> None:
    store = stores()
    found = made(store, "")
    publish(store, [(b"1", b"a"), (b"2", None), (b"3", b"c")])
    assert [payload for payload, _, _ in pop(found, 10)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("looks_before", [False, True])
def test_what_retention_dropped_counts_as_lost_since_its_tag_is_not_known(stores: Stores, looks_before: bool) -> None:
    """The next message with the group's tag says so, whether a message with another tag comes between or not."""
    store = stores(retention_bytes=KEPT_BYTES)
    found = made(store, "a")
    publish(store, [(b"1", b"a"), (b"2", b"c"), (b"3", None)])
    fill(store, 6)
    run_upkeep(store)
    assert not looks_before or pop(found, 10) == []
    publish(store, [(b"4", b"c"), (b"5", b"a")])
    dealt = found.pop(ONE, 10, 1 << 20, NOW_MS, DUE_MS)
    (message,) = read_records(memoryview(dealt.records))
    assert message.payload == b"5"
    assert int.from_bytes(decode_attributes(message.attributes)[Attribute.LOST], "little") == 3
    assert found.reads.skipped == 3


def test_hashes_alone_decide_nothing(stores: Stores) -> None:
    """Records of two tags with one hash lie in a row; the tags themselves are compared."""
    batch = RecordBatch()
    for tag in (b"c", b"", b"a", b"b", b"c", b"a"):
        attributes = encode_attribute(Attribute.TAG, tag) if tag else b""
        batch.append(RecordType.MESSAGE, b"x", topic=b"t/1", attributes=attributes)
    store = stores()
    store.append(batch)
    queue = store.queues.stored("t/1")
    assert queue is not None
    records = store.queues.read(queue, 0, 10, 1 << 20)
    assert [tagged_records(records, start, [b"a", b"b"]) for start in (0, 3, 4, 6)] == [(2, 4), (3, 4), (5, 6), (6, 6)]
    assert tagged_records(records, 0, [b"none"]) == (6, 6)
    assert tagged_records(records_from(b"", 0), 0, [b"a"]) == (0, 0)


def test_a_pause_keeps_the_tag(stores: Stores) -> None:
    store = stores()
    found = made(store, "a")
    store.groups.pause(found, True)
    store.groups.pause(found, False)
    assert found.state.tag == "a"
    stores.stop(store)
    (again,) = stores().groups
    assert (again.state.tag, again.tag_sets) == ("a", [TagSet([b"a"])])


@pytest.mark.parametrize(
    "expression",
    [
        "||",
        "a||",
        "||a",
        "a||||b",
        "x" * 256,
        "\N{SNOWMAN}" * 90,
        "||".join(map(str, range(MOST_TAGS + 1))),
        "x" * 100_000,
        "a >",
        "> a",
        "a > > b",
        "* > a",
        "a||* > b",
        "a > b||a",
        "a > a > *",
        " > ".join(map(str, range(MOST_PRIORITIES + 1))),
    ],
)
def test_expressions_that_nothing_can_match_or_that_are_too_long(expression: str) -> None:
    with pytest.raises(BadTags, match=r"tag"):
        tags_of(expression)


def test_what_an_older_release_took_for_a_tag_still_is_one() -> None:
    """Its group is in the log, and a start does not fail because of it."""
    assert logged_tags("a >") == [TagSet([b"a >"])]


def test_expressions() -> None:
    assert tags_of("") == tags_of("*") == [ALL]
    assert tags_of("b||a||b") == [TagSet([b"a", b"b"])]
    assert len(tags_of("||".join(map(str, range(MOST_TAGS))))[0].tags) == MOST_TAGS
    first, second, rest = tags_of("b > c||a > *")
    assert (first, second, rest) == (TagSet([b"b"]), TagSet([b"a", b"c"]), TagSet([b"a", b"b", b"c"], others=True))
    assert tags_of("a > b") == [TagSet([b"a"]), TagSet([b"b"])]
