"""Delayed messages in the store: never early, never twice, never lost; cancelled, listed, carried past retention."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt._mqtt import DELIVERY_BOUNDS_MS
from lightqueue.message_store import MessageStore
from lightqueue.upkeep import dispatching, retention
from store.records.records import Attribute, RecordFlag, decode_attributes, encode_attribute
from store.state import delayed
from store.state.changes import SessionOpened
from store.state.delayed import DelayedMessage
from tests.support.stores import (
    KEPT_BYTES,
    Stores,
    change,
    crash_copy,
    fill,
    payloads,
    publish,
    publish_delayed,
    read_all,
    retained_payloads,
    run_upkeep,
)

TICK_MS = 50
EXPIRES_IN_10_S = b"\2\0\0\0\x0a"


class StoppedClock:
    """Unix time, as far as the test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_700_000_000_000
        monkeypatch.setattr(time, "time_ns", lambda: self.now_ms * 1_000_000)
        monkeypatch.setattr(time, "time", lambda: self.now_ms / 1000)
        monkeypatch.setattr(time, "clock_gettime", lambda _: self.now_ms / 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    return StoppedClock(monkeypatch)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data")
    yield stores
    stores.close()


def tick(store: MessageStore) -> None:
    while store.tick():
        pass


def pending(store: MessageStore) -> list[DelayedMessage]:
    return store.delayed.page(0, 0, 1_000)


# --- in time


@pytest.mark.parametrize("is_written", [False, True])
def test_a_message_is_dispatched_when_it_is_due(open_store: Stores, clock: StoppedClock, is_written: bool) -> None:
    store = open_store()
    watched = store.queues.watch("a/b")
    publish_delayed(store, "a/b", b"later", due_ms=clock.now_ms + 1_000, client_id=b"me", flags=1)
    publish(store, "a/b", b"now")
    if is_written:
        store.write_index()
    tick(store)
    clock.now_ms += 999
    tick(store)
    assert payloads(store, "a/b") == [b"now"]
    store.collect_grown()
    clock.now_ms += 1
    tick(store)
    assert store.collect_grown() == [watched]
    last = read_all(store, watched)[-1]
    assert (last.payload, last.topic, last.client_id, last.flags) == (b"later", b"a/b", b"me", 1)
    assert last.timestamp_ms == clock.now_ms
    clock.now_ms += 10**9
    tick(store)
    assert payloads(store, "a/b") == [b"now", b"later"]
    assert pending(store) == []


def test_delayed_messages_come_in_order_of_due_time_then_of_storing(open_store: Stores, clock: StoppedClock) -> None:
    store = open_store()
    now_ms = clock.now_ms
    publish_delayed(store, "t", b"3", due_ms=now_ms + 3_000)
    publish_delayed(store, "t", b"1a", b"1b", due_ms=now_ms + 1_000)
    store.write_index()
    publish_delayed(store, "t", b"1c", due_ms=now_ms + 1_000)
    publish_delayed(store, "t", b"2", due_ms=now_ms + 2_000)
    clock.now_ms += 10_000
    tick(store)
    assert payloads(store, "t") == [b"1a", b"1b", b"1c", b"2", b"3"]


def test_delayed_message_due_in_the_past_comes_at_once(open_store: Stores, clock: StoppedClock) -> None:
    store = open_store()
    publish_delayed(store, "t", b"1", due_ms=clock.now_ms - 1)
    tick(store)
    publish_delayed(store, "t", b"0", due_ms=0)  # before what is done already
    store.write_index()
    tick(store)
    assert payloads(store, "t") == [b"1", b"0"]


def test_a_clock_that_is_set_back_repeats_nothing(open_store: Stores, clock: StoppedClock) -> None:
    store = open_store()
    publish_delayed(store, "t", b"1", due_ms=clock.now_ms + 1_000)
    store.write_index()
    clock.now_ms += 1_000
    tick(store)
    clock.now_ms -= 5_000
    publish_delayed(store, "t", b"2", due_ms=clock.now_ms + 1_000)
    store.write_index()
    tick(store)
    assert payloads(store, "t") == [b"1"]
    clock.now_ms += 1_000
    tick(store)
    assert payloads(store, "t") == [b"1", b"2"]
    clock.now_ms += 9_000
    tick(store)
    assert payloads(store, "t") == [b"1", b"2"]


def test_many_that_are_due_at_once_come_in_steps(
    open_store: Stores, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatching, "PER_STEP", 7)
    monkeypatch.setattr(dispatching, "STEP_BYTES", 400)
    monkeypatch.setattr(delayed, "KEYS_PER_STEP", 5)
    store = open_store()
    wanted = [b"%03d" % i for i in range(100)]
    for i, payload in enumerate(wanted):
        publish_delayed(store, "t", payload, due_ms=clock.now_ms + i // 10)
        if i == 50:
            store.write_index()
    clock.now_ms += 100
    assert store.tick()
    assert len(payloads(store, "t")) < 10
    tick(store)
    assert payloads(store, "t") == wanted
    assert store.dispatching.dispatched == sum(store.dispatching.late) == 100


def test_delayed_messages_are_published_in_small_steps(open_store: Stores, clock: StoppedClock) -> None:
    """500 in one step took some 8 ms."""
    store = open_store()
    publish_delayed(store, "t", *([b"x"] * 200), due_ms=clock.now_ms)
    store.tick()
    assert len(payloads(store, "t")) <= 50


@pytest.mark.catalogue("J37")
def test_delayed_messages_use_bounded_memory(open_store: Stores, clock: StoppedClock) -> None:
    store = open_store()
    for i in range(50):
        publish_delayed(store, "t", *([b"x"] * 200), due_ms=clock.now_ms + 10**6 + i)
        store.write_index()
    assert len(store.delayed) == 10_000
    assert not store.delayed._fresh
    assert len(store.delayed._heap) <= 2 * delayed.MOST_STALE


@pytest.mark.catalogue("J38")
@pytest.mark.parametrize(("late_ms", "bound_ms"), [(0, 1), (1, 1), (2, 2), (3, 5), (999, 1_000), (10_000, 10_000)])
def test_how_late_they_are_is_counted_as_how_long_deliveries_take(
    late_ms: int, bound_ms: int, open_store: Stores, clock: StoppedClock
) -> None:
    """In the buckets of the gateway's histogram of deliveries, so that the two can be added up."""
    store = open_store()
    publish_delayed(store, "t", b"x", due_ms=clock.now_ms + 1_000)
    clock.now_ms += 1_000 + late_ms
    tick(store)
    counted = [int(bound == bound_ms) for bound in DELIVERY_BOUNDS_MS]
    assert (store.dispatching.late, store.dispatching.late_ms) == ([*counted, 0], late_ms)


@pytest.mark.catalogue("J38")
def test_each_of_ten_thousand_in_a_second_goes_out_at_the_next_tick(open_store: Stores, clock: StoppedClock) -> None:
    store = open_store()
    begin_ms = clock.now_ms + 1_000
    for step in range(100):
        publish_delayed(store, "t", *([b"x"] * 100), due_ms=begin_ms + 7 * step)
    for _ in range(40):
        clock.now_ms += TICK_MS
        tick(store)
    in_time = sum(store.dispatching.late[: sum(bound <= TICK_MS for bound in DELIVERY_BOUNDS_MS)])
    assert (in_time, sum(store.dispatching.late), pending(store)) == (10_000, 10_000, [])


def test_delayed_message_later_than_any_bound_counts_in_the_last_bucket(
    open_store: Stores, clock: StoppedClock
) -> None:
    store = open_store()
    publish_delayed(store, "t", b"x", due_ms=clock.now_ms + 1_000)
    clock.now_ms += 1_000 + DELIVERY_BOUNDS_MS[-1] + 1
    tick(store)
    assert store.dispatching.late == [*([0] * len(DELIVERY_BOUNDS_MS)), 1]


# --- what it is


def test_a_retained_one_is_retained_when_it_is_due(open_store: Stores, clock: StoppedClock) -> None:
    store = open_store()
    publish(store, "t", b"old", retain=True)
    publish_delayed(store, "t", b"new", due_ms=clock.now_ms + 1_000, flags=RecordFlag.RETAIN)
    assert retained_payloads(store) == {b"t": b"old"}
    clock.now_ms += 1_000
    tick(store)
    assert retained_payloads(store) == {b"t": b"new"}


def test_its_expiry_counts_from_when_it_is_due(open_store: Stores, clock: StoppedClock) -> None:
    store = open_store()
    for i in range(2):
        publish_delayed(store, f"t{i}", b"x", due_ms=clock.now_ms + 60_000 - i, properties=EXPIRES_IN_10_S)
    clock.now_ms += 70_000 - 1  # nobody was there in time
    tick(store)
    (record,) = read_all(store, store.queues.watch("t0"))
    assert record.properties == b"\2\0\0\0\1"
    assert record.flags == RecordFlag.EXPIRES
    assert payloads(store, "t1") == []
    assert (store.dispatching.expired, pending(store)) == (1, [])


def test_a_qos_2_one_is_received_when_it_is_stored_and_only_then(open_store: Stores, clock: StoppedClock) -> None:
    store = open_store()
    change(store, SessionOpened("me", True, 60))
    packet_id = encode_attribute(Attribute.PACKET_ID, b"\5\0")
    due_ms = clock.now_ms + 1_000
    at = publish_delayed(store, "t", b"x", due_ms=due_ms, flags=2, client_id=b"me", attributes=packet_id)
    session = store.sessions.get("me")
    assert session is not None
    assert session.received == {5}
    session.received.clear()
    clock.now_ms += 1_000
    tick(store)
    (record,) = read_all(store, store.queues.watch("t"))
    assert decode_attributes(record.attributes) == {
        Attribute.DUE_MS: due_ms.to_bytes(8, "little"),
        Attribute.FIRST_OFFSET: at.to_bytes(8, "little"),
    }
    assert session.received == set()


# --- listing and taking back


@pytest.mark.parametrize("is_written", [False, True])
def test_a_pending_one_can_be_cancelled_once(open_store: Stores, clock: StoppedClock, is_written: bool) -> None:
    store = open_store()
    due_ms = clock.now_ms + 1_000
    at = publish_delayed(store, "t", b"x", due_ms=due_ms)
    kept = publish_delayed(store, "t", b"y", due_ms=due_ms)
    if is_written:
        store.write_index()
    assert not store.dispatching.cancel(due_ms + 1, at)
    assert store.dispatching.cancel(due_ms, at)
    assert not store.dispatching.cancel(due_ms, at)
    assert pending(store) == [(due_ms, kept, kept)]
    clock.now_ms += 1_000
    tick(store)
    assert payloads(store, "t") == [b"y"]
    assert not store.dispatching.cancel(due_ms, kept)


def test_pending_ones_are_listed_in_pages(open_store: Stores, clock: StoppedClock) -> None:
    store = open_store()
    wanted = []
    for i in range(10):
        due_ms = clock.now_ms + 1_000 * (i % 3)
        at = publish_delayed(store, "t", b"x", due_ms=due_ms + 1)
        wanted.append(DelayedMessage(due_ms + 1, at, at))
        if i == 5:
            store.write_index()
    found: list[DelayedMessage] = []
    after = (0, 0)
    while page := store.delayed.page(*after, 3):
        assert len(page) <= 3
        found += page
        after = page[-1][:2]
    assert found == sorted(wanted)


# --- what must not lose them


@pytest.mark.catalogue("J39", "Q71")
def test_delayed_messages_outlive_retention(
    open_store: Stores, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(retention, "DELAYED_PER_STEP", 3)
    store = open_store(retention_bytes=KEPT_BYTES)
    due_ms = clock.now_ms + 10**9
    offsets = [publish_delayed(store, f"t/{i}", b"%d" % i, due_ms=due_ms + i % 2) for i in range(10)]
    assert store.dispatching.cancel(due_ms, offsets[4])
    for turn in range(3):
        fill(store, 4)
        run_upkeep(store)
        assert store.log.base > offsets[-1]
        assert store.upkeep.rolled == 9 * (turn + 1)
        assert all(each.log_offset > store.log.base for each in pending(store))
    assert sorted(each.first_offset for each in pending(store)) == sorted(set(offsets) - {offsets[4]})
    store = open_store(crash_copy(tmp_path / "data", tmp_path / "copy"), retention_bytes=KEPT_BYTES)
    assert store.dispatching.cancel(due_ms, offsets[6])  # by where it stood at first
    clock.now_ms = due_ms + 1
    tick(store)
    left = [i for i in range(10) if i not in (4, 6)]
    assert [payloads(store, f"t/{i}") for i in left] == [[b"%d" % i] for i in left]
    assert payloads(store, "t/4") == payloads(store, "t/6") == []
    assert (pending(store), store.dispatching.lost) == ([], 0)


def test_after_any_kill_each_is_pending_or_dispatched(open_store: Stores, clock: StoppedClock, tmp_path: Path) -> None:
    store = open_store(index_flush_ms=10**6)
    wanted = [b"%d" % i for i in range(20)]
    for i, payload in enumerate(wanted):
        publish_delayed(store, "t", payload, due_ms=clock.now_ms + i)
    for i in range(20):
        if i % 7 == 3:
            store.write_index()
            store.index.flush()
        copied = open_store(crash_copy(tmp_path / "data", tmp_path / f"copy-{i}"))
        assert payloads(copied, "t") == wanted[:i]
        assert len(pending(copied)) == 20 - i
        tick(store)
        clock.now_ms += 1
        tick(copied)
        assert payloads(copied, "t") == wanted[: min(i + 2, 20)]
        open_store.stop(copied)


def test_delayed_message_without_its_record_is_given_up(
    open_store: Stores, clock: StoppedClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    at = publish_delayed(store, "t", b"x", due_ms=clock.now_ms)
    publish_delayed(store, "t", b"y", due_ms=clock.now_ms)
    store.delayed.set(clock.now_ms, at, at + 8)
    tick(store)
    assert (store.dispatching.lost, pending(store)) == (1, [])
    assert payloads(store, "t") == [b"y"]
    assert "given up" in caplog.text
