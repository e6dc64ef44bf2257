"""Compiled leaf: the bytes of log records (docs/formats.md) — build, stamp, verify, find. No policy, no I/O but pwrite."""

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EINTR, errno
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset
from posix.unistd cimport pwrite

from store.records.publish_properties import CODES

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char *data, Py_ssize_t size, int flags)

cdef extern from "crc32c.h" nogil:
    uint32_t _crc32c "crc32c"(const void *data, size_t length)
    void crc32c_choose()

crc32c_choose()

assert sizeof(RecordHeader) == HEADER_BYTES

memcpy(property_codes, PyBytes_AS_STRING(CODES), sizeof(property_codes))


def crc32c(const unsigned char[::1] data not None):
    """CRC-32C of a buffer."""
    return _crc32c(&data[0] if data.shape[0] else NULL, data.shape[0])


cdef inline size_t padded(size_t size) noexcept nogil:
    return (size + 7) & ~<size_t>7


cdef inline size_t content_bytes(const RecordHeader *record) noexcept nogil:
    return (HEADER_BYTES + <size_t>record.topic_length + record.client_id_length
            + record.attributes_length + record.properties_length + record.payload_length)


cdef const char *topic_of(const RecordHeader *record) noexcept nogil:
    return <const char *>record + HEADER_BYTES

cdef const char *client_id_of(const RecordHeader *record) noexcept nogil:
    return topic_of(record) + record.topic_length

cdef const char *attributes_of(const RecordHeader *record) noexcept nogil:
    return client_id_of(record) + record.client_id_length

cdef const char *properties_of(const RecordHeader *record) noexcept nogil:
    return attributes_of(record) + record.attributes_length

cdef const char *payload_of(const RecordHeader *record) noexcept nogil:
    return properties_of(record) + record.properties_length


