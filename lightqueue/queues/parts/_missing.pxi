# Part of _queues.pyx: which queues have entries that RocksDB does not have, and what it is given of them.

cdef struct Item:
    uint64_t since                  # no entry of it that RocksDB does not have is older than this log_offset
    uint64_t id
    End *end                        # NULL: `thing` is a Queue, or RocksDB has all by now
    PyObject *thing                 # of an End: the topic's name if the entry is its first, or else NULL

cdef enum:
    FIRST_ITEMS = 256
    WINDOW_ITEMS = 1 << 16
    SORTED_ITEMS = 1_025            # so many go to RocksDB in the order of their ids, which takes a quarter of the time
    PLACE_BITS = 17                 # of a number below WINDOW_ITEMS, beside the low bits of an id


cdef class Missing:
    """A ring of queues, those with the oldest entries first. RocksDB gets a window of the first, and then the next."""

    cdef Item *items
    cdef size_t capacity            # a power of two, or 0
    cdef size_t head                # number of the first; numbers go on for ever
    cdef size_t count
    cdef uint64_t *order            # of the window: items, as numbers in it
    cdef size_t window
    cdef size_t done                # so many of the window's are in RocksDB
    cdef list staged                # how many entries of each of the next ones were given out
    cdef readonly dict newest       # of groups of neighbours, what the keys that were given out say: group -> bytes

    def __init__(self):
        self.staged = []
        self.newest = {}

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.count):
            Py_XDECREF(self.at(self.head + i).thing)
        free(self.items)
        free(self.order)

    def __len__(self):
        return self.count - self.done

    cdef Item *at(self, size_t number) noexcept:
        return self.items + (number & (self.capacity - 1))

    cdef size_t push(self, uint64_t since, uint64_t id, End *end, object thing) except? 0:
        """The number of a new last one."""
        cdef Item *item
        if self.count == self.capacity:
            self.resize(max(<size_t>FIRST_ITEMS, 2 * self.capacity))
        item = self.at(self.head + self.count)
        item.since = since
        item.id = id
        item.end = end
        item.thing = NULL
        if thing is not None:
            item.thing = <PyObject *>thing
            Py_INCREF(thing)
        self.count += 1
        return self.head + self.count - 1

    cdef int resize(self, size_t capacity) except -1:
        cdef Item *items = <Item *>malloc(capacity * sizeof(Item))
        cdef size_t i
        if items == NULL:
            raise MemoryError
        for i in range(self.count):
            items[(self.head + i) & (capacity - 1)] = self.at(self.head + i)[0]
        free(self.items)
        self.items = items
        self.capacity = capacity
        return 0

    cdef int become_queue(self, uint32_t low_bits, Queue queue) except -1:
        """An End becomes a Queue, at the same place."""
        cdef Item *item = self.at(self.head + <uint32_t>(low_bits - <uint32_t>self.head))
        Py_XDECREF(item.thing)
        item.end = NULL
        item.thing = <PyObject *>queue
        Py_INCREF(queue)
        return 0

    cdef int open_window(self, uint64_t until) except -1:
        """Choose what RocksDB gets next: of what was missing before log_offset `until` the oldest."""
        cdef size_t n = 0, i
        cdef uint64_t *other
        while n < self.count and n < WINDOW_ITEMS and self.at(self.head + n).since < until:
            n += 1
        free(self.order)
        self.order = <uint64_t *>malloc(max(n, <size_t>1) * sizeof(uint64_t))
        other = <uint64_t *>malloc(max(n, <size_t>1) * sizeof(uint64_t))
        if self.order == NULL or other == NULL:
            free(other)
            raise MemoryError
        for i in range(n):
            self.order[i] = self.at(self.head + i).id << PLACE_BITS | i
        if n >= SORTED_ITEMS:
            for i in range(2):
                sort_by(self.order, other, n, PLACE_BITS + 2 * i * DIGIT_BITS)
                sort_by(other, self.order, n, PLACE_BITS + (2 * i + 1) * DIGIT_BITS)
        free(other)
        self.window = n
        return 0

    cdef int close_window(self) except -1:
        """RocksDB has all of it."""
        self.head += self.window
        self.count -= self.window
        self.window = self.done = 0
        free(self.order)
        self.order = NULL
        if not self.count and self.capacity > FIRST_ITEMS:
            free(self.items)
            self.items = NULL
            self.capacity = 0
        return 0

    cdef Item *nth(self, size_t n) noexcept:
        """Of the window, in its order."""
        return self.at(self.head + (self.order[n] & ((1 << PLACE_BITS) - 1)))

    def stage(self, int64_t cost, uint64_t until, int64_t entries_per_cost, positions_of):
        """(puts, oldest): keys and values of entries that were missing before log_offset `until`, of as many queues as
        `cost`; of one queue `entries_per_cost` more cost as much as one more queue. No entry that is still missing then
        is older than `oldest`; None if none is.

        Ends with a queue of which something stays. What is given out stays in memory until written().
        `positions_of(group)` says where the queues of a group of neighbours stand, and `newest` then has what its newest key will say.
        """
        cdef list puts = []
        cdef Item *item
        cdef Queue queue
        cdef uint32_t count
        self.staged = []
        self.newest = {}
        if not self.window:
            self.open_window(until)
        while self.done + len(self.staged) < self.window:
            item = self.nth(self.done + len(self.staged))
            if cost <= 0:
                return puts, self.oldest(item)
            if item.end != NULL:
                count = self.stage_ends(self.done + len(self.staged), puts, positions_of)
                self.staged += [1] * count
                cost -= count
                continue
            queue = <Queue>item.thing
            count = queue.stage(<uint32_t>min(cost * entries_per_cost, <int64_t>1 << 31), puts)
            self.staged.append(count)
            if count < queue.tail_count:
                return puts, self.oldest(item)
            cost -= 1 + count // entries_per_cost
        return puts, self.at(self.head + self.window).since if self.count > self.window else None

    cdef uint32_t stage_ends(self, size_t first, list puts, positions_of) except 0:
        """Of the window, the End that is `first`; if it is sorted also the others of its group: how many they are."""
        cdef Entry entries[GROUP_QUEUES]
        cdef uint64_t next_offsets[GROUP_QUEUES]
        cdef uint8_t slots[GROUP_QUEUES]
        cdef uint32_t ends = self.ends_in_front(first) if self.window >= SORTED_ITEMS else 1
        cdef uint32_t count = 0, i
        cdef uint64_t group = self.nth(first).id >> GROUP_BITS
        cdef uint64_t newest, oldest = <uint64_t>-1
        cdef const Item *item
        cdef bytes before = None
        if ends >= LEAST_NEIGHBOURS:
            before = positions_of(group)
            newest = newest_position(before)
        for i in range(ends):
            item = self.nth(first + i)
            if item.thing != NULL:
                puts.append((queue_key(KIND_TOPIC, <bytes>item.thing), queue_value(item.id, 0)))
            if before is None or item.end.last_log_offset <= newest:
                stage_end(item.end, puts)   # keys of a group are in the order of all their entries
                continue
            entries[count] = Entry(item.end.last_log_offset, item.end.size, item.end.tag_hash)
            next_offsets[count] = item.end.next_offset
            slots[count] = item.id & (GROUP_QUEUES - 1)
            oldest = min(oldest, item.end.last_log_offset)
            count += 1
        if count:
            value = neighbours_value(before, entries, next_offsets, slots, count)
            packed_value = packed_neighbours(value)
            puts.append((neighbours_key(group, oldest), packed_value))
            self.newest[group] = packed_value
        return ends

    cdef uint32_t ends_in_front(self, size_t first) noexcept:
        """Put the Ends of a group before its other queues, from `first` on; how many there are."""
        cdef uint64_t *order = self.order
        cdef uint64_t group = order[first] >> (PLACE_BITS + GROUP_BITS)
        cdef size_t n = first
        cdef uint32_t ends = 0
        while n < self.window and order[n] >> (PLACE_BITS + GROUP_BITS) == group:
            if self.nth(n).end != NULL:
                order[n], order[first + ends] = order[first + ends], order[n]
                ends += 1
            n += 1
        return ends

    cdef uint64_t oldest(self, const Item *next_) noexcept:
        return next_.since if self.window < SORTED_ITEMS else self.at(self.head).since

    cdef uint64_t written(self) except? 0:
        """RocksDB has what was staged; how many entries. A queue that has more is the next."""
        cdef uint64_t total = 0
        cdef Item *item
        cdef Queue queue
        for count in self.staged:
            item = self.nth(self.done)
            total += count
            if item.end != NULL:
                item.end.size = 0
            else:
                queue = <Queue>item.thing
                queue.discard(count)
                if queue.tail_count:
                    break
                queue.dirty_since = 0
            Py_XDECREF(item.thing)
            item.thing = NULL
            item.end = NULL
            self.done += 1
        self.staged = []
        if self.done == self.window:
            self.close_window()
        return total


cdef int stage_end(const End *end, list puts) except -1:
    cdef Entry entry = Entry(end.last_log_offset, end.size, end.tag_hash)
    puts.append((entry_key(end.id, end.next_offset - 1), packed(&entry, 1)))
    return 0


def queue_key(int kind, bytes name not None):
    """The one place where a queue's name is encoded: its kind, then the name's own bytes. Nothing is escaped."""
    return b"q%d" % kind + name


def queue_value(uint64_t queue_id, uint64_t base):
    """The value under a queue's key; `base` counts only while no entry is stored."""
    return queue_id.to_bytes(8, "big") + base.to_bytes(8, "big")


cpdef bytes entry_key(uint64_t queue_id, uint64_t queue_offset):
    """Where entries of a queue stand, from this one on."""
    return key_of(c"e", queue_id, queue_offset)


cdef bytes key_of(char prefix, uint64_t first, uint64_t second):
    cdef bytes key = PyBytes_FromStringAndSize(NULL, 17)
    cdef char *to = PyBytes_AS_STRING(key)
    cdef int i
    to[0] = prefix
    for i in range(8):
        to[1 + i] = <char>(first >> (56 - 8 * i))
        to[9 + i] = <char>(second >> (56 - 8 * i))
    return key
