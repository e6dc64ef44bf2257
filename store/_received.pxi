# Part of _records.pyx: records that come from another process, or go there.


cdef const char *shape_fault(const char *data, size_t room, RecordHeader *header) noexcept nogil:
    """Why no whole record stands here, or NULL if one does; offset and checksum are not looked at. Gives its header."""
    cdef size_t at
    if room < HEADER_BYTES:
        return b"cut off in its header"
    memcpy(header, data, HEADER_BYTES)      # it may stand at an odd address
    if header.length < HEADER_BYTES or header.length & 7:
        return b"impossible length"
    if header.length > room:
        return b"longer than what is left"
    at = content_bytes(header)
    if padded(at) != header.length:
        return b"parts do not add up to its length"
    while at < header.length:
        if data[at]:
            return b"padding that is not zero"
        at += 1
    if header.type == TYPE_MESSAGE and not header.topic_length:
        return b"message without a topic"
    if header.type == TYPE_BATCH and header.payload_length != header.length - HEADER_BYTES:
        return b"batch that holds more than records"
    return NULL


cdef Py_ssize_t check(const char *data, size_t size, const unsigned char[::1] types) except -1:
    """How many records bytes from another process hold, batches opened. Raises ValueError if they are not whole ones."""
    cdef RecordHeader header
    cdef unsigned char known[256]
    cdef size_t at = 0, batch_end = 0, i
    cdef Py_ssize_t count = 0
    cdef const char *reason
    memset(known, types is None, sizeof(known))
    if types is not None:
        for i in range(<size_t>types.shape[0]):
            known[types[i]] = True
    while at < size:
        reason = shape_fault(data + at, (batch_end if at < batch_end else size) - at, &header)
        if reason == NULL and not known[header.type]:
            reason = b"type that is not allowed"
        if reason == NULL and header.type == TYPE_BATCH and at < batch_end:
            reason = b"batch in a batch"
        if reason != NULL:
            raise ValueError(f"record at byte {at}: {reason.decode()}")
        if header.type == TYPE_BATCH:
            batch_end = at + header.length
            at += HEADER_BYTES
        else:
            at += header.length
            count += 1
    return count


def check_records(const unsigned char[::1] data not None, const unsigned char[::1] types=None):
    """How many records bytes from another process hold, batches opened and not counted themselves.

    Raises ValueError, naming the position and the fault, if they are not whole records, or of another type than `types`
    lists (None: any). What nobody but the log fills in is not looked at: offset, time, checksum.
    """
    return check(<const char *>&data[0] if data.shape[0] else NULL, data.shape[0], types)


def records_bytes(Records records not None, Py_ssize_t start=0, Py_ssize_t count=-1):
    """`count` records (-1: all) from number `start` on, in log format, one after another. IndexError if there are fewer."""
    cdef Py_ssize_t i, end
    cdef size_t size = 0
    cdef bytes data
    cdef char *to
    if not 0 <= start <= records.count or count > records.count - start:
        raise IndexError(f"{count} records from number {start} on, of {records.count}")
    end = records.count if count < 0 else start + count
    for i in range(start, end):
        size += records.items[i].length
    data = PyBytes_FromStringAndSize(NULL, size)
    to = PyBytes_AS_STRING(data)
    for i in range(start, end):
        to = copy(to, Part(<const char *>records.items[i], records.items[i].length))
    return data


cdef const unsigned char[::1] lasting(data):
    """A buffer, or a copy of it if it may change or if records in it would stand at odd addresses."""
    cdef const unsigned char[::1] view = data if memoryview(data).readonly else bytes(data)
    return bytes(data) if view.shape[0] and <size_t>&view[0] & 7 else view


cdef size_t receive(Records records, const unsigned char[::1] data, size_t at, Py_ssize_t count) except? 0:
    """Point at `count` checked records from byte `at` on, batches opened; where the next one is."""
    cdef const RecordHeader *record
    records.owner = data
    while records.count < count:
        record = <const RecordHeader *>&data[at]
        if record.type == TYPE_BATCH:
            at += HEADER_BYTES
            continue
        records.push(record)
        at += record.length
    return at


def records_from(data not None, uint64_t first):
    """Records from another process as those of a queue from queue_offset `first` on, batches opened.

    They point into `data`, which they keep; it is copied if it is writable or not aligned to 8 bytes. ValueError as from
    check_records().
    """
    cdef const unsigned char[::1] view = lasting(data)
    cdef Records records = Records(first)
    receive(records, view, 0, check_records(view))
    return records


def ranges_from(data not None, list ranges not None):
    """The same for records of several ranges, one range after another: (queue_offset of the first, how many) of each."""
    cdef const unsigned char[::1] view = lasting(data)
    cdef Py_ssize_t left = check_records(view), count
    cdef size_t at = 0
    cdef uint64_t first
    cdef Records records
    found = []
    for first, count in ranges:
        if not 0 <= count <= left:
            raise ValueError(f"a range of {count} records where {left} are left")
        records = Records(first)
        at = receive(records, view, at, count)
        left -= count
        found.append(records)
    if left:
        raise ValueError(f"{left} records behind the last range")
    return found
