"""Compiled leaf: the bytes of a PUBLISH packet that is made of a record."""

from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from store.records._records cimport (
    FLAG_EXPIRES, MESSAGE_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS, payload_of, properties_of, property_codes, topic_of, value_bytes,
)


cdef int varint_size(size_t value) noexcept nogil:
    return 1 if value < 128 else 2 if value < 16384 else 3 if value < 2097152 else 4


cdef char *write_varint(char *at, size_t value) noexcept nogil:
    while value >= 128:
        at[0] = <char>(value & 127 | 128)
        at += 1
        value >>= 7
    at[0] = <char>value
    return at + 1


cdef inline uint32_t big_endian_32(const char *at) noexcept nogil:
    return (<uint32_t><uint8_t>at[0] << 24 | <uint32_t><uint8_t>at[1] << 16
            | <uint32_t><uint8_t>at[2] << 8 | <uint8_t>at[3])


cdef Py_ssize_t expiry_at(const RecordHeader *record) noexcept nogil:
    """Where in a record's properties the message expiry interval's value stands; -1 if there is none."""
    cdef const char *properties = properties_of(record)
    cdef size_t at = 0
    cdef Py_ssize_t value
    while at < record.properties_length:
        if properties[at] == MESSAGE_EXPIRY_INTERVAL:
            return at + 1
        value = value_bytes(property_codes[<uint8_t>properties[at]], properties + at + 1, record.properties_length - at - 1)
        if value < 0:
            return -1
        at += 1 + value
    return -1


cdef uint32_t remaining_expiry_s(const RecordHeader *record, uint64_t now_ms) noexcept nogil:
    """Seconds a message has left to live; 0: it has expired."""
    cdef Py_ssize_t at = expiry_at(record)
    cdef uint64_t interval_s, age_s
    if at < 0:
        return 0xFFFFFFFF
    interval_s = big_endian_32(properties_of(record) + at)
    age_s = (now_ms - record.timestamp_ms) // 1000 if now_ms > record.timestamp_ms else 0
    return <uint32_t>(interval_s - age_s) if interval_s > age_s else 0


cdef bint expires_at_once(const RecordHeader *record) noexcept nogil:
    """Whether its message expiry interval is 0 s."""
    cdef Py_ssize_t at = expiry_at(record)
    return at >= 0 and big_endian_32(properties_of(record) + at) == 0


cdef size_t properties_size(const RecordHeader *record, const uint32_t *ids, int id_count, uint16_t alias) noexcept nogil:
    cdef size_t size = record.properties_length + (3 if alias else 0)
    cdef int i
    for i in range(id_count):
        size += 1 + varint_size(ids[i])
    return size


cdef size_t remaining_size(const RecordHeader *record, size_t hidden, int qos, int version, const uint32_t *ids, int id_count,
                           uint16_t alias=0, bint named=True) noexcept nogil:
    cdef size_t properties, size = 2 + (record.topic_length - hidden if named else 0) + (2 if qos else 0) + record.payload_length
    if version == 5:
        properties = properties_size(record, ids, id_count, alias)
        size += varint_size(properties) + properties
    return size


cdef size_t publish_size(const RecordHeader *record, size_t hidden, int qos, int version, const uint32_t *ids, int id_count,
                         uint16_t alias=0, bint named=True) noexcept nogil:
    cdef size_t size = remaining_size(record, hidden, qos, version, ids, id_count, alias, named)
    return 1 + varint_size(size) + size


cdef size_t write_publish(char *start, const RecordHeader *record, size_t hidden, int qos, uint16_t packet_id, bint dup,
                          bint retain, int version, const uint32_t *ids, int id_count, uint64_t now_ms,
                          uint16_t alias=0, bint named=True, bint with_payload=True) noexcept nogil:
    """Write a PUBLISH at `start`, which has room for it. Returns how many bytes it wrote.

    `hidden`: bytes in front of the record's topic that are left out; `alias`: a topic alias to go with it, 0 for none;
    `named`: the topic name is there; `with_payload`: not only what goes before the payload.
    """
    cdef size_t topic_length = record.topic_length - hidden if named else 0
    cdef char *at = start
    cdef uint32_t left
    cdef Py_ssize_t expiry
    cdef int i
    at[0] = <char>(0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0))
    at = write_varint(at + 1, remaining_size(record, hidden, qos, version, ids, id_count, alias, named))
    at[0] = <char>(topic_length >> 8)
    at[1] = <char>(topic_length & 255)
    memcpy(at + 2, topic_of(record) + hidden, topic_length)
    at += 2 + topic_length
    if qos:
        at[0] = <char>(packet_id >> 8)
        at[1] = <char>(packet_id & 255)
        at += 2
    if version == 5:
        at = write_varint(at, properties_size(record, ids, id_count, alias))
        memcpy(at, properties_of(record), record.properties_length)
        if record.flags & FLAG_EXPIRES:
            expiry = expiry_at(record)
            left = remaining_expiry_s(record, now_ms)
            for i in range(4 if expiry >= 0 else 0):
                at[expiry + i] = <char>(left >> (24 - 8 * i) & 255)
        at += record.properties_length
        for i in range(id_count):
            at[0] = SUBSCRIPTION_IDENTIFIER
            at = write_varint(at + 1, ids[i])
        if alias:
            at[0], at[1], at[2] = TOPIC_ALIAS, <char>(alias >> 8), <char>(alias & 255)
            at += 3
    if not with_payload:
        return at - start
    memcpy(at, payload_of(record), record.payload_length)
    return at + record.payload_length - start
