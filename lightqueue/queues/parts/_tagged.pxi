# Part of _queues.pyx: of a queue's messages those with one tag. An entry has the tag's hash, so the others are not looked at.


def tagged_tail(LogMemory memory not None, Queue queue not None, uint64_t start, bytes tag not None, uint64_t stop,
                uint64_t most_entries, uint64_t max_bytes):
    """Records with a tag from the tail of a queue: from queue_offset `start`, which is in it, and before log_offset `stop`.

    Looks at `most_entries`, and ends with the record that makes it `max_bytes`. Gives the Records (their queue_offsets
    mean nothing), the queue_offset to go on from, that entry's log_offset, or 0 if the tail has no more, and how many with
    the tag are lost in front of that; those in front of the first record it says itself.
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
    cdef uint64_t lost = 0, lost_first = 0
    cdef const RecordHeader *record
    count = min(count, at + most_entries)
    while at < count and entries[at].log_offset < stop and total < max_bytes:
        if entries[at].tag_hash == wanted:
            try:
                record = <const RecordHeader *>memory.at(entries[at].log_offset)
            except LookupError:
                record = NULL
                if memory.mapping_count and entries[at].log_offset >= memory.mappings[0].base:  # else retention dropped it
                    if records.count:
                        break           # the next range begins with it
                    lost += 1
            if record != NULL and has_tag(record, tag):
                if not records.count:
                    lost_first, lost = lost, 0
                records.push(record)
                total += record.length
        at += 1
    return marked(records, lost_first), first + at, entries[at].log_offset if at < count else 0, lost


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


def tagged_run_in_tail(Queue queue not None, uint64_t start, list tags not None, uint64_t most_entries):
    """(at, until): the first entries in a row, from queue_offset `start` in the tail on, whose hash is that of one of these
    tags. Looks at `most_entries`; at == until: none of those has one, and there is more to look at from there on.
    """
    if start < queue.tail_first:
        raise ValueError("older than the tail")
    return run_of(queue.tail, queue.tail_count, queue.tail_first, start, tags, most_entries)


def tagged_run_in_pack(bytes pack not None, uint64_t pack_first, uint64_t start, list tags not None, uint64_t most_entries):
    """The same in a pack of entries."""
    return run_of(<const Entry *>PyBytes_AS_STRING(pack), PyBytes_GET_SIZE(pack) // sizeof(Entry), pack_first, start, tags,
                  most_entries)


cdef enum:
    MOST_TAGS = 32      # that a run is of


cdef tuple run_of(const Entry *entries, uint64_t count, uint64_t first, uint64_t start, list tags, uint64_t most_entries):
    cdef uint64_t wanted[MOST_TAGS]
    cdef uint64_t at = start - first, until
    cdef int number = 0
    cdef bytes tag
    if len(tags) > MOST_TAGS:
        raise ValueError(f"{len(tags)} tags; {MOST_TAGS} at most")
    for tag in tags:
        wanted[number] = fnv1a(Part(PyBytes_AS_STRING(tag), PyBytes_GET_SIZE(tag)))
        number += 1
    count = min(count, at + most_entries)
    while at < count and not is_one_of(entries[at].tag_hash, wanted, number):
        at += 1
    until = at
    while until < count and is_one_of(entries[until].tag_hash, wanted, number):
        until += 1
    return first + at, first + until


cdef inline bint is_one_of(uint64_t found, const uint64_t *wanted, int number) noexcept nogil:
    cdef int i
    for i in range(number):
        if wanted[i] == found:
            return True
    return False


def tagged_records(Records records not None, Py_ssize_t start, list tags not None):
    """(at, until): the first records in a row, from number `start` on, that have one of these tags; their end twice, if none."""
    cdef Py_ssize_t at = start, until
    while at < records.count and not has_one_of(records.items[at], tags):
        at += 1
    until = at
    while until < records.count and has_one_of(records.items[until], tags):
        until += 1
    return at, until


cdef bint has_one_of(const RecordHeader *record, list tags):
    cdef bytes tag
    for tag in tags:
        if has_tag(record, tag):
            return True
    return False


cdef uint64_t fnv1a(Part text) noexcept nogil:
    """64-bit FNV-1a, and 1 for what would be 0."""
    cdef uint64_t found = 0xcbf29ce484222325
    cdef size_t i
    for i in range(text.size):
        found = (found ^ <unsigned char>text.data[i]) * <uint64_t>0x100000001b3
    return found or 1


cdef uint64_t tag_hash(const RecordHeader *record) noexcept nogil:
    cdef Part tag = attribute(record, ATTRIBUTE_TAG)
    return fnv1a(tag) if tag.data != NULL else 0


cdef bint changes_state(const RecordHeader *record) noexcept nogil:
    """Whether a message has an attribute that is state."""
    return (attribute(record, ATTRIBUTE_PACKET_ID).data != NULL or attribute(record, ATTRIBUTE_DUE_MS).data != NULL
            or attribute(record, ATTRIBUTE_COUNTED).data != NULL)
