"""Queues after retention: reads skip forward, entries go a few at a time, queue offsets never restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.queues._queues import pack_entry, unpacked
from lightqueue.queues.layout import entry_key, pack_count
from lightqueue.upkeep import trimming
from store.errors import IndexFailed
from store.state.changes import QueueDropped, SessionEnded
from tests.support.stores import (
    KEPT_BYTES,
    Stores,
    change,
    commit_log,
    fill,
    payloads,
    publish,
    read_all,
    run_upkeep,
    subscribe,
    wait_until,
)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", retention_bytes=KEPT_BYTES)
    yield stores
    stores.close()


def test_reads_below_the_first_offset_skip_forward(open_store: Stores) -> None:
    store = open_store()
    fill(store, 4, "t/1")
    queue = store.queues.stored("t/1")
    level = store.queues.stored("t/#")
    assert queue is not None
    assert level is not None
    before = read_all(store, queue)
    segments = len(commit_log(store).segments)
    while len(commit_log(store).segments) == segments:
        store.upkeep._next_check_s = 0
        store.tick()
    assert store.upkeep.busy  # dropped, and not yet trimmed
    for _ in range(2):
        kept = [record for record in before if record.log_offset >= store.log.first]
        assert 0 < len(kept) < len(before)
        for start in range(len(before)):
            assert read_all(store, queue, start) == kept[max(0, start - (len(before) - len(kept))) :]
        records = store.read(queue, 0, 10, 1 << 20)
        assert records.first == len(before) - len(kept)
        assert read_all(store, level) == kept
        assert store.queues.position_of(queue, store.log.first) == records.first
        assert store.queues.position_at(queue, 0) == records.first
        run_upkeep(store)
    assert store.queues.first_offset(queue) <= records.first


def test_entries_below_the_first_offset_are_trimmed(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "KEYS_PER_STEP", 3)
    store = open_store()
    store.queues.hold("+/one", store.end - 1)
    for i in range(300):
        publish(store, f"t{i % 40}/one", bytes(1000))
        if i % 10 == 0:
            store.write_index()
    run_upkeep(store)
    packs = [unpacked(value) for _, value in store.index.scan(b"e", b"f")]
    assert packs
    assert min(pack_entry(pack, pack_count(pack) - 1) for pack in packs) >= store.log.first
    assert trimming.trimmed_to(store.index) == store.log.first


def test_an_emptied_queue_goes_on_from_its_next_offset(open_store: Stores) -> None:
    store = open_store()
    publish(store, "old/1", b"1", b"2", b"3")
    subscribe(store, "client", ["old/+"])
    fill(store, 4)
    run_upkeep(store)
    for topic_filter, end in (("old/1", 3), ("old/#", 3), ("old/+", 0)):
        queue = store.queues.stored(topic_filter)
        assert queue is not None
        assert (queue.next_offset, read_all(store, queue)) == (end, [])
    assert [key for key, _ in store.index.scan(entry_key(1, 0), entry_key(3, 0))] == []
    open_store.stop(store)
    again = open_store()
    publish(again, "old/1", b"4")
    queue = again.queues.stored("old/1")
    assert queue is not None
    assert (again.queues.first_offset(queue), queue.next_offset) == (3, 4)
    assert payloads(again, "old/#", 3) == [b"4"]
    assert payloads(again, "old/+") == [b"4"]


def test_trimming_goes_on_after_a_restart(open_store: Stores) -> None:
    store = open_store()
    for i in range(50):
        publish(store, f"old{i}", b"x")
    fill(store, 4)
    store.upkeep._next_check_s = 0
    while store.log.base == 0:
        store.tick()
    open_store.stop(store)
    again = open_store()
    assert len(list(again.index.scan(b"e", b"f"))) > 50
    run_upkeep(again)
    assert len(list(again.index.scan(b"e", b"f"))) < 10


def test_a_failed_pass_begins_anew(
    open_store: Stores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    publish(store, "old", b"x")
    fill(store, 4)

    def fail(*_: object) -> None:
        raise IndexFailed(store.index.folder, "Input/output error")

    def has_failed() -> bool:
        store.tick()
        return "upkeep: " in caplog.text

    with monkeypatch.context() as patched:
        patched.setattr(store.index, "first", fail)
        store.upkeep._next_check_s = 0
        wait_until(has_failed)
    assert trimming.trimmed_to(store.index) == 0
    publish(store, "old", b"y")  # messages are not refused for it
    store.upkeep._resume_s = 0
    run_upkeep(store)
    assert trimming.trimmed_to(store.index) == store.log.first
    assert payloads(store, "old", 1) == [b"y"]


def test_trimming_takes_bounded_steps(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "KEYS_PER_STEP", 10)
    store = open_store()
    for i in range(500):
        publish(store, f"old{i}", b"x")
    for _ in range(100):
        publish(store, "one", b"x")
        store.write_index()
    fill(store, 4)
    store.write_index()
    commit_log(store).pop_first().remove()
    looked_at = 0

    def counting(pack: bytes, i: int) -> int:
        nonlocal looked_at
        looked_at += 1
        return pack_entry(pack, i)

    monkeypatch.setattr(trimming, "pack_entry", counting)
    steps = trimming.Trimmer(store.index, store.queues, store.log.first).steps()
    most = 0
    for _ in steps:
        most, looked_at = max(most, looked_at), 0
    assert 5 <= most <= 12
    store.write_index()
    assert len(list(store.index.scan(b"e", b"f"))) < 200


def test_a_filter_held_again_keeps_its_queue(open_store: Stores) -> None:
    """Trimming sees the old queue, which is dropped while the index is not written."""
    store = open_store()
    subscribe(store, "client", ["+/x"])
    for _ in range(2):
        publish(store, "old/x", b"x")
        store.write_index()
    fill(store, 4)
    store.write_index()
    commit_log(store).pop_first().remove()
    change(store, SessionEnded("client"), QueueDropped(["+/x"]))
    subscribe(store, "client", ["+/x"])
    publish(store, "new/x", b"1")
    for _ in trimming.Trimmer(store.index, store.queues, store.log.first).steps():
        pass
    open_store.stop(store)
    assert payloads(open_store(), "+/x") == [b"1"]


def test_spilled_live_entries_are_trimmed(open_store: Stores) -> None:
    store = open_store(live_tail_entries=1)
    live = store.queues.watch("+/x")
    live.spills = True
    publish(store, "a/x", *[b"old"] * 10)
    store.write_index()
    fill(store, 4)
    publish(store, "a/x", *[b"new"] * 10)
    run_upkeep(store)
    assert [record.payload for record in read_all(store, live)] == [b"new"] * 10
    assert len(list(store.index.scan(entry_key(live.id, 0), b"f"))) == 1
