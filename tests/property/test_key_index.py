"""The index of keys is a function of the log: however it was written, lost and written again, and cut into steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightqueue.queues._queues import Dispatcher, KeyPart, key_hash, places_in_order
from lightqueue.queues.keys import PART_BITS, KeyIndex
from lightqueue.queues.table import QueueTable
from store.log.index import Index
from tests.support.stores import Stores

KEYS = [b"key-%d" % number for number in range(12)]
END = 2**63 - 1
Keyed = tuple[int, bytes]  # log_offset, key


def random_log(rng: random.Random) -> list[Keyed]:
    """Messages with keys in a log of a few parts, some of them empty; one key has far more than others."""
    found, log_offset = [], 64
    for _ in range(rng.randrange(1, 5)):
        for _ in range(rng.choice((1, 5, 3_000))):
            log_offset += rng.choice((48, 160, 4_096))
            found.append((log_offset, rng.choice(KEYS) if rng.random() < 0.5 else KEYS[0]))
        log_offset += rng.choice((0, 1, 3)) << PART_BITS
    return found


class Keys:
    """A KeyIndex over an Index that may go on from an earlier state, as after SIGKILL."""

    def __init__(self, folder: Path, dispatcher: Dispatcher) -> None:
        self.index = Index(folder, 1 << 20)
        self.dispatcher = dispatcher
        self.keys = KeyIndex(self.index, dispatcher)

    def note(self, keyed: list[Keyed]) -> None:
        """As the dispatcher does."""
        for log_offset, key in keyed:
            if log_offset >= self.dispatcher.keys_from:
                part = self.dispatcher.key_part(log_offset >> PART_BITS)
                written = part.written
                part.load((key_hash(key) << 32 | log_offset % (1 << PART_BITS)).to_bytes(8, "little"))
                part.written = written
                self.dispatcher.keys_from = log_offset + 1

    def write(self) -> None:
        self.keys.stage()
        self.index.write(1, 1)
        self.keys.written()

    def stored(self) -> list[tuple[bytes, bytes]]:
        return list(self.index.scan(b"k", b"m"))

    def places(self, key: bytes, before: int = END) -> list[int]:
        return list(self.keys.candidates(key, before))


OpenKeys = Callable[[str], Keys]


@pytest.fixture
def open_keys(tmp_path: Path) -> Iterator[OpenKeys]:
    stores = Stores(tmp_path / "data")
    opened: list[Keys] = []

    def open_(name: str) -> Keys:
        if opened:
            opened[-1].index.close()
        store = stores(tmp_path / f"store-{len(opened)}")
        opened.append(Keys(tmp_path / name, Dispatcher(QueueTable(store.log, store.index, store.settings, print))))
        return opened[-1]

    yield open_
    opened[-1].index.close()
    stores.close()


@pytest.mark.parametrize("seed", range(20))
def test_key_index_agrees_with_the_log_however_it_was_written(seed: int, open_keys: OpenKeys) -> None:
    rng = random.Random(seed)
    log = random_log(rng)
    keys = open_keys("a")
    at = applied = 0
    first = 0
    while at < len(log):
        step = rng.choice((1, 10, 2_000))
        keys.note(log[at : at + step])
        at = min(at + step, len(log))
        if rng.random() < 0.5:
            keys.write()
            applied = max(applied, at)
        if rng.random() < 0.1:  # killed: what was written is there, and replay begins at or before that
            keys = open_keys("a")
            at = rng.randrange(applied + 1)
        if rng.random() < 0.05:
            first = log[rng.randrange(at)][0] if at else 0
            keys.keys.trim(first)
            keys.write()
            applied = max(applied, at)
        if at >= applied:
            check(rng, keys, [each for each in log[:at] if each[0] >= first])
    for _ in range(6):
        keys.write()
    found = [each for each in keys.stored() if part_of(each[0]) >= first >> PART_BITS]
    fresh = open_keys("fresh")
    fresh.note(log)
    for _ in range(6):
        fresh.write()
    assert found == [each for each in fresh.stored() if part_of(each[0]) >= first >> PART_BITS]


def part_of(key: bytes) -> int:
    number = int.from_bytes(key[1:9], "big")
    return number if key.startswith(b"k") else number >> PART_BITS


def check(rng: random.Random, keys: Keys, log: list[Keyed]) -> None:
    kept = log[0][0] if log else 0
    for key in rng.sample(KEYS, 3):
        before = rng.choice((END, rng.choice(log)[0] if log else 0))
        mine = [place for place, each in log if each == key and place < before]
        assert [place for place in keys.places(key, before) if place >= kept] == mine[::-1]


@pytest.mark.parametrize("seed", range(20))
def test_items_in_order_are_sorted_integers(seed: int) -> None:
    rng = random.Random(seed)
    items = [rng.randrange(1 << 32) << 32 | place for place in range(0, 48 * rng.choice((0, 1, 100, 5_000)), 48)]
    items = [item | 7 << 61 for item in items] if seed % 2 else items
    part = KeyPart(3)
    part.load(b"".join(item.to_bytes(8, "little") for item in items))
    pieces = part.in_order(100)
    found = b"".join(piece for _, piece in pieces)
    assert found == b"".join(item.to_bytes(8, "little") for item in sorted(items))
    assert [first for first, _ in pieces] == sorted(items)[::100]
    for item in rng.sample(items, min(5, len(items))):
        hashed, before = item >> 32, part.start + rng.randrange(1 << 20)
        mine = [part.start + each % (1 << 32) for each in items if each >> 32 == hashed]
        expected = [place for place in mine[::-1] if place < before]
        assert part.places(hashed, before, 10**6) == expected
        assert places_in_order(found, 3, hashed, before) == expected
