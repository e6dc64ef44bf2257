# Part of _queues.pyx: which messages have a key. What it is for is said in lightqueue.queues.keys.

cdef enum:
    KEY_PART_BITS = 26          # as in lightqueue.queues.keys
    DIGIT_BITS = 11             # three of them are a hash


cdef Part attribute(const RecordHeader *record, uint8_t tag) noexcept nogil:
    """The value of an attribute of a record; without data if it has none."""
    cdef const unsigned char *data = <const unsigned char *>attributes_of(record)
    cdef size_t at = 0, length
    while at + 3 <= record.attributes_length:
        length = data[at + 1] | <size_t>data[at + 2] << 8
        if data[at] == tag and at + 3 + length <= record.attributes_length:
            return Part(<const char *>data + at + 3, length)
        at += 3 + length
    return Part(NULL, 0)


cdef class KeyPart:
    """The messages with a key in one part of the log, oldest first. Each is an item of 8 bytes: 32 bits of its key's
    hash, then its place, in bytes from the part's beginning, so that items in order lie by hash, then by age."""

    cdef readonly uint64_t number
    cdef public size_t written          # so many of the oldest are in RocksDB
    cdef readonly size_t count
    cdef size_t capacity
    cdef uint64_t *items

    def __init__(self, uint64_t number):
        self.number = number

    def __dealloc__(self):
        free(self.items)

    @property
    def start(self):
        """log_offset where the part begins."""
        return self.number << KEY_PART_BITS

    cdef int push(self, uint64_t item) except -1:
        cdef uint64_t *moved
        if self.count == self.capacity:
            moved = <uint64_t *>realloc(self.items, max(<size_t>64, 2 * self.capacity) * 8)
            if moved == NULL:
                raise MemoryError
            self.items = moved
            self.capacity = max(<size_t>64, 2 * self.capacity)
        self.items[self.count] = item
        self.count += 1
        return 0

    def load(self, bytes items not None):
        """Add what run() gave."""
        cdef const uint64_t *from_ = <const uint64_t *>PyBytes_AS_STRING(items)
        cdef Py_ssize_t i
        for i in range(PyBytes_GET_SIZE(items) // 8):
            self.push(from_[i])
        self.written = self.count

    def clear(self):
        """Forget all of them."""
        self.count = self.written = 0

    def log_offset(self, size_t i):
        """Where the i-th message stands."""
        if i >= self.count:
            raise IndexError(i)
        return self.start + (self.items[i] & 0xFFFFFFFF)

    def run(self, size_t at, size_t most):
        """Items from the at-th on, as they lie, `most` of them."""
        if at >= self.count:
            return b""
        return PyBytes_FromStringAndSize(<const char *>(self.items + at), min(most, self.count - at) * 8)

    def in_order(self, size_t most):
        """All items in order, in pieces of `most`: [(the first item, items)]."""
        cdef uint64_t *found = <uint64_t *>malloc(max(<size_t>1, self.count) * 8)
        cdef uint64_t *other = <uint64_t *>malloc(max(<size_t>1, self.count) * 8)
        cdef size_t at
        try:
            if found == NULL or other == NULL:
                raise MemoryError
            with nogil:
                sort_by(self.items, found, self.count, 32)
                sort_by(found, other, self.count, 32 + DIGIT_BITS)
                sort_by(other, found, self.count, 32 + 2 * DIGIT_BITS)
            return [
                (found[at], PyBytes_FromStringAndSize(<const char *>(found + at), min(most, self.count - at) * 8))
                for at in range(0, self.count, most)
            ]
        finally:
            free(found)
            free(other)

    def places(self, uint32_t hashed, uint64_t before, Py_ssize_t most):
        """log_offsets of messages whose key has this hash and that stand before `before`, newest first, `most` of them."""
        cdef uint64_t start = self.number << KEY_PART_BITS, item
        cdef size_t at = self.count
        places = []
        while at and len(places) < most:
            at -= 1
            item = self.items[at]
            if item >> 32 == hashed and start + (item & 0xFFFFFFFF) < before:
                places.append(start + (item & 0xFFFFFFFF))
        return places


cdef void sort_by(const uint64_t *items, uint64_t *to, size_t count, int shift) noexcept nogil:
    """Copy items in the order of one digit; those with the same keep their order."""
    cdef size_t starts[1 << DIGIT_BITS]
    cdef size_t i, n, sum = 0
    cdef uint64_t mask = (1 << DIGIT_BITS) - 1
    memset(starts, 0, sizeof(starts))
    for i in range(count):
        starts[items[i] >> shift & mask] += 1
    for i in range(1 << DIGIT_BITS):
        n = starts[i]
        starts[i] = sum
        sum += n
    for i in range(count):
        to[starts[items[i] >> shift & mask]] = items[i]
        starts[items[i] >> shift & mask] += 1


def places_in_order(bytes items not None, uint64_t number, uint32_t hashed, uint64_t before):
    """As KeyPart.places(), all of them, from a piece of what in_order() gave of part `number`."""
    cdef const uint64_t *found = <const uint64_t *>PyBytes_AS_STRING(items)
    cdef uint64_t start = number << KEY_PART_BITS
    cdef uint64_t wanted = <uint64_t>hashed << 32
    cdef Py_ssize_t low = 0, high = PyBytes_GET_SIZE(items) // 8, middle
    if before <= start:
        return []
    wanted |= min(before - start, <uint64_t>0xFFFFFFFF)
    while low < high:
        middle = (low + high) >> 1
        if found[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    places = []
    while low and found[low - 1] >> 32 == hashed:
        low -= 1
        places.append(start + (found[low] & 0xFFFFFFFF))
    return places


cdef uint32_t hash_of_key(Part key) noexcept nogil:
    cdef uint64_t found = fnv1a(key)
    return <uint32_t>(found ^ found >> 32)


def key_hash(bytes key not None):
    """The entries of a key in the index."""
    return hash_of_key(Part(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)))
