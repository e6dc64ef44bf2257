from libc.stdint cimport uint16_t, uint32_t, uint64_t

from store.records._records cimport RecordHeader

cdef uint32_t remaining_expiry_s(const RecordHeader *record, uint64_t now_ms) noexcept nogil
cdef bint expires_at_once(const RecordHeader *record) noexcept nogil
cdef size_t publish_size(const RecordHeader *record, size_t hidden, int qos, int version, const uint32_t *ids, int id_count,
                         uint16_t alias=*, bint named=*) noexcept nogil
cdef size_t write_publish(char *start, const RecordHeader *record, size_t hidden, int qos, uint16_t packet_id, bint dup,
                          bint retain, int version, const uint32_t *ids, int id_count, uint64_t now_ms,
                          uint16_t alias=*, bint named=*, bint with_payload=*) noexcept nogil


cdef inline size_t most_publish_bytes(const RecordHeader *record, int id_count) noexcept nogil:
    """No PUBLISH of a record takes more: its header is longer than what a packet has besides topic, properties and payload."""
    return record.length + 5 * <size_t>id_count
