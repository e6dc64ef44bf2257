"""Looking messages up by their key: the index says where to look, and the message itself whether it is one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.queues import keys as keys_module
from lightqueue.queues._queues import key_hash
from lightqueue.queues.keys import PART_BITS
from lightqueue.reading import finding
from lightqueue.reading.finding import FindQuery, find
from store.log.index import Index
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute
from tests.support.stores import Stores, crash_copy, fill, run_upkeep

# Two texts with the same 64-bit FNV-1a.
ONE, OTHER = "8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"
END = 2**63 - 1


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", segment_bytes=512 << 10)
    yield stores
    stores.close()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small log has many parts, and one question takes several steps."""
    monkeypatch.setattr(finding, "MOST_LOOKED_AT", 7)


def publish(store: MessageStore, topic: str, key: str, payload: str = "x", flags: int = 1) -> int:
    batch = RecordBatch()
    attributes = encode_attribute(Attribute.TAG, b"t") + encode_attribute(Attribute.KEY, key.encode())
    batch.append(RecordType.MESSAGE, payload.encode(), topic=topic.encode(), attributes=attributes, flags=flags)
    return store.append(batch)


def found(store: MessageStore, key: str, topic: str = "", since: str = "earliest", until: str = "now") -> list[int]:
    wanted = FindQuery.parse(key, topic, since, until)
    log_offsets: list[int] = []
    before = END
    while before:
        answer = find(store, wanted, before, 3)
        log_offsets += answer.log_offsets
        assert len(answer.log_offsets) <= 3
        assert answer.before < before
        before = answer.before
    return log_offsets


@pytest.mark.catalogue("B7")
def test_newest_first_wherever_the_index_is(stores: Stores) -> None:
    store = stores()
    mine: list[int] = []
    for number in range(60):
        mine.append(publish(store, f"t/{number % 3}", "m-7"))
        publish(store, "t/0", f"other-{number}")
        if number in (20, 40):
            store.write_index()
    assert found(store, "m-7") == mine[::-1]
    assert found(store, "m-7", "t/1") == mine[1::3][::-1]
    assert found(store, "m-7", "t/+") == mine[::-1]
    (other,) = found(store, "other-5")
    assert mine[5] < other < mine[6]
    assert found(store, "nobody") == []
    stores.stop(store)
    assert found(stores(), "m-7") == mine[::-1]


def test_after_a_kill_the_log_says_the_same(stores: Stores, tmp_path: Path) -> None:
    store = stores()
    mine = [publish(store, "t", "m-7") for _ in range(10)]
    store.write_index()
    mine += [publish(store, "t", "m-7") for _ in range(10)]
    copy = crash_copy(tmp_path / "data", tmp_path / "copy")
    assert found(stores(copy), "m-7") == mine[::-1]


@pytest.mark.catalogue("B8")
def test_texts_that_only_look_alike(stores: Stores) -> None:
    """In Java "Aa" and "BB" have one hash; here these two have."""
    store = stores()
    publish(store, "AaTopic", "Aa")
    publish(store, "BBTopic", "BB")
    assert found(store, "BB", "AaTopic") == []
    assert len(found(store, "Aa", "AaTopic")) == 1
    assert key_hash(ONE.encode()) == key_hash(OTHER.encode())
    places = [publish(store, "t", key) for key in (ONE, OTHER) * 20]
    for is_written in (False, True):
        if is_written:
            store.write_index()
        assert found(store, ONE) == places[::2][::-1]
        assert found(store, OTHER) == places[1::2][::-1]


@pytest.mark.catalogue("B7")
def test_by_time(stores: Stores) -> None:
    store = stores()
    places = [publish(store, "t", "k")]
    while store.log.memory.timestamp_ms(places[-1]) - store.log.memory.timestamp_ms(places[0]) < 5:
        places.append(publish(store, "t", "k"))
    middle_ms = store.log.memory.timestamp_ms(places[-1]) - 2
    earlier = [each for each in places if store.log.memory.timestamp_ms(each) < middle_ms]
    wanted = FindQuery(b"k", "", 0, middle_ms)
    assert _all(store, wanted) == earlier[::-1]
    assert _all(store, wanted._replace(since_ms=middle_ms, until_ms=END)) == places[len(earlier) :][::-1]
    assert found(store, "k", since="-1h") == places[::-1]
    assert found(store, "k", until="-1h") == []


def _all(store: MessageStore, wanted: FindQuery) -> list[int]:
    log_offsets: list[int] = []
    before = END
    while before:
        answer = find(store, wanted, before, 1_000)
        log_offsets += answer.log_offsets
        before = answer.before
    return log_offsets


