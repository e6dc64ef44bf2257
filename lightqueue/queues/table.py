"""The table of light queues: finds, watches, holds, reads and stores them (their keys: lightqueue/queues/layout.py)."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from lightqueue.queues._queues import (
    ENTRY_BYTES,
    FILTER,
    LEVEL,
    LIVE,
    PACK_ENTRIES,
    TOPIC,
    Dispatcher,
    Queue,
    Topic,
    pack_entry,
    read_pack,
    read_tail,
    read_tails,
    tagged_pack,
    tagged_run_in_pack,
    tagged_run_in_tail,
    tagged_tail,
)
from lightqueue.queues.held_filters import HeldFilters
from lightqueue.queues.holes import Holes
from lightqueue.queues.layout import (
    NEXT_ID_KEY,
    Entries,
    entry_key,
    last_pack,
    pack_count,
    queue_key,
)
from lightqueue.queues.live_queues import LiveQueues
from lightqueue.queues.matching import any_of, has_wildcard, overlap
from lightqueue.queues.resident import Residents
from store.log.api import LogRecords
from store.log.index import Index
from store.namespaces import SERVER_LEVEL
from store.records._records import Records, marked
from store.settings import StoreSettings

KIND_NAMES = {TOPIC: "topic", LEVEL: "level", FILTER: "filter", LIVE: "live"}
LIVE_ID_BIT = 1 << 63
STEP_COST = 500  # queues with few entries written to the index in one step: some 1.5 ms
ENTRIES_PER_COST = 50  # so many more entries of one queue cost as much as one more queue
BACKLOG_SHARE = 128  # one in so many of the pending entries beyond index_flush_entries is added to a step
DIRTY_SHARE = 8  # one in so many of the queues beyond half of that is added: each takes memory until it is written


class QueueTable:
    """Owner of all queues of a store."""

    def __init__(
        self, log: LogRecords, index: Index, settings: StoreSettings, apply: Callable[[tuple[Any, ...]], None]
    ) -> None:
        self._log = log
        self._index = index
        self._settings = settings
        self.apply = apply
        self.dispatcher = Dispatcher(self, settings.remembered_topics)
        self._entries = Entries(index, settings.remembered_topics)
        self._residents = Residents(self._entries, settings, self.dispatcher, self.match)
        self.is_live_only = any_of(settings.live_only)
        """Whether messages of a topic are stored with LIVE_ONLY in their flags."""
        self.holes = Holes(log, self)
        self._edits: list[Callable[[], None]] = []  # changes for the index's next write, except entries
        self._next_id = int.from_bytes(index.get(NEXT_ID_KEY) or b"\1", "big")
        self._next_live_id = LIVE_ID_BIT
        self.held = HeldFilters(index, self._entries, self.dispatcher, self.edit)
        self.live = LiveQueues(index, self.dispatcher, settings.live_tail_entries, self.edit)
        self.edit(partial(index.delete_range, entry_key(LIVE_ID_BIT, 0), b"f"))

    # --- called by the dispatcher

    def load_topic(self, name: bytes) -> Topic:
        return self._residents.load(name)

    def stored_topic(self, name: bytes) -> Queue:
        return self._entries.load(TOPIC, name)

    def way(self, name: bytes) -> int:
        return self._residents.way(name)

    def match(self, name: bytes) -> list[Queue]:
        topic_name = name.decode()
        return self.held.trie.match(topic_name) + self.live.trie.match(topic_name)

    def allot_id(self, queue: Queue) -> int:
        if queue.kind == LIVE:
            self._next_live_id += 1
            return self._next_live_id
        return self._allot_stored_id()

    def _allot_stored_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    # --- finding queues

    def topic_queue(self, name: bytes) -> Queue:
        """A topic's own queue, which may be empty."""
        return self._residents.topic(name).own

    def stored(self, topic_filter: str) -> Queue | None:
        """The queue with the history of a filter, or None if the filter never had one."""
        if not has_wildcard(topic_filter):
            return self.topic_queue(topic_filter.encode())
        level = level_of(topic_filter)
        return self._residents.level(level.encode()) if level is not None else self.held.get(topic_filter)

    def kept_since(self, topic_filter: str) -> int | None:
        """log_offset from which stored() has all matches that are kept; None if the filter has no queue."""
        if not has_wildcard(topic_filter) or level_of(topic_filter) is not None:
            return 0
        return self.held.born(topic_filter)

    def watch(self, topic_filter: str) -> Queue:
        """A queue to follow: each match of `topic_filter` from now on gets an entry, and the entry an event."""
        queue = None if self._may_be_live(topic_filter) else self.stored(topic_filter)
        if queue is None:
            queue = self.live.watched(topic_filter)
        queue.watchers += 1
        return queue

    def watch_stored(self, topic_filter: str) -> Queue | None:
        """The stored queue of a filter whose watch() returns a LIVE queue because some matches are live-only; else
        None.
        """
        queue = self.stored(topic_filter) if self._may_be_live(topic_filter) else None
        if queue is not None:
            queue.watchers += 1
        return queue

    def watch_again(self, topic_filter: str, kind: int, next_offset: int) -> tuple[Queue, bool]:
        """A queue that was watched in another process, where it ended at `next_offset`; whether it has all of that."""
        queue = None if kind == LIVE else self.stored(topic_filter)
        is_whole = queue is not None and queue.next_offset >= next_offset
        if queue is None:
            queue = self.live.watched(topic_filter)
            if not queue.watchers:
                queue.ends_at(next_offset)
        queue.watchers += 1
        return queue, is_whole

    def _may_be_live(self, topic_filter: str) -> bool:
        """Whether a topic exists that the filter matches and that is live-only."""
        if topic_filter.split("/", 1)[0] == SERVER_LEVEL:
            return True
        return any(overlap(topic_filter, other) for other in self._settings.live_only)

    def unwatch(self, queue: Queue) -> None:
        queue.watchers -= 1
        if queue.kind == LIVE and not queue.watchers:
            self.live.drop(queue)

    def spill(self, queue: Queue) -> None:
        """Make a LIVE queue keep its entries for slow readers from now on."""
        queue.spills = True

    def needed_from(self, queue: Queue, queue_offset: int) -> None:
        """No reader needs the entries of a LIVE queue before this one."""
        queue.floor = queue_offset

    # --- filters that durable sessions hold

    def hold(self, topic_filter: str, log_offset: int, holders: int = 1) -> None:
        """Note that durable sessions took this filter: from `log_offset` on its matches are kept in a queue."""
        queue = self.stored(topic_filter)
        if queue is None:
            queue = self.held.make(topic_filter, self._allot_stored_id(), log_offset)
        queue.holders += holders

    def release(self, topic_filter: str) -> None:
        queue = self.stored(topic_filter)
        if queue is not None:
            queue.holders -= 1

    def end_of(self, topic_filter: str) -> int:
        """queue_offset at which the stored queue of a filter ends; 0 if there is none."""
        queue = self.stored(topic_filter)
        return queue.next_offset if queue is not None else 0

    def drop(self, topic_filter: str, log_offset: int) -> None:
        """Delete a filter's queue and its entries, as the record at `log_offset` says.

        If the queue still has holders, the records that released it are lost: for those it begins anew.
        """
        queue = self.held.drop(topic_filter)
        if queue is not None and queue.holders:
            self.hold(topic_filter, log_offset, queue.holders)

    # --- RocksDB

    def edit(self, change: Callable[[], None]) -> None:
        """Add a change for the index's next write, in the order of these calls; it is repeated if that write fails."""
        self._edits.append(change)

    @property
    def has_edits(self) -> bool:
        """True if there are changes for the index that belong to no record."""
        return bool(self._edits)

    def stage(self, until: int) -> int | None:
        """Stage some of the queues' entries in memory for the index's next write; call written() after it.

        All entries pending since before `until` are staged, but no more than a short step takes. Returns a log_offset:
        no entry older than it is still missing after the write; None if none is missing.
        """
        cost = self._step_cost()
        spilling = self.live.shorten(STEP_COST)
        for change in self._edits:  # after all edits were added, and before the puts
            change()
        self._index.put(NEXT_ID_KEY, self._next_id.to_bytes(8, "big"))
        puts: list[tuple[bytes, bytes]] = []
        cost = self.live.stage(spilling, cost, ENTRIES_PER_COST, puts)
        positions_of = self._entries.neighbours.positions
        staged, oldest = self.dispatcher.missing.stage(cost, until, ENTRIES_PER_COST, positions_of)
        put = self._index.put
        for key, value in puts + staged:
            put(key, value)
        return oldest

    def _step_cost(self) -> int:
        """The size of a step. It grows with the backlog, above all if new queues come faster than a usual step writes
        them.
        """
        expected = self._settings.index_flush_entries
        entries, queues = self.dispatcher.pending - expected, len(self.dispatcher.missing) - expected // 2
        return STEP_COST + max(0, entries) // BACKLOG_SHARE + max(0, queues) // DIRTY_SHARE

    def written(self) -> None:
        """Note that the index has written what was staged."""
        self._edits.clear()
        self._entries.neighbours.remember(self.dispatcher.missing.newest)
        queues = self.dispatcher.written()
        self.live.written()
        self._residents.evict(STEP_COST + queues)

    def evict_idle(self) -> None:
        """Evict topics that are not in use from memory; call it now and then."""
        self._residents.evict(STEP_COST)

    # --- reading

    def first_offset(self, queue: Queue) -> int:
        """queue_offset of the oldest entry that is kept."""
        return self._next_kept(queue, 0)

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records:
        """Records of a queue from queue_offset `start` on; their pointers are valid until the next append.

        Entries that retention dropped are skipped: see `first` of the result. Lost records are skipped as well, and the
        record after them has their number: see lost_before() of the result.
        """
        lost = 0
        while start < queue.next_offset:
            try:
                if start >= queue.tail_first_offset:
                    records = read_tail(self._log.memory, queue, start, max_records, max_bytes)
                else:
                    found = self._entries.pack_at(queue, start, min(max_records, PACK_ENTRIES), max_bytes)
                    if found is None:
                        start = self._next_kept(queue, start)
                        continue
                    records = read_pack(self._log.memory, found[1], found[0], start, max_records, max_bytes)
                return marked(records, self.holes.before(queue, start)) if self.holes.are_known else records
            except LookupError as error:
                start, passed = self.holes.skip(queue, start, error)
                lost += passed
                if lost:
                    self.holes.note(queue, start, lost)
        return Records(start)

    def read_many(self, queues: list[Queue], starts: list[int], max_records: int, max_bytes: int) -> list[Records]:
        """Like read() for each of some queues."""
        if self.holes.are_known:
            return [self.read(queues[i], starts[i], max_records, max_bytes) for i in range(len(queues))]
        ranges = read_tails(self._log.memory, queues, starts, max_records, max_bytes)
        return [
            self.read(queues[i], starts[i], max_records, max_bytes) if records is None else records
            for i, records in enumerate(ranges)
        ]

    def read_tagged(
        self, queue: Queue, start: int, tag: bytes, stop: int, most_entries: int, max_bytes: int
    ) -> tuple[Records, int, int, int]:
        """Records of a queue with a tag: as _queues.tagged_tail(), from the pack or the tail that contains `start`."""
        while start < queue.next_offset:
            if start >= queue.tail_first_offset:
                return tagged_tail(self._log.memory, queue, start, tag, stop, most_entries, max_bytes)
            found = self._entries.pack_at(queue, start, min(most_entries, PACK_ENTRIES))
            if found is not None:
                first, pack = found
                return tagged_pack(self._log.memory, pack, first, start, tag, stop, most_entries, max_bytes)
            start = self._next_kept(queue, start)
        return Records(start), start, 0, 0

    def tagged_run(self, queue: Queue, start: int, tags: list[bytes], most_entries: int) -> tuple[int, int]:
        """(at, until): the first entries in a row from queue_offset `start` on that have the hash of one of these tags.

        Looks at `most_entries`, and at one pack. at == until: none of them has; `at` is where to look on. An entry that
        retention dropped is not passed over: it may have had one.
        """
        if start >= queue.next_offset:
            return start, start
        if start >= queue.tail_first_offset:
            return tagged_run_in_tail(queue, start, tags, most_entries)
        found = self._entries.pack_at(queue, start, min(most_entries, PACK_ENTRIES))
        if found is None:
            return start, start + 1
        return tagged_run_in_pack(found[1], found[0], start, tags, most_entries)

    def _next_kept(self, queue: Queue, start: int) -> int:
        """The first queue_offset at or after `start` that still has an entry."""
        found = self._entries.first_kept(queue, start)
        return queue.tail_first_offset if found is None else found

    def log_offset_at(self, queue: Queue, queue_offset: int) -> int:
        """log_offset of one entry; 0 if it was trimmed."""
        found = queue.entry(queue_offset)
        return self._entries.log_offset_at(queue, queue_offset) if found is None else found

    def stored_entries(self, queue: Queue, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Entries in [start, end) as stored in RocksDB: the first one's queue_offset, and 20 bytes of each."""
        while start < end:
            found = self._entries.pack_at(queue, start)
            if found is None:
                start = max(start + 1, self._next_kept(queue, start))  # trimmed
                continue
            first, pack = found
            stop = min(end, first + pack_count(pack))
            yield start, pack[(start - first) * ENTRY_BYTES : (stop - first) * ENTRY_BYTES]
            start = stop

    def position_of(self, queue: Queue, log_offset: int, low: int = 0) -> int:
        """The first queue_offset whose entry is at or after `log_offset`."""
        first, end = self._entries.around(queue, log_offset)
        return self._bisect(queue, max(low, first), max(low, end), lambda found: found >= log_offset)

    def position_at(self, queue: Queue, timestamp_ms: int) -> int:
        """The first queue_offset whose message was stored at or after a time."""
        first = self._log.first

        def late_enough(found: int) -> bool:
            return found >= first and self._log.memory.timestamp_ms(found) >= timestamp_ms

        return self._bisect(queue, 0, queue.next_offset, late_enough)

    def _bisect(self, queue: Queue, low: int, high: int, reached: Callable[[int], bool]) -> int:
        while low < high:
            middle = (low + high) // 2
            if reached(self.log_offset_at(queue, middle)):
                high = middle
            else:
                low = middle + 1
        return low

    # --- for inspection

    def counts(self) -> dict[str, int]:
        """Number of queues in memory by kind; `remembered`: topics of which the queue's end is, or was, remembered."""
        numbers = {TOPIC: len(self.dispatcher.topics), LEVEL: len(self._residents.levels)}
        numbers |= {FILTER: len(self.held), LIVE: len(self.live)}
        named = {KIND_NAMES[kind]: number for kind, number in numbers.items()}
        return named | {"remembered": len(self.dispatcher.ends)}

    def names(self) -> Iterator[tuple[int, bytes, int]]:
        """(kind, name, id) of every stored queue."""
        for key, meta in self._index.scan(b"q", b"r"):
            yield key[1] - ord("0"), key[2:], int.from_bytes(meta[:8], "big")

    def topic_names(self, prefix: bytes, after: bytes = b"") -> Iterator[bytes]:
        """The topics with a stored queue that begin with `prefix` and come after `after`, in order."""
        key = queue_key(TOPIC, prefix)
        start = max(key, queue_key(TOPIC, after) + b"\0") if after else key
        for found, _ in self._index.scan(start, key + b"\xff"):  # \xff is in no UTF-8 text
            yield found[2:]

    def newest_entry(self, levels: int) -> int:
        """log_offset of the newest stored entry of the first `levels` first levels; 0 if there is none."""
        newest = 0
        for _, meta in islice(self._index.scan(queue_key(LEVEL, b""), queue_key(LEVEL + 1, b"")), levels):
            last = last_pack(self._index, int.from_bytes(meta[:8], "big"))
            if last is not None:
                newest = max(newest, pack_entry(last[1], pack_count(last[1]) - 1))
        return newest

    def stored_queues(self) -> Iterator[Queue]:
        """Every stored queue, as in RocksDB."""
        for kind, name, _ in self.names():
            yield self._entries.load(kind, name)


def level_of(topic_filter: str) -> str | None:
    """`line` for the filter `line/#`, whose matches are those of a first level; None for any other filter."""
    level, _, rest = topic_filter.partition("/")
    return level if rest == "#" and not has_wildcard(level) else None


def filter_of(queue: Queue) -> str:
    """The topic filter whose matches a queue has."""
    return f"{queue.name.decode()}/#" if queue.kind == LEVEL else queue.name.decode()
