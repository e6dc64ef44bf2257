"""Compiled leaf: where the parts of many records lie, and their bytes brought together. For readers that work by column.

The bytes are verified by store.records._records.verify; positions are counted from their beginning. No policy, no I/O but pread.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EINTR, errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset
from posix.unistd cimport pread

from store.records._records cimport (
    HEADER_BYTES, TYPE_BATCH, TYPE_GAP, TYPE_MESSAGE, USER_PROPERTY, RecordHeader, fault, length_prefixed, property_codes, stamp,
    value_bytes,
)

from store.records.publish_properties import COLUMN_PROPERTIES, COLUMN_ROWS

cdef enum:
    NOTHING = -1

cdef uint8_t column_rows[256]       # by identifier of a property: its row, from 1 on; 0: it has none
cdef int ROWS = len(COLUMN_PROPERTIES)
memcpy(column_rows, PyBytes_AS_STRING(COLUMN_ROWS), sizeof(column_rows))


def find_messages(const uint8_t[::1] data not None, int64_t[::1] positions not None, uint8_t skipped_flags):
    """Put down where each MESSAGE begins that has none of these flags, batches opened.

    There must be room for one in HEADER_BYTES of data. Returns how many there are, and where the first GAP begins, or -1.
    """
    cdef size_t at = 0, size = data.shape[0]
    cdef Py_ssize_t count = 0, gap = -1
    cdef const RecordHeader *record
    if positions.shape[0] * HEADER_BYTES < data.shape[0]:
        raise ValueError("too little room for the positions")
    with nogil:
        while at + HEADER_BYTES <= size:
            record = <const RecordHeader *>&data[at]
            if record.type == TYPE_BATCH:
                at += HEADER_BYTES
                continue
            if record.type == TYPE_MESSAGE and not record.flags & skipped_flags:
                positions[count] = at
                count += 1
            elif record.type == TYPE_GAP and gap < 0:
                gap = at
            if record.length < HEADER_BYTES:
                break           # not verified: rather stop than turn in a circle
            at += record.length
    return count, gap


def read_parts(int fd, const int64_t[::1] places not None, const int32_t[::1] sizes not None,
               uint8_t[::1] data not None):
    """Read parts of a file, each from its own place, one after the other into `data`. Returns how many bytes there were.

    It ends where the file does not have all of a part. Raises OSError, and ValueError where there is too little room.
    """
    cdef Py_ssize_t i = 0, count = places.shape[0], room = data.shape[0], at = 0, left
    cdef ssize_t got = 0
    cdef bint fits = sizes.shape[0] == count
    cdef int failed = 0
    with nogil:
        while fits and i < count:
            left = sizes[i]
            if left < 0 or at + left > room:
                fits = False
                break
            while left:
                got = pread(fd, &data[at], left, places[i] + sizes[i] - left)
                if got < 0 and errno == EINTR:
                    continue
                if got <= 0:
                    failed = errno if got else 0
                    break
                at += got
                left -= got
            if left:
                break
            i += 1
    if not fits:
        raise ValueError("the parts are not of one size with the data")
    if failed:
        raise OSError(failed, os.strerror(failed))
    return at


def verify_each(const uint8_t[::1] data not None, const int64_t[::1] log_offsets not None,
                const int32_t[::1] sizes not None):
    """Look at records that stand one after the other in `data`, but in the log at places of their own.

    Returns (how many are right, what is wrong with the next one or None).
    """
    cdef size_t at = 0, room = data.shape[0]
    cdef Py_ssize_t i = 0, count = min(log_offsets.shape[0], sizes.shape[0])
    cdef const char *base = <const char *>&data[0] if room else NULL
    cdef const char *reason = NULL
    with nogil:
        while i < count:
            reason = fault(base + at, room - at, log_offsets[i])
            if reason == NULL and (<const RecordHeader *>(base + at)).length != <uint32_t>sizes[i]:
                reason = b"of another size than its queue says"
            if reason != NULL:
                break
            at += sizes[i]
            i += 1
    return i, None if reason == NULL else reason.decode()


def gather(const uint8_t[::1] data not None, const int64_t[::1] starts not None, const int32_t[::1] lengths not None,
           int32_t[::1] offsets not None, uint8_t[::1] values not None):
    """Copy parts of `data` one after the other; offsets[i] to offsets[i + 1] is where part i stands in `values`.

    Lengths below 0 count as 0. Raises ValueError where a part reaches past the data or there is too little room.
    """
    cdef Py_ssize_t i, count = starts.shape[0]
    cdef int64_t size, total = 0
    cdef bint fits = True
    if lengths.shape[0] != count or offsets.shape[0] != count + 1:
        raise ValueError("starts, lengths and offsets are not of one size")
    with nogil:
        offsets[0] = 0
        for i in range(count):
            size = max(lengths[i], 0)
            if starts[i] < 0 or starts[i] + size > data.shape[0] or total + size > values.shape[0]:
                fits = False
                break
            if size:
                memcpy(&values[total], &data[starts[i]], size)
            total += size
            offsets[i + 1] = <int32_t>total
    if not fits:
        raise ValueError(f"part {i} lies outside of the data, or there is no room for it")


def scatter(const uint8_t[::1] data not None, const int64_t[::1] starts not None, const int32_t[::1] lengths not None,
            uint8_t[::1] to not None, int64_t[::1] at not None):
    """Copy part i of `data` to to[at[i]:], and move at[i] after it. Lengths below 0 count as 0.

    Raises ValueError where a part reaches past the data, or past where it is to go.
    """
    cdef Py_ssize_t i, count = starts.shape[0]
    cdef int64_t size
    cdef bint fits = True
    if lengths.shape[0] != count or at.shape[0] != count:
        raise ValueError("starts, lengths and places are not of one size")
    with nogil:
        for i in range(count):
            size = max(lengths[i], 0)
            if starts[i] < 0 or starts[i] + size > data.shape[0] or at[i] < 0 or at[i] + size > to.shape[0]:
                fits = False
                break
            if size:
                memcpy(&to[at[i]], &data[starts[i]], size)
            at[i] += size
    if not fits:
        raise ValueError(f"part {i} lies outside of the data, or there is no room for it")


cdef inline int64_t value_end(const uint8_t *codes, const uint8_t *data, int64_t at, int64_t end) noexcept nogil:
    """Where the property at `at` ends; -1 if it is none of a PUBLISH packet or is cut off. `codes`: property_codes."""
    cdef Py_ssize_t size = value_bytes(codes[data[at]], <const char *>data + at + 1, end - at - 1)
    return at + 1 + size if size >= 0 else -1


def find_properties(const uint8_t[::1] data not None, const int64_t[::1] starts not None,
                    const int32_t[::1] lengths not None, int64_t[:, ::1] found not None,
                    int32_t[:, ::1] sizes not None, int32_t[::1] pair_counts not None):
    """Of each record's properties: where the values of COLUMN_PROPERTIES stand (a row of `found` and `sizes` for each;
    size -1: it has none), and how many user properties there are.

    Raises ValueError where properties reach past the data.
    """
    cdef Py_ssize_t i, count = starts.shape[0]
    cdef int64_t at, end, next_at
    cdef int row, rows = ROWS, pairs
    cdef uint8_t identifier
    cdef const uint8_t *codes = property_codes
    cdef const uint8_t *base = &data[0] if data.shape[0] else NULL
    check_bounds(data, starts, lengths)
    if min(found.shape[1], sizes.shape[1], pair_counts.shape[0]) < count or min(found.shape[0], sizes.shape[0]) < rows:
        raise ValueError("too little room for what is found")
    with nogil:
        for i in range(count):
            for row in range(rows):
                found[row, i] = 0
                sizes[row, i] = NOTHING
            pairs = 0
            at = starts[i]
            end = at + lengths[i]
            while at < end:
                identifier = base[at]
                next_at = value_end(codes, base, at, end)
                if next_at < 0:
                    break
                row = column_rows[identifier] - 1
                if row >= 0:
                    found[row, i] = at + 3
                    sizes[row, i] = <int32_t>(next_at - at - 3)
                elif identifier == USER_PROPERTY:
                    pairs += 1
                at = next_at
            pair_counts[i] = pairs


def find_attribute(const uint8_t[::1] data not None, const int64_t[::1] starts not None,
                   const int32_t[::1] lengths not None, uint8_t tag, int64_t[::1] found not None,
                   int32_t[::1] sizes not None):
    """Of each record's attributes: where the value of the one with this tag stands, and its size (-1: it has none).

    Raises ValueError where attributes reach past the data.
    """
    cdef Py_ssize_t i, count = starts.shape[0]
    cdef int64_t at, end, size
    check_bounds(data, starts, lengths)
    if min(found.shape[0], sizes.shape[0]) < count:
        raise ValueError("too little room for what is found")
    with nogil:
        for i in range(count):
            found[i] = 0
            sizes[i] = NOTHING
            at = starts[i]
            end = at + lengths[i]
            while at + 3 <= end:
                size = data[at + 1] | <int64_t>data[at + 2] << 8
                if at + 3 + size > end:
                    break
                if data[at] == tag:
                    found[i] = at + 3
                    sizes[i] = <int32_t>size
                    break
                at += 3 + size


def find_pairs(const uint8_t[::1] data not None, const int64_t[::1] starts not None,
               const int32_t[::1] lengths not None, int64_t[:, ::1] found not None, int32_t[:, ::1] sizes not None):
    """Where the keys (row 0) and values (row 1) of all user properties stand, record by record. Returns their number."""
    cdef Py_ssize_t i, count = 0, room = min(found.shape[1], sizes.shape[1])
    cdef int64_t at, end, next_at, middle
    cdef const uint8_t *codes = property_codes
    cdef const uint8_t *base = &data[0] if data.shape[0] else NULL
    check_bounds(data, starts, lengths)
    if min(found.shape[0], sizes.shape[0]) < 2:
        raise ValueError("too little room for what is found")
    with nogil:
        for i in range(starts.shape[0]):
            at = starts[i]
            end = at + lengths[i]
            while at < end:
                next_at = value_end(codes, base, at, end)
                if next_at < 0:
                    break
                if base[at] == USER_PROPERTY and count < room:
                    middle = at + 1 + length_prefixed(<const char *>base + at + 1)
                    found[0, count] = at + 3
                    sizes[0, count] = <int32_t>(middle - at - 3)
                    found[1, count] = middle + 2
                    sizes[1, count] = <int32_t>(next_at - middle - 2)
                    count += 1
                at = next_at
    return count


cdef int check_bounds(const uint8_t[::1] data, const int64_t[::1] starts, const int32_t[::1] lengths) except -1:
    cdef Py_ssize_t i
    if lengths.shape[0] != starts.shape[0]:
        raise ValueError("starts and lengths are not of one size")
    for i in range(starts.shape[0]):
        if starts[i] < 0 or lengths[i] < 0 or starts[i] + lengths[i] > data.shape[0]:
            raise ValueError(f"part {i} lies outside of the data")
    return 0


cdef class Parts:
    """A column of bytes. Row i has data[offsets[n]:offsets[n + 1]], where n is numbers[i], or i if there are no numbers.

    Raises ValueError where a part or a number lies outside.
    """
    cdef const int32_t[::1] offsets, numbers
    cdef const uint8_t[::1] data
    cdef bint is_numbered
    cdef readonly Py_ssize_t count

    def __init__(self, const int32_t[::1] offsets not None, const uint8_t[::1] data not None, numbers=None):
        cdef Py_ssize_t i, parts = offsets.shape[0] - 1
        self.offsets, self.data = offsets, data
        self.is_numbered = numbers is not None
        if parts < 0 or offsets[0] < 0 or offsets[parts] > data.shape[0]:
            raise ValueError("a part lies outside of the data")
        for i in range(parts):
            if offsets[i] > offsets[i + 1]:
                raise ValueError(f"part {i} ends before it begins")
        self.count = parts
        if self.is_numbered:
            self.numbers = numbers
            self.count = self.numbers.shape[0]
            for i in range(self.count):
                if not 0 <= self.numbers[i] < parts:
                    raise ValueError(f"row {i} has a part that is not there")

    cdef inline int32_t of(self, Py_ssize_t row) noexcept nogil:
        return self.numbers[row] if self.is_numbered else <int32_t>row

    cdef inline int64_t size(self, Py_ssize_t row) noexcept nogil:
        cdef int32_t n = self.of(row)
        return self.offsets[n + 1] - self.offsets[n]

    cdef inline char *copy(self, Py_ssize_t row, char *to) noexcept nogil:
        """Returns where it ends."""
        cdef int32_t n = self.of(row)
        cdef size_t size = self.offsets[n + 1] - self.offsets[n]
        if size:
            memcpy(to, &self.data[self.offsets[n]], size)
        return to + size


cdef class MessageColumns:
    """The parts of messages by column; row i of each is of message i. Raises ValueError if the columns are not of one
    size, or a part is too long for a record."""
    cdef const int64_t[::1] log_offsets, timestamps_ms
    cdef const int16_t[::1] flags
    cdef Parts topics, client_ids, attributes, properties, payloads
    cdef readonly Py_ssize_t count

    def __init__(self, const int64_t[::1] log_offsets not None, const int64_t[::1] timestamps_ms not None,
                 const int16_t[::1] flags not None, Parts topics not None, Parts client_ids not None,
                 Parts attributes not None, Parts properties not None, Parts payloads not None):
        cdef Py_ssize_t i, count = log_offsets.shape[0]
        if any(size != count for size in (timestamps_ms.shape[0], flags.shape[0], topics.count, client_ids.count,
                                          attributes.count, properties.count, payloads.count)):
            raise ValueError("the columns are not of one size")
        for i in range(count):
            if max(topics.size(i), client_ids.size(i), attributes.size(i)) > 0xFFFF:
                raise ValueError(f"a part of message {i} is too long for a record")
        self.count = count
        self.log_offsets, self.timestamps_ms, self.flags = log_offsets, timestamps_ms, flags
        self.topics, self.client_ids, self.attributes = topics, client_ids, attributes
        self.properties, self.payloads = properties, payloads

    cdef inline int64_t size(self, Py_ssize_t row) noexcept nogil:
        cdef int64_t size = HEADER_BYTES + self.topics.size(row) + self.client_ids.size(row) + self.attributes.size(row)
        return size + self.properties.size(row) + self.payloads.size(row) + 7 & ~7

    def sizes(self, const int64_t[::1] rows not None, int64_t[::1] sizes not None):
        """Put down how long the record of each of these rows is, in bytes."""
        cdef Py_ssize_t i
        self.check(rows, sizes)
        with nogil:
            for i in range(rows.shape[0]):
                sizes[i] = self.size(rows[i])

    def put(self, const int64_t[::1] rows not None, const int64_t[::1] places not None, uint8_t[::1] to not None):
        """Put the messages of these rows in log format to their places in `to`, each with the log_offset that it had.

        Raises ValueError where there is no room.
        """
        cdef Py_ssize_t i
        cdef int64_t room = to.shape[0]
        cdef bint fits = True
        self.check(rows, places)
        with nogil:
            for i in range(rows.shape[0]):
                fits = 0 <= places[i] <= room - self.size(rows[i])
                if not fits:
                    break
                self.put_one(rows[i], <char *>&to[places[i]])
        if not fits:
            raise ValueError(f"there is no room for message {rows[i]}")

    cdef void put_one(self, Py_ssize_t row, char *to) noexcept nogil:
        cdef RecordHeader *header = <RecordHeader *>to
        cdef int64_t size = self.size(row)
        cdef char *end = to + HEADER_BYTES
        header.length = <uint32_t>size
        header.type = TYPE_MESSAGE
        header.flags = <uint8_t>self.flags[row]
        header.topic_length = <uint16_t>self.topics.size(row)
        header.client_id_length = <uint16_t>self.client_ids.size(row)
        header.attributes_length = <uint16_t>self.attributes.size(row)
        header.properties_length = <uint32_t>self.properties.size(row)
        header.payload_length = <uint32_t>self.payloads.size(row)
        end = self.topics.copy(row, end)
        end = self.client_ids.copy(row, end)
        end = self.attributes.copy(row, end)
        end = self.properties.copy(row, end)
        end = self.payloads.copy(row, end)
        memset(end, 0, to + size - end)
        stamp(to, size, self.log_offsets[row], self.timestamps_ms[row])

    cdef int check(self, const int64_t[::1] rows, const int64_t[::1] beside) except -1:
        cdef Py_ssize_t i
        if beside.shape[0] != rows.shape[0]:
            raise ValueError("one number for each row is wanted")
        for i in range(rows.shape[0]):
            if not 0 <= rows[i] < self.count:
                raise ValueError(f"message {rows[i]} is not there")
        return 0
