# Part of _records.pyx: messages in front of which others are lost. What a queue gives says so in an attribute of a copy.


cdef bytes widened(const RecordHeader *record, bytes attribute, bytes property):
    """A copy of a record with one more attribute in front of the others, and one more MQTT 5 property after the others."""
    cdef size_t before = HEADER_BYTES + <size_t>record.topic_length + record.client_id_length
    cdef size_t size = padded(content_bytes(record) + PyBytes_GET_SIZE(attribute) + PyBytes_GET_SIZE(property))
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef RecordHeader *made = <RecordHeader *>PyBytes_AS_STRING(data)
    cdef char *to = copy(<char *>made, Part(<const char *>record, before))
    to = copy(to, Part(PyBytes_AS_STRING(attribute), PyBytes_GET_SIZE(attribute)))
    to = copy(to, Part(attributes_of(record), <size_t>record.attributes_length + record.properties_length))
    to = copy(to, Part(PyBytes_AS_STRING(property), PyBytes_GET_SIZE(property)))
    to = copy(to, Part(payload_of(record), record.payload_length))
    memset(to, 0, <char *>made + size - to)
    made.length = <uint32_t>size
    made.attributes_length = <uint16_t>(record.attributes_length + PyBytes_GET_SIZE(attribute))
    made.properties_length = <uint32_t>(record.properties_length + PyBytes_GET_SIZE(property))
    made.crc = _crc32c(<const char *>made + 8, size - 8)
    return data


cdef uint64_t lost_in_front(const RecordHeader *record) noexcept nogil:
    """How many messages that a queue had directly in front of this one are lost, as marked() says."""
    cdef const unsigned char *at = <const unsigned char *>attributes_of(record)
    cdef uint64_t number = 0
    if record.attributes_length >= LOST_BYTES and at[0] == ATTRIBUTE_LOST:
        memcpy(&number, at + 3, 8)
    return number


cdef bytes renumbered(const RecordHeader *record, uint64_t lost):
    """A copy of a record that says already how many are lost, with another number."""
    cdef bytes data = PyBytes_FromStringAndSize(<const char *>record, record.length)
    cdef RecordHeader *made = <RecordHeader *>PyBytes_AS_STRING(data)
    memcpy(<char *>attributes_of(made) + 3, &lost, 8)
    made.crc = _crc32c(<const char *>made + 8, record.length - 8)
    return data


cpdef Records marked(Records records, uint64_t lost, Py_ssize_t i=0):
    """The same range, where record i says that so many messages (more) are lost directly in front of it; 0: as it is."""
    cdef Records found
    cdef bytes copied
    cdef Py_ssize_t k
    cdef uint64_t before
    if not lost or i >= records.count or records.items[i].attributes_length > 65_535 - 2 * LOST_BYTES:
        return records
    before = lost_in_front(records.items[i])
    if before:
        copied = renumbered(records.items[i], before + lost)
    else:
        copied = widened(records.items[i], b"\x06\x08\x00" + (<object>lost).to_bytes(8, "little"), b"")
    found = Records(records.first)
    found.owner = (records, copied)
    for k in range(records.count):
        found.push(records.items[k] if k != i else <const RecordHeader *>PyBytes_AS_STRING(copied))
    return found


def lost_before(Records records not None, Py_ssize_t i=0):
    """How many messages are lost directly in front of record i, as marked() says."""
    if not 0 <= i < records.count:
        raise IndexError(i)
    return lost_in_front(records.items[i])
