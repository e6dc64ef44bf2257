"""Compiled leaf: one pass over appended records that gives each matching queue its 20-byte entry, and range reads.

Policy (which queues exist, what they are called, what is kept) is in lightqueue.queues.table.
"""

from collections import deque
from os import urandom

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from store.records._records cimport (
    ATTRIBUTE_COUNTED, ATTRIBUTE_DUE_MS, ATTRIBUTE_KEY, ATTRIBUTE_PACKET_ID, ATTRIBUTE_TAG, FLAG_CARRIED, FLAG_DELAYED, FLAG_LIVE_ONLY, FLAG_QOS, FLAG_RETAIN,
    HEADER_BYTES,
    LogMemory, Part, RecordHeader, Records,
    TYPE_BATCH, TYPE_MESSAGE, as_seen, as_tuple, attributes_of, client_id_of, marked, topic_of,
)

include "parts/_work.pxi"

ENTRY_BYTES = sizeof(Entry)
assert sizeof(Entry) == 20

cpdef enum:                      # Python sees them as well
    PACK_ENTRIES = 1024         # most entries under one key

cdef enum:
    KIND_TOPIC = 0
    KIND_LEVEL = 1
    KIND_LIVE = 3
    LOOK_AHEAD = 32             # records
    FAR_ENDS = 1 << 15          # so many are more than a processor has at hand

TOPIC, LEVEL, FILTER, LIVE = 0, 1, 2, 3
cdef list NO_QUEUES = []        # shared by all topics that no filter matches


