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
