# Part of _queues.pyx: one key of RocksDB for entries of neighbouring queues. What it is for is said in lightqueue.queues.neighbours.
# A value is written short, as packs are, and looked at at full length: positions, bits, marks.

cdef packed struct Position:        # how far the keys of a group know one of its queues
    uint64_t next_offset            # 0: they never had an entry of it
    uint64_t last_log_offset

cdef packed struct Mark:            # what an entry has besides its log_offset
    uint32_t size
    uint64_t tag_hash

cpdef enum:
    GROUP_BITS = 6                  # Python sees it as well

cdef enum:
    GROUP_QUEUES = 1 << GROUP_BITS
    LEAST_NEIGHBOURS = 16           # for fewer a key each takes no more time, and less room
    POSITIONS_SIZE = GROUP_QUEUES * 16
    MARKS_AT = POSITIONS_SIZE + 8   # after the bits of those that have an entry here
    MOST_VALUE_SIZE = MARKS_AT + GROUP_QUEUES * 12

assert sizeof(Position) == 16 and sizeof(Mark) == 12
POSITIONS_BYTES = POSITIONS_SIZE


cdef bytes neighbours_value(bytes before, const Entry *entries, const uint64_t *next_offsets, const uint8_t *slots, size_t count):
    """Of a new key: where all queues of the group stand once these `count` of them, in order, have one entry more."""
    cdef bytes value = PyBytes_FromStringAndSize(NULL, MARKS_AT + count * sizeof(Mark))
    cdef char *to = PyBytes_AS_STRING(value)
    cdef Position *positions = <Position *>to
    cdef Mark *marks = <Mark *>(to + MARKS_AT)
    cdef uint64_t bits = 0
    cdef size_t i
    if PyBytes_GET_SIZE(before):
        memcpy(to, PyBytes_AS_STRING(before), POSITIONS_SIZE)
    else:
        memset(to, 0, POSITIONS_SIZE)
    for i in range(count):
        positions[slots[i]] = Position(next_offsets[i], entries[i].log_offset)
        marks[i] = Mark(entries[i].size, entries[i].tag_hash)
        bits |= <uint64_t>1 << slots[i]
    memcpy(to + POSITIONS_SIZE, &bits, 8)
    return value


def packed_neighbours(bytes value not None):
    """The form of a value in RocksDB (docs/formats.md): an eighth of its bytes where topics come in turn.

    ValueError if it is none.
    """
    cdef unsigned char to[GROUP_QUEUES * 20 + 8 + GROUP_QUEUES * (5 + 8)]
    cdef uint64_t bits = bits_of(value), previous = 0
    cdef const Position *positions = <const Position *>PyBytes_AS_STRING(value)
    cdef const Mark *marks = <const Mark *>(PyBytes_AS_STRING(value) + MARKS_AT)
    cdef size_t at = 0, i
    cdef int64_t step
    for i in range(GROUP_QUEUES):
        at = put_number(to, at, positions[i].next_offset)
        if positions[i].next_offset:
            step = <int64_t>(positions[i].last_log_offset - previous) >> 3
            at = put_number(to, at, <uint64_t>(step << 1) ^ <uint64_t>(step >> 63))
            previous = positions[i].last_log_offset
    memcpy(to + at, &bits, 8)
    at += 8
    for i in range(popcount(bits)):
        at = put_number(to, at, marks[i].size >> 3 << 1 | (marks[i].tag_hash != 0))
        if marks[i].tag_hash:
            memcpy(to + at, &marks[i].tag_hash, 8)
            at += 8
    return PyBytes_FromStringAndSize(<char *>to, at)


