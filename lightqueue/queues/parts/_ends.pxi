# Part of _queues.pyx: topics whose queue is no object, in as few bytes as that takes. Most of a million are like that.

cdef packed struct End:             # of a topic's queue; one cache line
    uint64_t low, high              # of the name's hash
    uint64_t id                     # 0: not looked up yet
    uint64_t next_offset
    uint64_t last_log_offset
    uint64_t tag_hash
    uint32_t size                   # of the newest message, if RocksDB does not have its entry; else 0
    uint32_t missing                # low bits of the number of that entry in Missing
    uint32_t generation             # low bits of the generation that `way` is of; 0: none
    uint32_t way                    # the other queues that its messages go to: Dispatcher.ways[way]

cdef struct Shard:                  # a hash table; each grows on its own, so that no growing takes long
    uint64_t *places                # 32 bits of a hash, then 1 + the number of an End; 0: free
    uint32_t capacity               # a power of two, or 0
    uint32_t count

cdef enum:
    SHARDS = 1024
    FIRST_CAPACITY = 8
    CHUNK_BITS = 10                 # so many ends are allocated at a time, and stay where they are
    CHUNK_ENDS = 1 << CHUNK_BITS
    LINE_BYTES = 64

assert sizeof(End) == LINE_BYTES


cdef class Ends:
    """The ends of topics' queues by name; 64 bytes each, and 9 to 18 in tables 7/16 to 7/8 full.

    A name is told from others by 64 bits of Python's SipHash, whose key each process draws, and 64 of a hash with a
    random key of its own. With about `most` of them new ones take the places of others.
    """

    cdef Shard shards[SHARDS]
    cdef End **chunks
    cdef uint32_t count
    cdef uint32_t most              # in a shard
    cdef uint32_t following         # number of the End made after the one that was found last: often the next
    cdef uint64_t key

    def __init__(self, uint64_t most):
        self.most = <uint32_t>min(most // SHARDS + 1, 1 << 21)
        self.key = int.from_bytes(urandom(8), "little") | 1

    def __dealloc__(self):
        for i in range(SHARDS):
            free(self.shards[i].places)
        for i in range((self.count + CHUNK_ENDS - 1) >> CHUNK_BITS):
            free(self.chunks[i])
        free(self.chunks)

    def __len__(self):
        return self.count

    def put(self, Queue queue not None):
        """Remember where a queue ends that goes out of memory, unless there is no room."""
        cdef End *end
        if queue.id:
            end = self.take(queue.name)
            if end != NULL:
                end.id = queue.id
                end.next_offset = queue.next_offset
                end.last_log_offset = queue.last_log_offset
                end.generation = 0

    def queue(self, bytes name not None, int kind):
        """The queue of that name, without entries in memory; None if it is not remembered."""
        cdef End *end = self.find(name)
        return Queue(name, kind, end.id, end.next_offset, end.last_log_offset) if end != NULL and end.id else None

    cdef End *at(self, uint64_t place) noexcept:
        cdef uint32_t number = <uint32_t>place - 1
        return self.chunks[number >> CHUNK_BITS] + (number & (CHUNK_ENDS - 1))

    cdef uint64_t *place(self, Shard *shard, uint64_t low, uint64_t high) noexcept:
        """Where a name is, or else the free place for it; NULL if it is not there and the table is full."""
        cdef uint32_t at = (low >> 32) & (shard.capacity - 1)
        cdef uint64_t found
        cdef End *end
        for _ in range(shard.capacity):
            found = shard.places[at]
            if not found:
                return shard.places + at
            if found >> 32 == low >> 32:
                end = self.at(found)
                if end.low == low and end.high == high:
                    return shard.places + at
            at = (at + 1) & (shard.capacity - 1)
        return NULL

    cdef End *in_order(self, uint64_t low, uint64_t high) noexcept:
        """The End of a name, if topics come in the order in which they came first; else NULL."""
        cdef End *end
        if self.following >= self.count:
            return NULL
        end = self.at(self.following + 1)
        if end.low != low or end.high != high:
            return NULL
        self.following += 1
        return end

    cdef End *find(self, bytes name) except? NULL:
        """NULL if it is not remembered."""
        cdef uint64_t low = <uint64_t>hash(name), high = self.hashed(name)
        cdef Shard *shard = &self.shards[low % SHARDS]
        cdef uint64_t *place
        if not shard.capacity:
            return NULL
        place = self.place(shard, low, high)
        return self.at(place[0]) if place != NULL and place[0] else NULL

    cdef End *take(self, bytes name) except? NULL:
        """The End that is remembered of a name, without an id if there is none. NULL if there is no room."""
        cdef uint64_t low = <uint64_t>hash(name)
        cdef uint64_t high = self.hashed(name)
        cdef Shard *shard = &self.shards[low % SHARDS]
        cdef uint64_t *place
        cdef End *end = self.in_order(low, high)
        if end != NULL:
            return end
        place = self.place(shard, low, high) if shard.capacity else NULL
        if place != NULL and place[0]:
            self.following = <uint32_t>place[0]
            return self.at(place[0])
        if shard.count < self.most:
            if 8 * (shard.count + 1) > 7 * shard.capacity:
                grow(shard)
                place = self.place(shard, low, high)
            place[0] = (low >> 32 << 32) | self.new_end()
            shard.count += 1
        else:
            place = shard.places + ((low >> 32) & (shard.capacity - 1))
            if not place[0] or self.at(place[0]).size:
                return NULL             # what RocksDB does not have stays
            place[0] = (low >> 32 << 32) | <uint32_t>place[0]
        end = self.at(place[0])
        memset(end, 0, sizeof(End))
        end.low = low
        end.high = high
        return end

    cdef bint is_at(self, uint32_t number, bytes name) except -1:
        """Whether an End may be that of a name."""
        return number < self.count and self.at(number + 1).low == <uint64_t>hash(name)

    cdef int expect_place(self, bytes name) except -1:
        """Have memory bring the table's line in which a name may be."""
        cdef uint64_t low = <uint64_t>hash(name)
        cdef const Shard *shard = &self.shards[low % SHARDS]
        if shard.capacity:
            prefetch(shard.places + ((low >> 32) & (shard.capacity - 1)))
        return 0

    cdef int expect_end(self, bytes name) except -1:
        """And then the End that is there."""
        cdef uint64_t low = <uint64_t>hash(name)
        cdef const Shard *shard = &self.shards[low % SHARDS]
        cdef uint64_t found = shard.places[(low >> 32) & (shard.capacity - 1)] if shard.capacity else 0
        if found:
            prefetch(self.at(found))
        return 0

    cdef uint64_t new_end(self) except 0:
        """1 + the number of one more."""
        cdef uint32_t chunk = self.count >> CHUNK_BITS
        cdef End **chunks
        if not self.count & (CHUNK_ENDS - 1):
            chunks = <End **>realloc(self.chunks, (chunk + 1) * sizeof(End *))
            if chunks == NULL:
                raise MemoryError
            self.chunks = chunks
            chunks[chunk] = <End *>aligned_alloc(LINE_BYTES, CHUNK_ENDS * sizeof(End))
            if chunks[chunk] == NULL:
                raise MemoryError
        self.count += 1
        return self.count

    cdef uint64_t hashed(self, bytes name) noexcept:
        """64 bits that do not follow from those of hash()."""
        cdef const char *data = PyBytes_AS_STRING(name)
        cdef size_t size = PyBytes_GET_SIZE(name)
        cdef uint64_t found = self.key ^ size, word
        while size:
            word = 0
            memcpy(&word, data, min(size, <size_t>8))
            found = folded(found ^ word, self.key)
            data += min(size, <size_t>8)
            size -= min(size, <size_t>8)
        return folded(found, self.key)


cdef extern from "stdlib.h":
    void *aligned_alloc(size_t alignment, size_t size)


cdef extern from *:
    """
    static inline unsigned long long folded(unsigned long long one, unsigned long long other) {
        unsigned __int128 product = (unsigned __int128)(one ^ 0x9e3779b97f4a7c15ULL) * other;
        return (unsigned long long)product ^ (unsigned long long)(product >> 64);
    }
    """
    uint64_t folded(uint64_t one, uint64_t other) noexcept nogil
    void prefetch "__builtin_prefetch" (const void *place) noexcept nogil


cdef int grow(Shard *shard) except -1:
    cdef uint32_t capacity = max(FIRST_CAPACITY, 2 * shard.capacity), at, i
    cdef uint64_t *places = <uint64_t *>calloc(capacity, sizeof(uint64_t))
    if places == NULL:
        raise MemoryError
    for i in range(shard.capacity):
        if shard.places[i]:
            at = (shard.places[i] >> 32) & (capacity - 1)
            while places[at]:
                at = (at + 1) & (capacity - 1)
            places[at] = shard.places[i]
    free(shard.places)
    shard.places = places
    shard.capacity = capacity
    return 0
