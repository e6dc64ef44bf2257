"""Which messages have a key: hashes of keys and where they are, in RocksDB over the log.

Keys in RocksDB:  k <log_offset / 2^28: 8> <hash of the key 8> <log_offset 8> → nothing       all big-endian

So what has one key in 256 MiB of the log lies together, the newest parts are looked at first, and what retention drops
is a range. A hash says where to look; whoever looks compares the key itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import islice

from lightqueue._queues import key_hash
from store.index import Index

KEY_PREFIX = b"k"
BUCKET_BITS = 28
KEYS_PER_STEP = 1_000  # what stage() hands to the index at a time: some 1 ms
BACKLOG_SHARE = 128  # one part in this many of what is not in the index goes as well
END = (1 << 64) - 1


def index_key(bucket: int, hashed: int, log_offset: int) -> bytes:
    return KEY_PREFIX + bucket.to_bytes(8, "big") + hashed.to_bytes(8, "big") + log_offset.to_bytes(8, "big")


def _log_offset(key: bytes) -> int:
    return int.from_bytes(key[17:], "big")


class KeyIndex:
    """Owner of what the index has of keys. `pending` is what it has not, oldest first; the dispatcher adds to it."""

    def __init__(self, index: Index, pending: deque[bytes]) -> None:
        self._index = index
        self._pending = pending
        self._staged = 0

    def stage(self, until: int) -> int | None:
        """Hand some of what is pending to the index, for its next write; then call written().

        Returns a log_offset: nothing that is still missing then is older; None if nothing is.
        """
        most = KEYS_PER_STEP + len(self._pending) // BACKLOG_SHARE
        keys = list(islice(self._pending, most))
        if keys and _log_offset(keys[-1]) >= until:
            del keys[bisect_left(keys, until, key=_log_offset) :]
        self._staged = len(keys)
        keys.sort()  # RocksDB takes those that lie near each other in half the time
        self._index.put_all(keys, b"")
        return _log_offset(self._pending[self._staged]) if self._staged < len(self._pending) else None

    def written(self) -> None:
        """The index has what was staged."""
        for _ in range(self._staged):
            self._pending.popleft()
        self._staged = 0

    def trim(self, first: int) -> None:
        """Forget what points before log_offset `first`, but for the part of the log that it is in."""
        self._index.delete_range(index_key(0, 0, 0), index_key(first >> BUCKET_BITS, 0, 0))

    def candidates(self, key: bytes, before: int) -> Iterator[int]:
        """log_offsets before `before` where a message with this key may be, newest first."""
        hashed = key_hash(key)
        wanted = hashed.to_bytes(8, "big")
        for each in reversed(self._pending):
            if each[9:17] == wanted and _log_offset(each) < before:
                yield _log_offset(each)
        if self._pending:
            before = min(before, _log_offset(self._pending[0]))
        if before:
            yield from self._written_candidates(hashed, before - 1)

    def _written_candidates(self, hashed: int, newest: int) -> Iterator[int]:
        wanted = hashed.to_bytes(8, "big")
        bucket = newest >> BUCKET_BITS
        while (found := self._index.at_or_before(index_key(bucket, hashed, newest))) is not None:
            key = found[0]
            if not key.startswith(KEY_PREFIX):
                return
            there = int.from_bytes(key[1:9], "big")
            if there == bucket and key[9:17] == wanted:
                newest = _log_offset(key) - 1
                yield newest + 1
            elif there < bucket:
                bucket, newest = there, END
            elif bucket:
                bucket, newest = bucket - 1, END
            else:
                return