def unpacked_neighbours(const unsigned char[::1] data not None):
    """The value that packed_neighbours() made this of. ValueError if it made it of none."""
    cdef char value[MOST_VALUE_SIZE]
    cdef Position *positions = <Position *>value
    cdef Mark *marks = <Mark *>(value + MARKS_AT)
    cdef size_t at = 0, end = data.shape[0], i, count
    cdef uint64_t bits, number, previous = 0
    for i in range(GROUP_QUEUES):
        positions[i] = Position(0, 0)
        if not end or not take_number(&data[0], &at, end, &positions[i].next_offset):
            raise ValueError("too short for a key of neighbours")
        if positions[i].next_offset:
            if not take_number(&data[0], &at, end, &number):
                raise ValueError("too short for a key of neighbours")
            previous += ((number >> 1) ^ -(number & 1)) << 3
            positions[i].last_log_offset = previous
    if at + 8 > end:
        raise ValueError("too short for a key of neighbours")
    memcpy(&bits, &data[at], 8)
    memcpy(value + POSITIONS_SIZE, &bits, 8)
    at += 8
    count = popcount(bits)
    for i in range(count):
        if not take_number(&data[0], &at, end, &number) or (number & 1 and at + 8 > end):
            raise ValueError("not as long as its bits say")
        marks[i] = Mark(<uint32_t>(number >> 1 << 3), 0)
        if number & 1:
            memcpy(&marks[i].tag_hash, &data[at], 8)
            at += 8
    if at != end:
        raise ValueError("not as long as its bits say")
    return PyBytes_FromStringAndSize(value, MARKS_AT + count * sizeof(Mark))


cdef uint64_t newest_position(bytes positions) noexcept:
    """log_offset of the newest entry that keys of the group have had; 0 if there was none."""
    cdef const Position *found = <const Position *>PyBytes_AS_STRING(positions)
    cdef uint64_t newest = 0
    cdef Py_ssize_t i
    for i in range(PyBytes_GET_SIZE(positions) // <Py_ssize_t>sizeof(Position)):
        newest = max(newest, found[i].last_log_offset)
    return newest


cdef uint64_t bits_of(bytes value) except? 0:
    cdef uint64_t bits
    if PyBytes_GET_SIZE(value) < MARKS_AT:
        raise ValueError("too short for a key of neighbours")
    memcpy(&bits, PyBytes_AS_STRING(value) + POSITIONS_SIZE, 8)
    if PyBytes_GET_SIZE(value) != <Py_ssize_t>(MARKS_AT + popcount(bits) * sizeof(Mark)):
        raise ValueError("not as long as its bits say")
    return bits


cdef extern from *:
    """
    #define popcount(bits) ((unsigned)__builtin_popcountll(bits))
    """
    unsigned popcount(uint64_t bits) noexcept nogil


def neighbour_position(bytes positions not None, uint64_t queue_id):
    """(next queue_offset, log_offset of the entry before it) of a queue, from a value or its positions; zeros: none."""
    cdef const Position *found = <const Position *>PyBytes_AS_STRING(positions) + (queue_id & (GROUP_QUEUES - 1))
    if PyBytes_GET_SIZE(positions) < POSITIONS_SIZE:
        return 0, 0
    return found.next_offset, found.last_log_offset


def neighbour_entry(bytes value not None, uint64_t queue_id):
    """The entry of a queue in a value, 20 bytes as in a pack; None if it has none. It is the one before next_offset."""
    cdef uint64_t bits = bits_of(value)
    cdef unsigned slot = queue_id & (GROUP_QUEUES - 1)
    cdef const char *data = PyBytes_AS_STRING(value)
    cdef const Mark *mark
    cdef Entry entry
    if not bits >> slot & 1:
        return None
    mark = <const Mark *>(data + MARKS_AT) + popcount(bits & ((<uint64_t>1 << slot) - 1))
    entry = Entry((<const Position *>data)[slot].last_log_offset, mark.size, mark.tag_hash)
    return PyBytes_FromStringAndSize(<char *>&entry, sizeof(Entry))


def newest_neighbour(bytes value not None):
    """log_offset of the newest entry in a value; 0 if it has none."""
    cdef uint64_t bits = bits_of(value), newest = 0
    cdef const Position *positions = <const Position *>PyBytes_AS_STRING(value)
    cdef size_t slot
    for slot in range(GROUP_QUEUES):
        if bits >> slot & 1:
            newest = max(newest, positions[slot].last_log_offset)
    return newest


cpdef bytes neighbours_key(uint64_t group, uint64_t log_offset):
    """Where entries of a group stand, this the oldest of them."""
    return key_of(c"n", group, log_offset)