def test_many_parts_of_the_log_and_what_retention_dropped(tmp_path: Path) -> None:
    stores = Stores(tmp_path / "data", segment_bytes=512 << 10, retention_bytes=3 << 20)
    store = stores()
    mine = []
    for _ in range(4):
        mine.append(publish(store, "t", "k"))
        fill(store, 2)
    store.write_index()
    assert found(store, "k")[-1] >= store.log.first
    fill(store, 4)
    run_upkeep(store)
    kept = [each for each in mine if each >= store.log.first]
    assert len(kept) < len(mine)
    assert found(store, "k") == kept[::-1]
    stores.close()


def test_parts_are_passed_from_the_newest_to_the_oldest_and_go_as_ranges(stores: Stores) -> None:
    store = stores()
    part = 1 << PART_BITS
    places = [part - 8, part, 5 * part + 64, 5 * part + 128, 9 * part]
    note(store, [(key, place) for place in places for key in (b"k", b"other")])
    for parts_in_order in range(4):
        assert len(store.keys._parts) == 4 - parts_in_order
        assert list(store.keys.candidates(b"k", END)) == places[::-1]
        assert list(store.keys.candidates(b"k", 5 * part + 128)) == places[2::-1]
        assert list(store.keys.candidates(b"nobody", END)) == []
        store.keys.stage()
        store.index.write(store.index.applied_offset, store.index.state_offset)
        store.keys.written()
    assert len(list(store.index.scan(b"k", b"l"))) == 3
    assert len(list(store.index.scan(b"l", b"m"))) == 1
    store.keys.trim(5 * part + 100)
    store.index.write(store.index.applied_offset, store.index.state_offset)
    assert list(store.keys.candidates(b"k", END)) == places[:1:-1]
    store.keys.trim(10 * part)
    store.index.write(store.index.applied_offset, store.index.state_offset)
    assert list(store.keys.candidates(b"k", END)) == []
    assert list(store.index.scan(b"k", b"m")) == []


def test_more_of_one_key_than_a_piece_holds(stores: Stores) -> None:
    store = stores()
    places = list(range(64, 64 + 40 * 3_000, 40))
    note(store, [(b"k" if i % 3 else b"other-%d" % i, place) for i, place in enumerate(places)])
    mine = [place for i, place in enumerate(places) if i % 3]
    note(store, [(b"k", 1 << PART_BITS)])
    for _ in range(2):
        assert list(store.keys.candidates(b"k", END)) == [1 << PART_BITS, *mine[::-1]]
        assert list(store.keys.candidates(b"k", mine[1_500])) == mine[:1_500][::-1]
        assert list(store.keys.candidates(b"other-300", END)) == [places[300]]
        store.keys.stage()
        store.index.write(store.index.applied_offset, store.index.state_offset)
        store.keys.written()


def test_a_run_grows_until_it_is_full(stores: Stores) -> None:
    store = stores()
    for number in range(keys_module.RUN_KEYS + 10):
        note(store, [(b"k", 64 + 40 * number)])
        store.keys.stage()
        store.index.write(store.index.applied_offset, store.index.state_offset)
        store.keys.written()
    runs = list(store.index.scan(b"l", b"m"))
    assert [len(items) // 8 for _, items in runs] == [keys_module.RUN_KEYS, 10]


def test_an_index_of_another_format_is_built_again(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    store = stores()
    mine = [publish(store, "t", "m-7") for _ in range(10)]
    stores.stop(store)
    index = Index(store.settings.data / "index", 1 << 20)
    index.delete(b"m:format")
    index._db.write(index._batch)
    index.flush()
    index.close()
    assert found(stores(), "m-7") == mine[::-1]
    assert "has format 1, and this version needs 3; it is rebuilt" in caplog.text


def note(store: MessageStore, keyed: list[tuple[bytes, int]]) -> None:
    """Have messages with these keys at these log_offsets, as far as the index of keys knows."""
    dispatcher = store.queues.dispatcher
    for key, place in keyed:
        part = dispatcher.key_part(place >> PART_BITS)
        item = key_hash(key) << 32 | place % (1 << PART_BITS)
        written = part.written
        part.load(item.to_bytes(8, "little"))
        part.written = written


def test_messages_that_no_queue_has_are_not_found(stores: Stores) -> None:
    store = stores()
    publish(store, "t", "k", flags=RecordFlag.LIVE_ONLY)
    assert found(store, "k") == []
