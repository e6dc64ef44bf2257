# Part of _records.pyx: which messages have some bytes in their MQTT 5 properties, such as a user property's name.

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t size, const void *needle, size_t needle_size)


cdef inline bint has_property(const RecordHeader *record, Part needle) noexcept nogil:
    return (record.properties_length >= needle.size
            and memmem(properties_of(record), record.properties_length, needle.data, needle.size) != NULL)


def count_with(RecordBatch batch not None, bytes needle not None):
    """(messages in a batch, whether any of them has these bytes in its properties)."""
    cdef size_t at = 0
    cdef Py_ssize_t count = 0
    cdef bint is_found = False
    cdef const RecordHeader *record
    cdef Part wanted = part(needle)
    while at < batch.size:
        record = <const RecordHeader *>(batch.data + at)
        if record.type == TYPE_BATCH:
            at += HEADER_BYTES
            continue
        if record.type == TYPE_MESSAGE:
            count += 1
            is_found = is_found or has_property(record, wanted)
        at += record.length
    return count, is_found


def any_with(Records records not None, bytes needle not None):
    """Whether any of the records has these bytes in its properties."""
    cdef Py_ssize_t i
    cdef Part wanted = part(needle)
    for i in range(records.count):
        if has_property(records.items[i], wanted):
            return True
    return False


def places_with(const unsigned char[::1] data not None, bytes needle not None, chosen not None):
    """(number, place, whether it has these bytes in its properties) of the messages that have them or whose number is in
    `chosen`. `data`: checked records, whose batches are opened."""
    cdef size_t at = 0
    cdef Py_ssize_t number = 0
    cdef bint is_there
    cdef bint has_chosen = len(chosen) > 0
    cdef const RecordHeader *record
    cdef Part wanted = part(needle)
    found = []
    while at < <size_t>data.shape[0]:
        record = <const RecordHeader *>&data[at]
        if record.type == TYPE_BATCH:
            at += HEADER_BYTES
            continue
        if record.type == TYPE_MESSAGE:
            is_there = has_property(record, wanted)
            if is_there or (has_chosen and number in chosen):
                found.append((number, at, is_there))
            number += 1
        at += record.length
    return found
