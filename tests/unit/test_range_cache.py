"""What a gateway keeps of what it read: bounded in bytes, the oldest goes first."""

import pytest

from lightqueue._queues import TOPIC, Queue
from notify.range_cache import RangeCache
from store._records import Records, ranges_from
from tests.stores import batch_of

LIMIT_BYTES = 1_000
FRAME_BYTES = 300
COUNT = 3


@pytest.fixture
def cache() -> RangeCache:
    return RangeCache(LIMIT_BYTES)


@pytest.fixture
def queue() -> Queue:
    return Queue(b"t", TOPIC, 0, 0)


def records(first: int) -> Records:
    (found,) = ranges_from(memoryview(bytes(batch_of(*[b"x"] * COUNT))), [(first, COUNT)])
    return found


def test_a_range_is_found_by_what_it_was_asked_for_and_by_what_is_in_it(cache: RangeCache, queue: Queue) -> None:
    kept = records(10)
    cache.add(FRAME_BYTES, [(queue, 9, kept)])
    assert [cache.get(queue, start) for start in range(8, 14)] == [None, kept, kept, kept, kept, None]
    assert (cache.hits, cache.misses) == (4, 2)


def test_it_never_keeps_more_than_its_limit(cache: RangeCache, queue: Queue) -> None:
    for first in range(0, 300, COUNT):
        cache.add(FRAME_BYTES, [(queue, first, records(first))])
        assert cache.size_bytes <= LIMIT_BYTES
    kept = [first for first in range(0, 300, COUNT) if cache.get(queue, first) is not None]
    assert kept == [291, 294, 297]


def test_one_frame_may_be_larger_so_that_it_can_be_delivered(cache: RangeCache, queue: Queue) -> None:
    cache.add(10 * LIMIT_BYTES, [(queue, 0, records(0))])
    assert cache.get(queue, 0) is not None
    cache.add(FRAME_BYTES, [(queue, 3, records(3))])
    assert (cache.get(queue, 0), cache.size_bytes) == (None, FRAME_BYTES)


def test_what_nobody_follows_is_forgotten(cache: RangeCache, queue: Queue) -> None:
    other = Queue(b"u", TOPIC, 0, 0)
    cache.add(FRAME_BYTES, [(queue, 0, records(0)), (other, 0, records(0))])
    cache.forget(queue)
    assert cache.get(queue, 0) is None
    assert cache.get(other, 0) is not None
    cache.clear()
    assert (cache.get(other, 0), cache.size_bytes) == (None, 0)
