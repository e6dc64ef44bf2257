from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef struct RecordHeader:       # 40 bytes, little-endian, no padding (docs/formats.md)
    uint32_t length
    uint32_t crc
    uint64_t log_offset
    uint64_t timestamp_ms
    uint8_t type
    uint8_t flags
    uint16_t topic_length
    uint16_t client_id_length
    uint16_t attributes_length
    uint32_t properties_length
    uint32_t payload_length

cdef enum:
    HEADER_BYTES = 40           # of a record; RECORD_HEADER_BYTES of store.records.records
    MOST_TOPIC_LEVELS = 200     # that of store.topics
    TYPE_MESSAGE = 1
    TYPE_BATCH = 2
    TYPE_GAP = 3
    FLAG_QOS = 3
    FLAG_RETAIN = 4
    FLAG_EXPIRES = 8
    FLAG_LIVE_ONLY = 16
    FLAG_CARRIED = 32
    FLAG_DELAYED = 64
    FLAG_COMPRESSED = 128
    FLAGS_IN_NO_QUEUE = 80      # LIVE_ONLY and DELAYED, of what a peer may append
    # Bytes of a file's pages that one pwrite may span. From Linux 6.16 on ext4 takes a block of memory as large as the write for
    # them. Those up to 32 KiB are there for reuse; larger ones a virtual machine has to get from its host, at ten times the cost.
    WRITTEN_AT_ONCE = 32 << 10
    ATTRIBUTE_PACKET_ID = 1
    ATTRIBUTE_KEY = 3
    ATTRIBUTE_TAG = 4
    ATTRIBUTE_COUNTED = 5
    ATTRIBUTE_LOST = 6
    LOST_BYTES = 11             # of that attribute
    ATTRIBUTE_DUE_MS = 16

cdef struct Part:
    const char *data
    size_t size

# --- the properties of a PUBLISH: store/records/publish_properties.py has the table, and these numbers by the same names

cdef enum:
    MESSAGE_EXPIRY_INTERVAL = 0x02
    SUBSCRIPTION_IDENTIFIER = 0x0B
    TOPIC_ALIAS = 0x23
    USER_PROPERTY = 0x26

cdef enum:                      # ValueForm
    ZERO_OR_ONE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 4              # this number and those before are how many bytes a value has
    VARIABLE_BYTES = 5
    BINARY = 8                  # from here on values begin with two bytes of length
    TEXT = 9
    TOPIC = 10
    TWO_TEXTS = 11
    FORM_BITS = 0x0F
    STORED_BIT = 0x40
    REPEATS_BIT = 0x80

cdef uint8_t property_codes[256]    # CODES of the table: by identifier its form and these bits, 0 for one that it lacks

cdef inline size_t length_prefixed(const char *value) noexcept nogil:
    return 2 + (<size_t><uint8_t>value[0] << 8 | <uint8_t>value[1])

cdef inline Py_ssize_t value_bytes(uint8_t code, const char *value, size_t room) noexcept nogil:
    """Bytes that the value of a property with this code takes; -1 if they are not all there, or the code is 0."""
    cdef int form = code & FORM_BITS
    cdef size_t size
    if form >= BINARY:
        if room < 2:
            return -1
        size = length_prefixed(value)
        if form == TWO_TEXTS:
            if room < size + 2:
                return -1
            size += length_prefixed(value + size)
    elif form == VARIABLE_BYTES:
        size = 1
        while size <= room and <uint8_t>value[size - 1] & 0x80 and size < 4:
            size += 1
    elif form:
        size = form
    else:
        return -1
    return <Py_ssize_t>size if size <= room else -1

cdef class RecordBatch:
    cdef char *data
    cdef readonly size_t size
    cdef size_t capacity
    cdef Py_ssize_t atomic_at       # where the open batch record begins, or -1
    cdef char *grow(self, size_t extra) except NULL
    cdef size_t copy_in(self, const unsigned char[::1] data, const unsigned char[::1] types, size_t limit) except? 0
    cdef int add(self, uint8_t type, uint8_t flags, Part topic, Part client_id,
                 Part attributes, Part properties, Part payload) except -1

cdef struct Mapping:
    uint64_t base
    uint64_t end
    const char *data

cdef class LogMemory:
    cdef char *tail[2]
    cdef uint64_t tail_base[2]
    cdef uint64_t tail_end[2]
    cdef uint64_t end                   # nothing is read from here on
    cdef int current
    cdef size_t tail_bytes
    cdef Mapping *mappings
    cdef Py_ssize_t mapping_count
    cdef dict _views
    cdef readonly uint64_t mapped_bytes_read
    cdef int tail_of(self, uint64_t log_offset) except -1
    cdef void forget(self, uint64_t base) noexcept
    cdef const char *at(self, uint64_t log_offset) except NULL
    cdef const char *mapped(self, uint64_t log_offset) except NULL

cdef class Records:
    cdef const RecordHeader **items
    cdef Py_ssize_t capacity
    cdef readonly Py_ssize_t count
    cdef readonly uint64_t first       # queue_offset of the first record asked for
    cdef readonly uint8_t flags        # that any of them has
    cdef readonly uint64_t next        # queue_offset after the last one read
    cdef readonly object blocks        # encodings that several readers share, by variant
    cdef object owner                  # of the bytes that are pointed into, if not the log
    cdef int push(self, const RecordHeader *record) except -1

cpdef Records marked(Records records, uint64_t lost, Py_ssize_t i=*)
cdef bytes widened(const RecordHeader *record, bytes attribute, bytes property)
cdef uint64_t lost_in_front(const RecordHeader *record) noexcept nogil
cdef const char *topic_of(const RecordHeader *record) noexcept nogil
cdef const char *client_id_of(const RecordHeader *record) noexcept nogil
cdef const char *attributes_of(const RecordHeader *record) noexcept nogil
cdef const char *properties_of(const RecordHeader *record) noexcept nogil
cdef tuple as_seen(const RecordHeader *record)
cdef tuple as_tuple(const RecordHeader *record)
cdef const char *payload_of(const RecordHeader *record) noexcept nogil
cdef void stamp(char *data, size_t size, uint64_t log_offset, uint64_t timestamp_ms) noexcept nogil
cdef const char *fault(const char *data, size_t room, uint64_t log_offset) noexcept nogil
