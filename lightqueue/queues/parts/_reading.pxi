# Part of _queues.pyx: the records that entries point at.


def read_tail(LogMemory memory not None, Queue queue not None, uint64_t start, Py_ssize_t max_records,
              uint64_t max_bytes):
    """Records from the tail of a queue; `start` must not be older than the tail."""
    if start < queue.tail_first:
        raise ValueError("older than the tail")
    return tail_from(memory, queue, start, max_records, max_bytes)


cdef Records tail_from(LogMemory memory, Queue queue, uint64_t start, Py_ssize_t max_records, uint64_t max_bytes):
    cdef Records records = Records(start)
    if start < queue.next_offset:
        fill(records, memory, queue.tail + (start - queue.tail_first), queue.next_offset - start, max_records, max_bytes)
    return records


def read_tails(LogMemory memory not None, list queues not None, list starts not None, Py_ssize_t max_records,
               uint64_t max_bytes):
    """As read_tail() for each of some queues; None for what is not in a tail, or cannot be read."""
    cdef Py_ssize_t i
    cdef Queue queue
    cdef uint64_t start
    cdef list found = []
    for i in range(len(queues)):
        queue, start = <Queue?>queues[i], starts[i]
        try:
            found.append(tail_from(memory, queue, start, max_records, max_bytes) if start >= queue.tail_first else None)
        except LookupError:
            found.append(None)
    return found


def read_pack(LogMemory memory not None, bytes pack not None, uint64_t pack_first, uint64_t start,
              Py_ssize_t max_records, uint64_t max_bytes):
    """Records from a pack of entries, from queue_offset `start` on."""
    cdef Records records = Records(start)
    cdef uint64_t count = PyBytes_GET_SIZE(pack) // sizeof(Entry)
    cdef uint64_t skip = start - pack_first
    if skip < count:
        fill(records, memory, <const Entry *>PyBytes_AS_STRING(pack) + skip, count - skip, max_records, max_bytes)
    return records


cdef int fill(Records records, LogMemory memory, const Entry *entries, uint64_t count,
              Py_ssize_t max_records, uint64_t max_bytes) except -1:
    """Raises LookupError if the very first record cannot be read; another one that cannot only ends the range."""
    cdef uint64_t i, total = 0
    try:
        for i in range(min(count, <uint64_t>max_records)):
            records.push(<const RecordHeader *>memory.at(entries[i].log_offset))
            total += entries[i].size
            if total >= max_bytes:
                break
    except LookupError:
        if not records.count:
            raise
    return 0


def pack_entry(bytes pack not None, Py_ssize_t i):
    """log_offset of entry i of a pack."""
    if not 0 <= i < PyBytes_GET_SIZE(pack) // <Py_ssize_t>sizeof(Entry):
        raise IndexError(i)
    return (<const Entry *>PyBytes_AS_STRING(pack))[i].log_offset


def read_at(LogMemory memory not None, list log_offsets not None):
    """The records at given log_offsets. LookupError if one is not kept (any more)."""
    cdef Records records = Records(0)
    for log_offset in log_offsets:
        records.push(<const RecordHeader *>memory.at(log_offset))
    return records


def heads_at(LogMemory memory not None, list log_offsets not None):
    """(log_offset, QoS, client_id) of the messages at given log_offsets, without those that are not kept (any more)."""
    cdef const RecordHeader *record
    heads = []
    for log_offset in log_offsets:
        try:
            record = <const RecordHeader *>memory.at(log_offset)
        except LookupError:
            continue
        heads.append((log_offset, record.flags & FLAG_QOS, client_id_of(record)[:record.client_id_length]))
    return heads