cdef class Queue:
    """Positions in the log, in order. A LIVE queue exists in memory only, for as long as someone watches it."""

    def __init__(self, bytes name, int kind, uint64_t id=0, uint64_t next_offset=0, uint64_t last_log_offset=0):
        self.name = name
        self.kind = kind
        self.id = id
        self.next_offset = self.tail_first = next_offset
        self.last_log_offset = last_log_offset

    def __dealloc__(self):
        free(self.tail)

    def be_born(self, uint64_t id, uint64_t log_offset):
        """Get an id before the first entry; what stands at or before `log_offset` will not be one."""
        self.id = id
        self.last_log_offset = log_offset

    def ends_at(self, uint64_t next_offset):
        """Another process has the queue, and this is where it ends now."""
        self.next_offset = self.tail_first = next_offset

    @property
    def tail_first_offset(self):
        """queue_offset of the oldest entry in memory."""
        return self.tail_first

    @property
    def idle(self):
        """All entries are in RocksDB, and nothing watches the queue."""
        return not self.dirty_since and not self.watchers and not self.holders

    @property
    def oldest_missing(self):
        """A log_offset: no entry that RocksDB does not have is older. 0 if it has all."""
        return self.dirty_since

    cdef int push(self, uint64_t log_offset, uint32_t size, uint64_t tag_hash) except -1:
        cdef Entry *moved
        cdef uint32_t wanted
        if self.tail_count == self.tail_capacity:
            # By a half to all of it: queues that get the same messages do not all grow at the same one.
            wanted = self.tail_capacity + max(2, self.tail_capacity * (32 + (self.id & 31)) // 64)
            moved = <Entry *>realloc(self.tail, wanted * sizeof(Entry))
            if moved == NULL:
                raise MemoryError
            self.tail = moved
            self.tail_capacity = wanted
        self.tail[self.tail_count] = Entry(log_offset, size, tag_hash)
        self.tail_count += 1
        self.next_offset += 1
        self.last_log_offset = log_offset
        return 0

    def entry(self, uint64_t queue_offset):
        """log_offset of an entry in the tail, or None if it is older than that."""
        if queue_offset < self.tail_first or queue_offset >= self.next_offset:
            return None
        return self.tail[queue_offset - self.tail_first].log_offset

    cdef object place(self, uint64_t log_offset):
        """queue_offset of the entry in the tail that has this log_offset, or None."""
        cdef uint32_t low = 0, high = self.tail_count, middle
        while low < high:
            middle = (low + high) >> 1
            if self.tail[middle].log_offset < log_offset:
                low = middle + 1
            else:
                high = middle
        return self.tail_first + low if low < self.tail_count and self.tail[low].log_offset == log_offset else None

    def stage(self, uint32_t most, list puts not None):
        """Add keys and values for RocksDB of the `most` oldest entries of the tail; how many these are."""
        cdef uint32_t at = 0, n
        cdef uint32_t end = min(most, self.tail_count)
        if not self.tail_first and self.kind <= KIND_LEVEL:
            puts.append((queue_key(self.kind, self.name), queue_value(self.id, 0)))
        while at < end:
            n = min(<uint32_t>PACK_ENTRIES, end - at)
            puts.append((entry_key(self.id, self.tail_first + at), packed(self.tail + at, n)))
            at += n
        return end

    def let_go(self, uint32_t count):
        """Of a LIVE queue the `count` oldest entries of the tail are in RocksDB now."""
        self.discard(min(count, self.tail_count))

    def drop_oldest(self, uint64_t keep):
        """Forget the tail's entries that no reader needs, and all but the newest `keep`."""
        cdef uint64_t going = max(self.floor, self.tail_first) - self.tail_first
        going = min(going, <uint64_t>self.tail_count)
        if self.tail_count - going > keep:
            going = self.tail_count - keep
        self.discard(<uint32_t>going)
        if not self.tail_count:
            self.dirty_since = 0

    cdef void discard(self, uint32_t n) noexcept:
        self.tail_first += n
        self.tail_count -= n
        if self.tail_count:
            memmove(self.tail, self.tail + n, self.tail_count * sizeof(Entry))
        else:
            free(self.tail)
            self.tail = NULL
            self.tail_capacity = 0


cdef class Topic:
    """A topic name and the queues that its messages go to."""

    def __init__(self, bytes name, Queue own, Queue level):
        self.name = name
        self.own = own
        self.level = level
        self.filters = NO_QUEUES


cdef class Way:
    """Where messages go besides their topics' own queues; many topics have the same."""

    cdef readonly Queue level
    cdef readonly list filters

    def __init__(self, Queue level not None, list filters not None):
        self.level = level
        self.filters = filters


cdef class Dispatcher:
    """Gives appended records to their queues. `owner` answers what the pass itself does not know:

    owner.load_topic(name) -> Topic, owner.stored_topic(name) -> its own Queue as it is stored, owner.match(name) -> list
    of filter Queues, owner.way(name) -> a number in `ways` for this generation, owner.apply(record as a tuple) for
    records that change state, owner.allot_id(queue) -> id for a queue's first entry.

    A topic is an End, and becomes a Topic once somebody wants its queue, or it gets a second message before RocksDB has
    the first.
    """

    cdef object owner
    cdef readonly dict topics           # name -> Topic
    cdef readonly Ends ends             # of the others
    cdef readonly list ways             # Way: where messages of the others go, as of this generation
    cdef public uint64_t generation     # of the set of filters; a topic matched under an older one is matched again
    cdef readonly list touched          # watched queues that grew since collect_touched()
    cdef readonly Missing missing       # queues with entries that RocksDB does not have
    cdef readonly object key_parts      # deque of KeyParts that are not in order in RocksDB, the last of which grows
    cdef public uint64_t keys_from      # keys of messages before this log_offset are known
    cdef KeyPart growing
    cdef readonly object live           # deque of LIVE queues with entries in memory
    cdef readonly uint64_t newest       # log_offset of the newest message
    cdef readonly uint64_t entries
    cdef readonly uint64_t messages
    cdef readonly uint64_t pending      # entries that RocksDB does not have, LIVE queues aside
    cdef uint64_t work                  # of the pass that runs: see _work.pxi
    cdef readonly size_t done           # bytes of the last pass in front of the record that it began last

    def __init__(self, owner, uint64_t remembered=0):
        self.owner = owner
        self.topics = {}
        self.ends = Ends(remembered)
        self.ways = []
        self.missing = Missing()
        self.generation = 1
        self.touched = []
        self.live = deque()
        self.key_parts = deque()

    def compact(self):
        """To be called when many topics have left: a dict gives nothing back by itself."""
        self.topics = dict(self.topics)

    def weigh(self, bytes name not None):
        """(to how many queues a topic's messages go, those of them that have readers). What it takes to know that is known
        then, so the message itself takes little."""
        cdef Topic topic = self.topics.get(name)
        cdef End *end = self.end_of(name) if topic is None else NULL
        cdef Way way
        cdef Queue queue
        cdef list filters, read = []
        if topic is None and end == NULL:
            topic = self.topics[name] = self.owner.load_topic(name)
        if topic is None:
            way = <Way>self.ways[end.way]
            level, filters = way.level, way.filters
        else:
            if topic.generation != self.generation:
                self.match(topic)
            level, filters = topic.level, topic.filters
            if topic.own.readers is not None:
                read.append(topic.own)
        if (<Queue>level).readers is not None:
            read.append(level)
        for queue in filters:
            if queue.readers is not None:
                read.append(queue)
        return 2 + len(filters), read

    cdef int match(self, Topic topic) except -1:
        """Find the filters of a topic anew."""
        self.work += WORK_LOOK_UP
        topic.filters = self.owner.match(topic.name) or NO_QUEUES
        topic.generation = self.generation
        return 0

    def collect_touched(self):
        cdef Queue queue
        touched, self.touched = self.touched, []
        for queue in touched:
            queue.touched = False
        return touched

    def written(self):
        """RocksDB has what `missing` staged; of how many queues that was."""
        cdef Py_ssize_t queues = len(self.missing.staged)
        self.pending -= self.missing.written()
        return queues

    def remembered(self, bytes name not None):
        """A topic's queue, as far as it is known without RocksDB, or None. From now on it is an object."""
        cdef Queue queue = self.ends.queue(name, KIND_TOPIC)
        cdef End *end
        if queue is not None:
            end = self.ends.find(name)
            if end.size:
                queue.next_offset = queue.tail_first = end.next_offset - 1
                queue.push(end.last_log_offset, end.size, end.tag_hash)
                queue.dirty_since = end.last_log_offset
                self.missing.become_queue(end.missing, queue)
                end.size = 0
        return queue

    def forget(self, Queue queue not None):
        """The tail of a queue is not wanted any more. (What is left of it in `missing` goes with written().)"""
        self.pending -= queue.tail_count
        queue.discard(queue.tail_count)

    def apply_appended(self, LogMemory memory not None, uint64_t start, size_t size, uint64_t most_work=NO_BOUND):
        """Dispatch records just appended; they lie in the log's memory at `start`. How many bytes of them that were: all,
        or whole records up to the one that makes it `most_work` (units: _work.pxi), one at least."""
        return self.run(memory.at(start), size, most_work) if size else 0

    def apply_bytes(self, const unsigned char[::1] data not None):
        """Dispatch verified log bytes (replay)."""
        if data.shape[0]:
            self.run(<const char *>&data[0], data.shape[0], NO_BOUND)

    cdef size_t run(self, const char *data, size_t size, uint64_t most_work) except? 0:
        cdef size_t at = 0
        cdef Py_ssize_t i = 0
        cdef const RecordHeader *record
        cdef list names = []        # of the next records' topics, if there are many
        cdef bint looks_ahead = self.ends.count >= FAR_ENDS
        cdef Topic topic = None
        cdef End *end
        cdef uint64_t tag
        self.work = self.done = 0
        while at < size and (self.work < most_work or not at):
            self.done = at
            record = <const RecordHeader *>(data + at)
            if record.type == TYPE_BATCH:
                at += HEADER_BYTES
                continue
            if looks_ahead:
                if i == len(names):
                    i = 0
                    names = self.look_ahead(data + at, size - at)
                name = names[i]
                i += 1
            at += record.length
            if not is_plain(record):
                self.work += WORK_CHANGE
                self.owner.apply(as_tuple(record))
                continue
            self.newest = record.log_offset
            end = NULL
            if topic is None or not same_name(topic, record):
                if not looks_ahead:
                    name = topic_of(record)[:record.topic_length]
                topic = self.topics.get(name)
                if topic is None and not record.flags & FLAG_LIVE_ONLY:
                    end = self.end_of(name)
                if topic is None and end == NULL:
                    topic = self.topics[name] = self.owner.load_topic(name)
            tag = tag_hash(record) if record.attributes_length else 0
            if end == NULL:
                self.dispatch(topic, record, tag)
            else:
                self.dispatch_to_end(end, name, record, tag)
            if record.attributes_length and not record.flags & FLAG_LIVE_ONLY:
                self.note_key(record)
            if record.flags & FLAG_RETAIN or (record.attributes_length and changes_state(record)):
                self.work += WORK_KEPT
                self.owner.apply(as_seen(record))
        return at

    cdef list look_ahead(self, const char *data, size_t size):
        """Names of the next records' topics. Has memory bring what is remembered of them: both lines of all at a time."""
        cdef list names = []
        cdef size_t at = 0
        cdef Py_ssize_t i, sure = 0
        cdef const RecordHeader *record
        while at < size and len(names) < LOOK_AHEAD:
            record = <const RecordHeader *>(data + at)
            if record.type == TYPE_BATCH:
                at += HEADER_BYTES
                continue
            at += record.length
            name = topic_of(record)[:record.topic_length]
            if sure == len(names) and self.ends.is_at(<uint32_t>(self.ends.following + sure), name):
                sure += 1               # and the lines after that one are on their way
            else:
                self.ends.expect_place(name)
            names.append(name)
        for i in range(sure, len(names)):
            self.ends.expect_end(names[i])
        return names

    cdef note_key(self, const RecordHeader *record):
        cdef Part key = attribute(record, ATTRIBUTE_KEY)
        cdef uint64_t place = record.log_offset & ((<uint64_t>1 << KEY_PART_BITS) - 1)
        if key.data == NULL or record.log_offset < self.keys_from:
            return
        if self.growing is None or self.growing.number != record.log_offset >> KEY_PART_BITS:
            self.key_part(record.log_offset >> KEY_PART_BITS)
        self.growing.push(<uint64_t>hash_of_key(key) << 32 | place)
        self.keys_from = record.log_offset + 1

    def key_part(self, uint64_t number):
        """The part of the log that grows from now on; a new one, if it was another."""
        if self.growing is None or self.growing.number != number:
            self.growing = KeyPart(number)
            self.key_parts.append(self.growing)
        return self.growing

    def places(self, list runs not None, uint64_t log_offset):
        """Where messages stand in their topics' queues that were stored from `log_offset` on: queue_offset of the first
        of each of topic_runs() of store.records._records; -1 if no queue has it, None if it is not among the entries in memory."""
        cdef size_t at
        return [self.place(name, log_offset + at) if is_queued else -1 for name, at, _, is_queued in runs]

    cdef object place(self, bytes name, uint64_t log_offset):
        cdef Topic topic = self.topics.get(name)
        cdef End *end
        if topic is not None:
            return topic.own.place(log_offset)
        end = self.ends.find(name)
        return end.next_offset - 1 if end != NULL and end.size and end.last_log_offset == log_offset else None

    cdef End *end_of(self, bytes name) except? NULL:
        """A topic's End to which an entry can be given; NULL if it has one that RocksDB does not have, or no place."""
        cdef End *end = self.ends.take(name)
        cdef Queue queue
        if end == NULL or end.size:
            return NULL
        if not end.id:
            self.work += WORK_LOOK_UP
            queue = self.owner.stored_topic(name)
            end.next_offset = queue.next_offset
            end.last_log_offset = queue.last_log_offset
            end.id = queue.id or self.owner.allot_id(queue)
        if end.generation != <uint32_t>self.generation:
            self.work += WORK_LOOK_UP
            end.way = self.owner.way(name)
            end.generation = <uint32_t>self.generation
        return end

    cdef dispatch_to_end(self, End *end, bytes name, const RecordHeader *record, uint64_t tag):
        cdef Way way = <Way>self.ways[end.way]
        cdef Queue queue
        self.messages += 1
        if record.log_offset > end.last_log_offset:
            end.missing = <uint32_t>self.missing.push(
                record.log_offset, end.id, end, None if end.next_offset else name)
            end.next_offset += 1
            end.last_log_offset = record.log_offset
            end.tag_hash = tag
            end.size = record.length
            self.entries += 1
            self.pending += 1
        self.work += work_of(way.filters)
        self.give(way.level, record, tag)
        for queue in way.filters:
            self.give(queue, record, tag)

    cdef dispatch(self, Topic topic, const RecordHeader *record, uint64_t tag):
        cdef bint live_only = record.flags & FLAG_LIVE_ONLY
        cdef Queue queue
        if topic.generation != self.generation:
            self.match(topic)
        self.messages += 1
        self.work += work_of(topic.filters)
        if not live_only:
            self.give(topic.own, record, tag)
            self.give(topic.level, record, tag)
        for queue in topic.filters:
            if not live_only or queue.kind == KIND_LIVE:
                self.give(queue, record, tag)

    cdef give(self, Queue queue, const RecordHeader *record, uint64_t tag):
        if record.log_offset <= queue.last_log_offset:
            return
        if not queue.id:
            queue.id = self.owner.allot_id(queue)
        queue.push(record.log_offset, record.length, tag)
        self.entries += 1
        if queue.kind != KIND_LIVE:
            self.pending += 1
        if queue.watchers and not queue.touched:
            queue.touched = True
            self.touched.append(queue)
        if not queue.dirty_since:
            queue.dirty_since = record.log_offset
            if queue.kind == KIND_LIVE:
                self.live.append(queue)
            else:
                self.missing.push(record.log_offset, queue.id, NULL, queue)


cdef bint same_name(Topic topic, const RecordHeader *record) noexcept:
    return (PyBytes_GET_SIZE(topic.name) == record.topic_length
            and memcmp(PyBytes_AS_STRING(topic.name), topic_of(record), record.topic_length) == 0)


cdef bint is_plain(const RecordHeader *record) noexcept:
    """Whether it is a message that goes to its topic's queues."""
    return record.type == TYPE_MESSAGE and not record.flags & (FLAG_CARRIED | FLAG_DELAYED)


cdef extern from *:
    """
    #include <stdlib.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    static void give_back(void) { malloc_trim(0); }
    #else
    static void give_back(void) { }
    #endif
    """
    void give_back() noexcept nogil


def give_memory_back():
    """Have the kernel take what was freed: some 40 ms after a million new topics. glibc alone keeps it."""
    with nogil:
        give_back()


include "parts/_packs.pxi"
include "parts/_ends.pxi"
include "parts/_neighbours.pxi"
include "parts/_missing.pxi"
include "parts/_keys.pxi"
include "parts/_reading.pxi"
include "parts/_tagged.pxi"
