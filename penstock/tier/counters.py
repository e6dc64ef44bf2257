"""The queue_offset of each queue's next message: counted here, so that a message keeps the one it was written with.

A queue is that of a topic, `line/7`, or of a first level, `line/#`. In memory and on its way to storage a queue is 16
bytes of its name's hash and its number: 24 MB for a million queues. Those counted lately are in a dict besides.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MOST_RECENT: Final = 100_000  # queues in the dict, some 150 bytes each
_HASH_BYTES: Final = 16
_SCHEMA: Final = pa.schema([("queue", pa.binary(_HASH_BYTES)), ("next", pa.int64())])
Hashes = NDArray[np.bytes_]


def hash_of(queue: bytes) -> bytes:
    """What a queue is called in a snapshot of the counters."""
    return blake2b(queue, digest_size=_HASH_BYTES).digest()


class QueueCounters:
    """The next queue_offset of each queue. What a range takes counts once the range is committed."""

    def __init__(self) -> None:
        self._hashes: Hashes = np.empty(0, f"S{_HASH_BYTES}")  # sorted
        self._next: NDArray[np.int64] = np.empty(0, np.int64)
        self._recent: dict[bytes, int] = {}
        self._taken: dict[bytes, int] = {}  # of the range on its way

    def __len__(self) -> int:
        """How many queues there are in the sorted part, which a snapshot begins with."""
        return len(self._hashes)

    @property
    def taken(self) -> int:
        """How many queues the range on its way has messages of."""
        return len(self._taken)

    def take(self, queues: list[bytes], counts: list[int]) -> list[int]:
        """The queue_offsets of the next messages of some distinct queues: the first one of each."""
        taken, recent = self._taken, self._recent
        unknown = [queue for queue in queues if queue not in taken and queue not in recent]
        if unknown:
            taken.update(zip(unknown, self._look_up(unknown), strict=True))
        firsts = [taken[queue] if queue in taken else recent[queue] for queue in queues]
        taken.update((queue, first + count) for queue, first, count in zip(queues, firsts, counts, strict=True))
        return firsts

    def commit(self) -> int:
        """The range on its way is committed. Returns how many queues it has messages of."""
        settled = len(self._taken)
        self._recent.update(self._taken)
        self._taken = {}
        if len(self._recent) > MOST_RECENT:
            self._merge(self._recent.keys(), self._recent.values())
            self._recent = {}
        return settled

    def forget(self) -> None:
        """The range on its way will be written anew."""
        self._taken = {}

    def raise_to(self, queues: Iterable[bytes], nexts: Iterable[int]) -> None:
        """Take over what is known of some queues; a number that is not above the present one changes nothing."""
        self._merge(queues, nexts)

    def jump_to(self, queues: Iterable[bytes], nexts: Iterable[int]) -> None:
        """As raise_to(), also of queues that were counted lately, while no range is on its way."""
        self._merge(self._recent.keys(), self._recent.values())
        self._recent = {}
        self._merge(queues, nexts)

    def next_of(self, queue: bytes) -> int:
        """The queue_offset of a queue's next message, as far as ranges are committed."""
        return self._recent[queue] if queue in self._recent else self._look_up([queue])[0]

    def snapshot(self) -> bytes:
        """All counters, as an Arrow file that load() reads."""
        self._merge(self._recent.keys(), self._recent.values())
        columns = [_fixed(self._hashes), pa.array(self._next)]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, _SCHEMA) as file:
            file.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
        found: bytes = sink.getvalue().to_pybytes()
        return found

    @classmethod
    def load(cls, data: bytes) -> "QueueCounters":
        """Raises pa.ArrowInvalid if these bytes are no snapshot."""
        counters = cls()
        (batch,) = (pa.ipc.open_file(data).get_batch(0),)
        hashes = batch.column(0).buffers()[1]
        counters._hashes = np.frombuffer(hashes, f"S{_HASH_BYTES}", len(batch))
        counters._next = batch.column(1).to_numpy()
        return counters

    def _look_up(self, queues: list[bytes]) -> list[int]:
        hashes = _hashes(queues)
        if not len(self._hashes):
            return [0] * len(queues)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        found: list[int] = np.where(self._hashes[places] == hashes, self._next[places], 0).tolist()
        return found

    def _merge(self, queues: Iterable[bytes], nexts: Iterable[int]) -> None:
        """Bring numbers into the sorted part; of a queue's the greatest counts."""
        names = list(queues)
        if not names:
            return
        hashes = np.concatenate((self._hashes, _hashes(names)))
        numbers = np.concatenate((self._next, np.fromiter(nexts, np.int64, len(names))))
        order = np.lexsort((numbers, hashes))
        hashes, numbers = hashes[order], numbers[order]
        last = np.append(hashes[1:] != hashes[:-1], True)
        self._hashes, self._next = hashes[last], numbers[last]


def _hashes(queues: list[bytes]) -> Hashes:
    return np.frombuffer(b"".join(map(hash_of, queues)), f"S{_HASH_BYTES}")


def _fixed(hashes: Hashes) -> pa.Array:
    whole = np.ascontiguousarray(hashes)
    return pa.Array.from_buffers(pa.binary(_HASH_BYTES), len(whole), [None, pa.py_buffer(whole)])