cdef inline Part part(bytes data):
    return Part(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline char *copy(char *to, Part source) noexcept nogil:
    memcpy(to, source.data, source.size)
    return to + source.size


cdef class RecordBatch:
    """Records in log format that will be appended together; offset, time and checksum are stamped by the log."""

    def __cinit__(self):
        self.atomic_at = -1

    def __dealloc__(self):
        free(self.data)

    def __bytes__(self):
        return PyBytes_FromStringAndSize(self.data, self.size)

    cdef char *grow(self, size_t extra) except NULL:
        cdef size_t wanted = self.size + extra
        cdef char *moved
        if wanted > self.capacity:
            wanted = max(wanted, self.capacity * 2, 16384)
            moved = <char *>realloc(self.data, wanted)
            if moved == NULL:
                raise MemoryError
            self.data = moved
            self.capacity = wanted
        return self.data + self.size

    cdef int add(self, uint8_t type, uint8_t flags, Part topic, Part client_id,
                 Part attributes, Part properties, Part payload) except -1:
        cdef size_t content = HEADER_BYTES + topic.size + client_id.size + attributes.size + properties.size + payload.size
        cdef size_t length = padded(content)
        cdef char *at = self.grow(length)
        cdef RecordHeader *header = <RecordHeader *>at
        header.length = <uint32_t>length
        header.crc = 0
        header.log_offset = 0
        header.timestamp_ms = 0
        header.type = type
        header.flags = flags
        header.topic_length = <uint16_t>topic.size
        header.client_id_length = <uint16_t>client_id.size
        header.attributes_length = <uint16_t>attributes.size
        header.properties_length = <uint32_t>properties.size
        header.payload_length = <uint32_t>payload.size
        at = copy(at + HEADER_BYTES, topic)
        at = copy(at, client_id)
        at = copy(at, attributes)
        at = copy(at, properties)
        at = copy(at, payload)
        memset(at, 0, length - content)
        self.size += length
        return 0

    @staticmethod
    def adopt(const unsigned char[::1] data not None, const unsigned char[::1] types not None, size_t limit=1 << 31):
        """A batch of records from another process: a copy, checked as by check_records(), of `limit` bytes at most."""
        cdef RecordBatch batch = RecordBatch()
        batch.size += batch.copy_in(data, types, limit)
        return batch

    def extend_checked(self, const unsigned char[::1] data not None, const unsigned char[::1] types not None,
                       size_t limit, uint64_t latest_due_ms=<uint64_t>-1,
                       uint64_t most_plain_bytes=<uint64_t>-1, bint may_count=False):
        """Add records of a peer, if they and what their messages say may stand in the log; there must be no batch.

        No delayed message may be due later than `latest_due_ms`, no compressed payload state more than `most_plain_bytes`.
        `may_count`: they may have the attribute COUNTED.
        Returns those that are no messages as tuples (fields as in store.records.records.Record), for somebody else to look at.
        Raises ValueError, naming the position and the fault; then none was added.
        """
        cdef size_t size = self.copy_in(data, types, limit)
        others = check_messages(self.data + self.size, size, latest_due_ms, most_plain_bytes, may_count)
        self.size += size
        return others

    cdef size_t copy_in(self, const unsigned char[::1] data, const unsigned char[::1] types, size_t limit) except? 0:
        """Put records from another process after those that are here, without counting them so far."""
        cdef size_t size = data.shape[0]
        cdef char *to
        if size > limit:
            raise ValueError(f"{size} bytes of records; at most {limit} are taken")
        if size:
            to = self.grow(size)
            memcpy(to, &data[0], size)
            check(to, size, types)
        return size

    def append(self, uint8_t type, bytes payload not None, *, bytes topic not None=b"", bytes client_id not None=b"",
               bytes attributes not None=b"", bytes properties not None=b"", uint8_t flags=0):
        """Add one record; sizes are bounded by the record header (topic, client id, attributes: 65,535 bytes)."""
        if max(len(topic), len(client_id), len(attributes)) > 65535:
            raise ValueError("topic, client_id and attributes are limited to 65,535 bytes each")
        self.add(type, flags, part(topic), part(client_id), part(attributes), part(properties), part(payload))

    def begin_atomic(self):
        """Everything up to end_atomic() becomes one batch record: all of it is recovered, or none."""
        if self.atomic_at >= 0:
            raise ValueError("batches do not nest")
        self.atomic_at = self.size
        self.add(TYPE_BATCH, 0, Part(NULL, 0), Part(NULL, 0), Part(NULL, 0), Part(NULL, 0), Part(NULL, 0))

    def end_atomic(self):
        if self.atomic_at < 0:
            raise ValueError("no batch was begun")
        cdef RecordHeader *header = <RecordHeader *>(self.data + self.atomic_at)
        header.length = <uint32_t>(self.size - self.atomic_at)
        header.payload_length = header.length - HEADER_BYTES
        self.atomic_at = -1

    def clear(self):
        self.size = 0
        self.atomic_at = -1

    def split(self, size_t limit):
        """The same records in batches of at most `limit` bytes each, as far as single records allow."""
        cdef RecordBatch piece
        cdef size_t at = 0, size
        pieces = []
        while at < self.size:
            size = whole_records(self.data + at, self.size - at, limit)
            piece = RecordBatch()
            memcpy(piece.grow(size), self.data + at, size)
            piece.size = size
            pieces.append(piece)
            at += size
        return pieces


cdef void stamp(char *data, size_t size, uint64_t log_offset, uint64_t timestamp_ms) noexcept nogil:
    cdef size_t at = 0
    cdef RecordHeader *header
    while at < size:
        header = <RecordHeader *>(data + at)
        header.log_offset = log_offset + at
        header.timestamp_ms = timestamp_ms
        if header.type == TYPE_BATCH:       # the inner ones first: the outer checksum covers theirs
            stamp(data + at + HEADER_BYTES, header.payload_length, header.log_offset + HEADER_BYTES, timestamp_ms)
        header.crc = _crc32c(data + at + 8, header.length - 8)
        at += header.length


cdef bint is_record(const char *data, size_t room, uint64_t log_offset) noexcept nogil:
    """Whether a record stands here that can be used without reading past it (its checksum is not looked at)."""
    cdef const RecordHeader *header = <const RecordHeader *>data
    return (room >= HEADER_BYTES and header.log_offset == log_offset and header.length <= room
            and content_bytes(header) <= header.length and header.type != TYPE_GAP)


cdef const char *fault(const char *data, size_t room, uint64_t log_offset) noexcept nogil:
    """Why no valid record stands here, or NULL if one does."""
    cdef const RecordHeader *header = <const RecordHeader *>data
    if room < HEADER_BYTES:
        return b"cut off in its header"
    if header.length == 0 and header.log_offset == 0:
        return b"zeros where a record should be"
    if header.length < HEADER_BYTES or header.length & 7:
        return b"impossible length"
    if header.length > room:
        return b"longer than what is left of the segment"
    if header.log_offset != log_offset:
        return b"it bears another log_offset"
    if _crc32c(data + 8, header.length - 8) != header.crc:
        return b"checksum mismatch"
    if padded(content_bytes(header)) != header.length:
        return b"parts do not add up to its length"
    return NULL


include "parts/_verified.pxi"


cdef size_t whole_records(const char *data, size_t size, size_t limit) noexcept nogil:
    """Bytes of the whole records that fit in `limit`, but of one at least."""
    cdef size_t at = 0, length
    while at < size:
        length = (<const RecordHeader *>(data + at)).length
        if at and at + length > limit:
            break
        at += length
    return at


cdef tuple as_tuple(const RecordHeader *record):
    cdef const char *topic = topic_of(record)
    cdef const char *client = client_id_of(record)
    return (record.log_offset, record.timestamp_ms, record.length, record.type, record.flags,
            topic[:record.topic_length], client[:record.client_id_length],
            attributes_of(record)[:record.attributes_length],
            properties_of(record)[:record.properties_length],
            payload_of(record)[:record.payload_length])


cdef tuple as_seen(const RecordHeader *record):
    """As as_tuple(), but the payload, which may have megabytes, is a view of the record where it stands: it may be looked
    at as long as that stays there, and not be kept."""
    cdef const char *topic = topic_of(record)
    cdef const char *client = client_id_of(record)
    return (record.log_offset, record.timestamp_ms, record.length, record.type, record.flags,
            topic[:record.topic_length], client[:record.client_id_length],
            attributes_of(record)[:record.attributes_length],
            properties_of(record)[:record.properties_length],
            PyMemoryView_FromMemory(<char *>payload_of(record), record.payload_length, PyBUF_READ))


def walk(const unsigned char[::1] data not None):
    """The records of verified bytes as tuples, batches opened; fields as in store.records.records.Record."""
    cdef size_t at = 0
    cdef const RecordHeader *record
    while at < <size_t>data.shape[0]:
        record = <const RecordHeader *>&data[at]
        if record.type == TYPE_BATCH:
            at += HEADER_BYTES
            continue
        yield as_tuple(record)
        at += record.length


cdef class LogMemory:
    """Where a log_offset can be read: the newest bytes in two tail buffers, everything else in mapped segments.

    What `at` returns stays valid until the next append or unmap.
    """

    def __cinit__(self, size_t tail_bytes=4 << 20):
        self.tail_bytes = tail_bytes
        self._views = {}
        for i in range(2):
            self.tail[i] = <char *>malloc(tail_bytes)
            if self.tail[i] == NULL:
                raise MemoryError

    def __dealloc__(self):
        free(self.tail[0])
        free(self.tail[1])
        free(self.mappings)

    def start(self, uint64_t log_offset):
        """Forget the tail; the next append is at `log_offset`."""
        self.end = log_offset
        for i in range(2):
            self.tail_base[i] = self.tail_end[i] = log_offset

    def append(self, RecordBatch batch not None, uint64_t log_offset, uint64_t timestamp_ms):
        """Stamp a batch into the tail. False when it is larger than a tail buffer: write_batch() it instead."""
        cdef int i = self.current
        if batch.size > self.tail_bytes:
            return False
        if self.tail_end[i] - self.tail_base[i] + batch.size > self.tail_bytes or self.tail_end[i] != log_offset:
            i = self.current = 1 - i
            self.tail_base[i] = self.tail_end[i] = log_offset
        cdef char *to = self.tail[i] + (log_offset - self.tail_base[i])
        memcpy(to, batch.data, batch.size)
        stamp(to, batch.size, log_offset, timestamp_ms)
        self.tail_end[i] = self.end = log_offset + batch.size
        return True

    def tail_room(self):
        """Bytes that fit before the older half of the tail is given up."""
        cdef int i = self.current
        return self.tail_bytes - (self.tail_end[i] - self.tail_base[i])

    def truncate(self, uint64_t log_offset):
        """Take back what was appended from `log_offset` on."""
        self.end = log_offset
        for i in range(2):
            self.tail_end[i] = max(self.tail_base[i], min(self.tail_end[i], log_offset))

    def write(self, int fd, uint64_t start, uint64_t end, uint64_t segment_base):
        """pwrite [start, end) of the tail to a segment's file. Raises OSError."""
        cdef int i
        cdef uint64_t stop
        while start < end:
            i = self.tail_of(start)
            stop = min(end, self.tail_end[i])
            write_all(fd, self.tail[i] + (start - self.tail_base[i]), stop - start, start - segment_base)
            start = stop

    def write_batch(self, RecordBatch batch not None, int fd, uint64_t log_offset, uint64_t timestamp_ms,
                    uint64_t segment_base):
        """Stamp a batch where it stands and write it to the file. Raises OSError."""
        stamp(batch.data, batch.size, log_offset, timestamp_ms)
        write_all(fd, batch.data, batch.size, log_offset - segment_base)
        self.end = log_offset + batch.size

    cdef int tail_of(self, uint64_t log_offset) except -1:
        for i in range(2):
            if self.tail_base[i] <= log_offset < self.tail_end[i]:
                return i
        raise IndexError(f"log_offset {log_offset} is not in the tail")

    def map(self, uint64_t base, const unsigned char[::1] data not None):
        """Make a segment's mapped bytes readable."""
        self.forget(base)
        cdef Mapping *moved = <Mapping *>realloc(self.mappings, (self.mapping_count + 1) * sizeof(Mapping))
        if moved == NULL:
            raise MemoryError
        self.mappings = moved
        cdef Py_ssize_t i = self.mapping_count
        self.mapping_count += 1
        while i and self.mappings[i - 1].base > base:
            self.mappings[i] = self.mappings[i - 1]
            i -= 1
        self.mappings[i] = Mapping(base, base + <uint64_t>data.shape[0], <const char *>&data[0])
        self._views[base] = data

    def unmap(self, uint64_t base):
        self.forget(base)
        self._views.pop(base, None)

    cdef void forget(self, uint64_t base) noexcept:
        cdef Py_ssize_t i, kept = 0
        for i in range(self.mapping_count):
            if self.mappings[i].base != base:
                self.mappings[kept] = self.mappings[i]
                kept += 1
        self.mapping_count = kept

    cdef const char *at(self, uint64_t log_offset) except NULL:
        cdef const char *found
        for i in range(2):
            if self.tail_base[i] <= log_offset < self.tail_end[i]:
                found = self.tail[i] + (log_offset - self.tail_base[i])
                if is_record(found, self.tail_end[i] - log_offset, log_offset):
                    return found
        return self.mapped(log_offset)

    cdef const char *mapped(self, uint64_t log_offset) except NULL:
        """at(), in files."""
        cdef Py_ssize_t low = 0, high = self.mapping_count, middle
        cdef const Mapping *mapping
        cdef const char *found
        if log_offset >= self.end:          # past it a mapping has holes; reading one can be fatal on a full disk
            high = 0
        while low < high:                   # the last mapping that begins at or before log_offset
            middle = (low + high) // 2
            if self.mappings[middle].base <= log_offset:
                low = middle + 1
            else:
                high = middle
        if low:
            mapping = &self.mappings[low - 1]
            found = mapping.data + (log_offset - mapping.base)
            # Bytes on a disk may have changed since they were written.
            if (log_offset < mapping.end and is_record(found, mapping.end - log_offset, log_offset)
                    and fault(found, mapping.end - log_offset, log_offset) == NULL):
                self.mapped_bytes_read += (<const RecordHeader *>found).length
                return found
        raise LookupError(f"log_offset {log_offset}: no such record in the log (any more)")

    def record(self, uint64_t log_offset):
        """The record at `log_offset` as a tuple (fields as in store.records.records.Record). LookupError if there is none."""
        return as_tuple(<const RecordHeader *>self.at(log_offset))

    def timestamp_ms(self, uint64_t log_offset):
        return (<const RecordHeader *>self.at(log_offset)).timestamp_ms


cdef int write_all(int fd, const char *data, size_t size, uint64_t position) except -1:
    """In pieces that end where WRITTEN_AT_ONCE divides the position. Raises OSError."""
    cdef ssize_t written
    cdef size_t piece
    while size:
        piece = min(size, WRITTEN_AT_ONCE - position % WRITTEN_AT_ONCE)
        with nogil:
            written = pwrite(fd, data, piece, position)
        if written < 0:
            if errno == EINTR:
                continue
            raise OSError(errno, "write to the log failed")
        data += written
        size -= written
        position += written
    return 0


cdef class Records:
    """A range of a queue, read once: pointers into the log, valid until the next append, or into bytes that it keeps."""

    def __cinit__(self, uint64_t first):
        self.first = self.next = first
        self.blocks = {}

    def __dealloc__(self):
        free(self.items)

    def __len__(self):
        return self.count

    cdef int push(self, const RecordHeader *record) except -1:
        cdef const RecordHeader **moved
        if self.count == self.capacity:
            self.capacity = max(16, self.capacity * 2)
            moved = <const RecordHeader **>realloc(self.items, self.capacity * sizeof(void *))
            if moved == NULL:
                raise MemoryError
            self.items = moved
        self.items[self.count] = record
        self.flags |= record.flags
        self.count += 1
        self.next += 1
        return 0

    def log_offset(self, Py_ssize_t i):
        if not 0 <= i < self.count:
            raise IndexError(i)
        return self.items[i].log_offset

    def __getitem__(self, Py_ssize_t i):
        """Record i as a tuple (fields as in store.records.records.Record)."""
        if not 0 <= i < self.count:
            raise IndexError(i)
        return as_tuple(self.items[i])


include "parts/_expanded.pxi"
include "parts/_lost.pxi"
include "parts/_peer_messages.pxi"
include "parts/_received.pxi"
include "parts/_traced.pxi"
