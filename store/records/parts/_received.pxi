# Part of _records.pyx: records that come from another process, or go there.

cdef enum:
    KEPT_CHANGES = 6            # of changes_in(): store.records.records has these two as well
    TOPIC_UNIT_BYTES = 64


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


def has_flags(Records records not None, int flags):
    """Whether any of the records has one of these flags."""
    cdef Py_ssize_t i
    for i in range(records.count):
        if records.items[i].flags & flags:
            return True
    return False


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


def records_size(Records records not None):
    """How many bytes records_bytes() would give."""
    cdef Py_ssize_t i
    cdef size_t size = 0
    for i in range(records.count):
        size += records.items[i].length
    return size


def lasting_records(Records records not None, Py_ssize_t start, Py_ssize_t count):
    """Some of the records as a range of its own that stays valid: a copy of them. IndexError if there are fewer."""
    cdef Records found = Records(records.first + start)
    cdef bytes data = records_bytes(records, start, count)
    cdef const char *at = PyBytes_AS_STRING(data)
    found.owner = data
    while found.count < count:
        found.push(<const RecordHeader *>at)
        at += found.items[found.count - 1].length
    return found


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


def plain_messages(list payloads not None, bytes topic not None, uint8_t flags):
    """Messages in log format that have a topic, flags and a payload, and nothing else."""
    cdef RecordBatch batch = RecordBatch()
    cdef Part nothing = Part(NULL, 0)
    for payload in payloads:
        batch.add(TYPE_MESSAGE, flags, part(topic), nothing, nothing, nothing, part(payload))
    return bytes(batch)


def plain_messages_of(list payloads not None, list heads not None):
    """The same of many topics: for each payload its (topic, flags)."""
    cdef RecordBatch batch = RecordBatch()
    cdef Part nothing = Part(NULL, 0)
    cdef Py_ssize_t i
    cdef bytes topic
    if len(payloads) != len(heads):
        raise ValueError(f"{len(payloads)} payloads and {len(heads)} heads")
    for i in range(len(payloads)):
        topic, flags = heads[i]
        batch.add(TYPE_MESSAGE, flags, part(topic), nothing, nothing, nothing, part(payloads[i]))
    return bytes(batch)


def topic_runs(data not None):
    """Checked records without batches, as runs of one topic: (topic, byte of the first, how many, whether queues have
    them: what is LIVE_ONLY or DELAYED is in none)."""
    cdef size_t at = 0, start = 0
    cdef const RecordHeader *record
    cdef const RecordHeader *first = NULL
    cdef Py_ssize_t count = 0
    cdef list runs = []
    cdef const unsigned char[::1] view = lasting(data)
    while at < <size_t>view.shape[0]:
        record = <const RecordHeader *>&view[at]
        if first != NULL and is_other_topic(first, record):
            runs.append((topic_of(first)[:first.topic_length], start, count, not first.flags & FLAGS_IN_NO_QUEUE))
            first = NULL
        if first == NULL:
            first, start, count = record, at, 0
        count += 1
        at += record.length
    if first != NULL:
        runs.append((topic_of(first)[:first.topic_length], start, count, not first.flags & FLAGS_IN_NO_QUEUE))
    return runs


def changes_in(data not None):
    """How much checked messages change, as each Publish is stored as a whole: 1 for each run of one topic, KEPT_CHANGES
    for each retained or delayed message, and 1 more for TOPIC_UNIT_BYTES of such a topic."""
    cdef size_t at = 0
    cdef Py_ssize_t count = 0
    cdef const RecordHeader *record
    cdef const RecordHeader *last = NULL
    cdef const unsigned char[::1] view = lasting(data)
    while at < <size_t>view.shape[0]:
        record = <const RecordHeader *>&view[at]
        if record.flags & (FLAG_RETAIN | FLAG_DELAYED):
            count += KEPT_CHANGES + record.topic_length // TOPIC_UNIT_BYTES
        elif last == NULL or is_other_topic(last, record):
            count += 1 + record.topic_length // TOPIC_UNIT_BYTES
        last = record
        at += record.length
    return count


def flagged_in(data not None, unsigned char flags):
    """Where checked records without batches stand that have any of these flags: positions in bytes, ascending."""
    cdef size_t at = 0
    cdef list places = []
    cdef const RecordHeader *record
    cdef const unsigned char[::1] view = lasting(data)
    while at < <size_t>view.shape[0]:
        record = <const RecordHeader *>&view[at]
        if record.flags & flags:
            places.append(at)
        at += record.length
    return places


def places_of(data not None, bytes types not None):
    """Where checked records without batches stand that are of one of these types: positions in bytes, ascending."""
    cdef size_t at = 0
    cdef const unsigned char[::1] view = lasting(data)
    places = []
    while at < <size_t>view.shape[0]:
        if (<const RecordHeader *>&view[at]).type in types:
            places.append(at)
        at += (<const RecordHeader *>&view[at]).length
    return places


def cuts_between_changes(data not None, Py_ssize_t most):
    """Where to cut records that were not checked so far, so that no piece has more than `most` records that are no
    messages: positions in bytes, ascending. Empty: there are no more than `most`."""
    cdef size_t at = 0, size
    cdef Py_ssize_t count = 0
    cdef list cuts = []
    cdef const RecordHeader *record
    cdef const unsigned char[::1] view = lasting(data)
    size = <size_t>view.shape[0]
    while at + HEADER_BYTES <= size:
        record = <const RecordHeader *>&view[at]
        if record.length < HEADER_BYTES or record.length > size - at:
            break  # the check refuses it, at this place
        if record.type != TYPE_MESSAGE:
            if count == most:
                cuts.append(at)
                count = 0
            count += 1
        at += record.length
    return cuts


cdef bint is_other_topic(const RecordHeader *one, const RecordHeader *other) noexcept nogil:
    return ((one.flags ^ other.flags) & FLAGS_IN_NO_QUEUE or one.topic_length != other.topic_length
            or memcmp(topic_of(one), topic_of(other), one.topic_length) != 0)


def messages_in(data not None):
    """The messages in verified log bytes that queues have, batches opened: neither LIVE_ONLY, DELAYED nor CARRIED ones."""
    cdef const unsigned char[::1] view = data
    cdef size_t at = 0
    cdef const RecordHeader *record
    cdef Records records = Records(0)
    records.owner = view
    while at < <size_t>view.shape[0]:
        record = <const RecordHeader *>&view[at]
        if record.type == TYPE_BATCH:
            at += HEADER_BYTES
            continue
        if record.type == TYPE_MESSAGE and not record.flags & (FLAGS_IN_NO_QUEUE | FLAG_CARRIED):
            records.push(record)
        at += record.length
    return records


def topics_of(Records records not None):
    """The topic of each record; one object for those that follow each other and have the same."""
    cdef Py_ssize_t i
    cdef const RecordHeader *record
    cdef const RecordHeader *last = NULL
    cdef bytes topic = b""
    found = []
    for i in range(records.count):
        record = records.items[i]
        if last == NULL or is_other_topic(last, record):
            topic = topic_of(record)[:record.topic_length]
        found.append(topic)
        last = record
    return found
