# Part of _queues.pyx: where queues end that are not in memory, in as few bytes as that takes.

cdef struct End:
    uint64_t low, high              # of the name's hash; an id of 0 marks a free place
    uint64_t id
    uint64_t next_offset
    uint64_t last_log_offset

cdef struct Shard:
    End *ends
    uint32_t capacity               # a power of two, or 0
    uint32_t count

cdef enum:
    SHARDS = 1024                   # each grows on its own, so that no growing takes long
    FIRST_CAPACITY = 8


cdef class Ends:
    """id, next queue_offset and newest log_offset by a queue's name; 40 bytes each in tables 7/16 to 7/8 full.

    A name is told from others by 128 bits of Python's SipHash, whose key each process draws: of n names two are taken
    for one with a probability of n²/2¹²⁹. With about `most` of them new ones take the places of others.
    """

    cdef Shard shards[SHARDS]
    cdef uint32_t most              # in a shard

    def __init__(self, uint64_t most):
        self.most = <uint32_t>min(most // SHARDS + 1, 1 << 30)

    def __dealloc__(self):
        for i in range(SHARDS):
            free(self.shards[i].ends)

    def __len__(self):
        cdef size_t count = 0
        for i in range(SHARDS):
            count += self.shards[i].count
        return count

    def put(self, Queue queue not None):
        """Remember where a queue ends that goes out of memory."""
        cdef uint64_t low = <uint64_t>hash(queue.name)
        cdef uint64_t high = <uint64_t>hash(queue.name + b"\0")
        cdef Shard *shard = &self.shards[low % SHARDS]
        cdef End *end
        if not queue.id:
            return
        if shard.count < self.most and 8 * (shard.count + 1) > 7 * shard.capacity:
            grow(shard)
        end = place_of(shard, low, high)
        if not end.id and shard.count >= self.most:
            end = home_of(shard, high)
        shard.count += not end.id
        end[0] = End(low, high, queue.id, queue.next_offset, queue.last_log_offset)

    def queue(self, bytes name not None, int kind):
        """The queue of that name, without entries in memory; None if it is not remembered."""
        cdef uint64_t low = <uint64_t>hash(name)
        cdef uint64_t high = <uint64_t>hash(name + b"\0")
        cdef Shard *shard = &self.shards[low % SHARDS]
        cdef End *end
        if not shard.capacity:
            return None
        end = place_of(shard, low, high)
        if not end.id or end.low != low or end.high != high:
            return None
        return Queue(name, kind, end.id, end.next_offset, end.last_log_offset)


cdef End *home_of(Shard *shard, uint64_t high) noexcept nogil:
    return shard.ends + (high & (shard.capacity - 1))


cdef End *place_of(Shard *shard, uint64_t low, uint64_t high) noexcept nogil:
    """Where a name is, or else the free place for it, or else its home."""
    cdef uint32_t at = high & (shard.capacity - 1)
    for _ in range(shard.capacity):
        if not shard.ends[at].id or (shard.ends[at].low == low and shard.ends[at].high == high):
            return shard.ends + at
        at = (at + 1) & (shard.capacity - 1)
    return home_of(shard, high)


cdef int grow(Shard *shard) except -1:
    cdef Shard larger = Shard(NULL, max(FIRST_CAPACITY, 2 * shard.capacity), shard.count)
    cdef End *end
    cdef uint32_t i
    larger.ends = <End *>calloc(larger.capacity, sizeof(End))
    if larger.ends == NULL:
        raise MemoryError
    for i in range(shard.capacity):
        end = shard.ends + i
        if end.id:
            memcpy(place_of(&larger, end.low, end.high), end, sizeof(End))
    free(shard.ends)
    shard[0] = larger
    return 0
