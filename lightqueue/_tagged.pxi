# Part of _queues.pyx: of a queue's messages those with one tag. An entry has the tag's hash, so the others are not looked at.


def tagged_tail(LogMemory memory not None, Queue queue not None, uint64_t start, bytes tag not None, uint64_t stop,
                uint64_t most_entries, uint64_t max_bytes):
    """Records with a tag from the tail of a queue: from queue_offset `start`, which is in it, and before log_offset `stop`.

    Looks at `most_entries`, and ends with the record that makes it `max_bytes`. Gives the Records (their queue_offsets
    mean nothing), the queue_offset to go on from, and that entry's log_offset, or 0 if the tail has no more.
    """
    if start < queue.tail_first:
        raise ValueError("older than the tail")
    return pick(memory, queue.tail, queue.tail_count, queue.tail_first, start, tag, stop, most_entries, max_bytes)


def tagged_pack(LogMemory memory not None, bytes pack not None, uint64_t pack_first, uint64_t start, bytes tag not None,
                uint64_t stop, uint64_t most_entries, uint64_t max_bytes):
    """The same from a pack of entries."""
    return pick(memory, <const Entry *>PyBytes_AS_STRING(pack), PyBytes_GET_SIZE(pack) // sizeof(Entry), pack_first, start,
                tag, stop, most_entries, max_bytes)


cdef tuple pick(LogMemory memory, const Entry *entries, uint64_t count, uint64_t first, uint64_t start, bytes tag,
                uint64_t stop, uint64_t most_entries, uint64_t max_bytes):
    cdef Records records = Records(start)
    cdef uint64_t at = start - first, total = 0
    cdef uint64_t wanted = fnv1a(Part(PyBytes_AS_STRING(tag), PyBytes_GET_SIZE(tag)))
    cdef const RecordHeader *record
    count = min(count, at + most_entries)
    while at < count and entries[at].log_offset < stop and total < max_bytes:
        if entries[at].tag_hash == wanted:
            try:
                record = <const RecordHeader *>memory.at(entries[at].log_offset)
            except LookupError:         # dropped by retention
                record = NULL
            if record != NULL and has_tag(record, tag):
                records.push(record)
                total += record.length
        at += 1
    return records, first + at, entries[at].log_offset if at < count else 0


cdef bint has_tag(const RecordHeader *record, bytes tag) noexcept:
    cdef Part found = attribute(record, ATTRIBUTE_TAG)
    return (found.data != NULL and found.size == <size_t>PyBytes_GET_SIZE(tag)
            and memcmp(found.data, PyBytes_AS_STRING(tag), found.size) == 0)


def with_tag(Records records not None, bytes tag not None):
    """Those records that have a tag; what they point into is kept as `records` keep it, so keep those as well."""
    cdef Records found = Records(records.first)
    cdef Py_ssize_t i
    for i in range(records.count):
        if has_tag(records.items[i], tag):
            found.push(records.items[i])
    return found
