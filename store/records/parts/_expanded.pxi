# Part of _records.pyx: compressed payloads (zstd frames) and what they state of themselves.

cdef enum:
    ZSTD_MAGIC = 0xFD2FB528


cdef const char *compressed_fault(const unsigned char *frame, size_t size, uint64_t most_plain_bytes) noexcept nogil:
    """Why a compressed payload must not get into the log, or NULL: what it says in its frame header (RFC 8878, 3.1.1.1)."""
    cdef unsigned char described
    cdef size_t at, size_bytes, i
    cdef uint64_t plain_bytes = 0
    cdef uint32_t magic = 0
    if size < 6:
        return b"compressed payload that is no zstd frame"
    memcpy(&magic, frame, 4)
    described = frame[4]
    if magic != ZSTD_MAGIC or described & 8:
        return b"compressed payload that is no zstd frame"
    if described & 3:
        return b"compressed payload that needs a dictionary"
    at = 5 if described & 32 else 6                     # after the window's size
    size_bytes = 1 << (described >> 6)
    if size_bytes == 1 and not described & 32:
        return b"compressed payload that does not state its size"
    if size < at + size_bytes:
        return b"compressed payload that is no zstd frame"
    for i in range(size_bytes):
        plain_bytes |= <uint64_t>frame[at + i] << (8 * i)
    if size_bytes == 2:
        plain_bytes += 256
    if not plain_bytes:
        return b"compressed payload of nothing"
    if plain_bytes > most_plain_bytes:
        return b"compressed payload that states more than store.max_plain_bytes"
    return NULL


def blank_record(Records records not None, Py_ssize_t i, size_t payload_bytes):
    """Record number i with room for a payload that is not compressed, which fill_record() puts there. Its checksum is that of
    the old one."""
    cdef const RecordHeader *record = item_of(records, i)
    cdef size_t head = HEADER_BYTES + <size_t>record.topic_length + record.client_id_length
    cdef size_t size
    cdef bytes data
    cdef RecordHeader *made
    head += <size_t>record.attributes_length + record.properties_length
    size = padded(head + payload_bytes)
    data = PyBytes_FromStringAndSize(NULL, size)
    made = <RecordHeader *>PyBytes_AS_STRING(data)
    memcpy(made, record, head)
    made.flags = record.flags & ~FLAG_COMPRESSED
    made.length = <uint32_t>size
    made.payload_length = <uint32_t>payload_bytes
    memset(<char *>made + head + payload_bytes, 0, size - head - payload_bytes)
    return data


def fill_record(bytes record not None, size_t at, bytes piece not None):
    """Put a part of its payload into a record that has no other user so far, `at` there."""
    cdef const RecordHeader *made = <const RecordHeader *>PyBytes_AS_STRING(record)
    if at + PyBytes_GET_SIZE(piece) > made.payload_length:
        raise ValueError("more than the record has room for")
    memcpy(<char *>payload_of(made) + at, PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))


cdef const RecordHeader *item_of(Records records, Py_ssize_t i) except NULL:
    if not 0 <= i < records.count:
        raise IndexError(i)
    return records.items[i]


def head_of(Records records not None, Py_ssize_t i):
    """The header of record i: of a record of the log it says which one that is, as it has log_offset, time and checksum."""
    return (<const char *>item_of(records, i))[:HEADER_BYTES]


def payload_at(Records records not None, Py_ssize_t i):
    """A copy of the payload of record i."""
    cdef const RecordHeader *record = item_of(records, i)
    return payload_of(record)[:record.payload_length]


def expanded(Records records not None, whole, uint64_t most_bytes, Py_ssize_t start=0, Py_ssize_t count=-1):
    """Records from number `start` on with payloads as they were published; `records` itself if none of these is compressed.

    `whole` gets `records` and the number of a compressed one, and gives that record with its payload as it was published; None:
    it stays as it is; False: that will be known later. Before such a record the range ends; None if it is the first.
    The range ends early once its payloads have `most_bytes`. What `whole` gave is in `blocks`, by the number.
    """
    cdef Py_ssize_t i, end = records.count if count < 0 else min(start + count, records.count)
    cdef const RecordHeader *record
    cdef uint8_t flags = 0
    cdef uint64_t total = 0
    cdef Records found
    if records.flags & FLAG_COMPRESSED:
        for i in range(start, end):
            flags |= records.items[i].flags
    if not flags & FLAG_COMPRESSED:
        return records
    found = Records(records.first + start)
    found.owner = records
    for i in range(start, end):
        record = records.items[i]
        data = whole(records, i) if record.flags & FLAG_COMPRESSED else None
        if data is False:
            return found if found.count else None
        if data is not None:
            record = <const RecordHeader *>PyBytes_AS_STRING(<bytes?>data)
            found.blocks[found.count] = data
        found.push(record)
        total += record.payload_length
        if total >= most_bytes:
            break
    return found
