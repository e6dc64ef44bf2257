"""Ranges of queues that several want, against a plain dictionary of their entries."""

import random
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue
from notify.remote.range_cache import RangeCache
from store.records._records import Records
from tests.support.stores import publish, small


@pytest.fixture
def queue(tmp_path: Path) -> tuple[MessageStore, Queue]:
    store = MessageStore(small(tmp_path))
    queue = store.queues.watch("t/#")
    publish(store, "t/1", *(b"%d" % i for i in range(200)))
    return store, queue


def test_a_range_is_found_from_anywhere_in_it(queue: tuple[MessageStore, Queue]) -> None:
    store, of = queue
    cache = RangeCache(1 << 20)
    ranges = {start: store.read(of, start, 5, 1 << 20) for start in (40, 10, 20, 45)}
    for start, records in ranges.items():
        cache.add(100, [(of, start, records)])
    for position in range(60):
        whose = next((start for start in ranges if start <= position < start + 5), None)
        assert cache.get(of, position) is (ranges[whose] if whose is not None else None), position
    assert (cache.hits, cache.misses) == (20, 40)
    store.close()


def test_the_oldest_go_first_and_no_more_is_kept_than_allowed(queue: tuple[MessageStore, Queue]) -> None:
    store, of = queue
    cache = RangeCache(10_000)
    rng = random.Random(1)
    added: list[tuple[int, Records]] = []
    for start in rng.sample(range(195), 100):
        added.append((start, store.read(of, start, 1, 1 << 20)))
        cache.add(400, [(of, *added[-1])])
        assert cache.size_bytes <= 10_000
        kept = added[-10:]
        assert all(cache.get(of, start) is records for start, records in kept)
        assert all(cache.get(of, start) is None for start, _ in added[:-10])
    cache.clear()
    assert (cache.size_bytes, cache.get(of, added[-1][0])) == (0, None)
    store.close()


def test_range_cache_drops_queues_that_nobody_follows(queue: tuple[MessageStore, Queue]) -> None:
    store, of = queue
    cache = RangeCache(2_000)
    cache.add(100, [(of, 0, store.read(of, 0, 5, 1 << 20))])
    cache.forget(of)
    assert cache.get(of, 0) is None
    for start in range(10):  # what is left of it goes as well
        cache.add(500, [(of, start, store.read(of, start, 1, 1 << 20))])
    assert cache.size_bytes <= 2_000
    store.close()


def test_range_cache_keeps_one_frame_larger_than_its_bound(queue: tuple[MessageStore, Queue]) -> None:
    store, of = queue
    cache = RangeCache(1_000)
    cache.add(10_000, [(of, 0, store.read(of, 0, 3, 1 << 20))])
    assert cache.get(of, 0) is not None
    cache.add(100, [(of, 3, store.read(of, 3, 3, 1 << 20))])
    assert cache.get(of, 0) is None
    assert cache.get(of, 3) is not None
    store.close()
