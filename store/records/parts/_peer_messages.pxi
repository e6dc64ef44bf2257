# Part of _records.pyx: why a message that a peer sent must not get into the log: its topic, properties, attributes and payload.

cdef enum:
    DUE_BYTES = 11              # of the attribute DUE_MS
    MOST_KEY_BYTES = 1024
    MOST_TAG_BYTES = 255
    ATTRIBUTE_LEFT_BY = 18
    MOST_COUNTED_BYTES = 65536  # one of bits, and a user


cdef const char *text_fault(const unsigned char *text, size_t size) noexcept nogil:
    """Why this is no text as MQTT has it (UTF-8 without U+0000), or NULL."""
    cdef size_t at = 0
    cdef unsigned char byte, low, high
    cdef int more
    while at < size:
        byte = text[at]
        at += 1
        if byte == 0:
            return b"U+0000 in a text"
        if byte < 0x80:
            continue
        low, high = 0x80, 0xBF              # of the second byte (Unicode 15, table 3-7)
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return b"a text that is not UTF-8"
        while more:
            if at == size or not low <= text[at] <= high:
                return b"a text that is not UTF-8"
            low, high = 0x80, 0xBF
            at += 1
            more -= 1
    return NULL


cdef const char *topic_fault(const unsigned char *topic, size_t size) noexcept nogil:
    """Why nothing may be published to a topic, or NULL."""
    cdef size_t i, levels = 1
    if not size:
        return b"empty topic"
    for i in range(size):
        if topic[i] == 43 or topic[i] == 35:
            return b"wildcard in a topic"
        levels += topic[i] == 47
    if levels > MOST_TOPIC_LEVELS:
        return b"topic of too many levels"
    return text_fault(topic, size)


cdef const char *answer_topic_fault(const unsigned char *topic, size_t size) noexcept nogil:
    """The same for a response topic, which is a client's own name for a topic: not one of the log's, as of a namespace."""
    if size >= 4 and not memcmp(topic, b"$ns:", 4):
        return b"response topic that begins with $ns:"
    return topic_fault(topic, size)


cdef const char *value_fault(int form, const unsigned char *value, size_t size) noexcept nogil:
    """Why no property of this form may have this value, which is whole, or NULL."""
    cdef size_t second
    cdef const char *reason
    if form == ZERO_OR_ONE and value[0] > 1:
        return b"property that is neither 0 nor 1"
    if form == TEXT:
        return text_fault(value + 2, size - 2)
    if form == TOPIC:
        return answer_topic_fault(value + 2, size - 2)
    if form == TWO_TEXTS:
        second = length_prefixed(<const char *>value)
        reason = text_fault(value + 2, second - 2)
        return reason if reason != NULL else text_fault(value + second + 2, size - second - 2)
    return NULL


cdef const char *properties_fault(const unsigned char *data, size_t size) noexcept nogil:
    """Why these are not the properties of a PUBLISH as they are stored, or NULL."""
    cdef size_t at = 0
    cdef Py_ssize_t length
    cdef uint64_t seen = 0
    cdef unsigned char identifier, code
    cdef const char *reason
    while at < size:
        identifier = data[at]
        code = property_codes[identifier]
        at += 1
        if not code & STORED_BIT:
            return b"property that a stored message cannot have"
        length = value_bytes(code, <const char *>data + at, size - at)
        if length < 0:
            return b"properties that are cut off"
        reason = value_fault(code & FORM_BITS, data + at, length)
        if reason != NULL:
            return reason
        if not code & REPEATS_BIT:
            if seen >> identifier & 1:
                return b"property given twice"
            seen |= <uint64_t>1 << identifier
        at += length
    return NULL


cdef const char *attributes_fault(const unsigned char *data, size_t size, bint may_count) noexcept nogil:
    """Why a peer may not give a message these attributes: each of PACKET_ID, KEY, TAG, COUNTED, LEFT_BY at most once."""
    cdef size_t at = 0, length
    cdef unsigned int seen = 0
    cdef unsigned char tag
    cdef const char *reason
    while at < size:
        if size - at < 3:
            return b"attributes that are cut off"
        tag = data[at]
        length = data[at + 1] | <size_t>data[at + 2] << 8
        at += 3
        if size - at < length:
            return b"attributes that are cut off"
        if tag == ATTRIBUTE_PACKET_ID and length == 2 or tag == ATTRIBUTE_LEFT_BY and length > 0:
            pass
        elif tag == ATTRIBUTE_KEY and 0 < length <= MOST_KEY_BYTES or tag == ATTRIBUTE_TAG and 0 < length <= MOST_TAG_BYTES:
            reason = text_fault(data + at, length)
            if reason != NULL:
                return reason
        elif tag == ATTRIBUTE_COUNTED and may_count and 0 < length <= MOST_COUNTED_BYTES:
            reason = text_fault(data + at + 1, length - 1)
            if reason != NULL:
                return reason
        else:
            return b"attribute that a peer must not set"
        if seen >> tag & 1:
            return b"attribute given twice"
        seen |= 1 << tag
        at += length
    return NULL


cdef const char *delay_fault(const unsigned char *data, size_t *size, uint64_t latest_due_ms) noexcept nogil:
    """Why the last of these attributes is not when a delayed message may be due, or NULL; then it is left out of `size`."""
    cdef uint64_t due_ms
    if size[0] < DUE_BYTES or memcmp(data + size[0] - DUE_BYTES, b"\x10\x08\0", 3):
        return b"delayed message whose last attribute is not DUE_MS"
    size[0] -= DUE_BYTES
    memcpy(&due_ms, data + size[0] + 3, 8)
    if due_ms > latest_due_ms:
        return b"delayed for longer than store.max_delay_s"
    return NULL


cdef const char *message_fault(const RecordHeader *record, uint64_t latest_due_ms, uint64_t most_plain_bytes,
                               bint may_count) noexcept nogil:
    """Why a message of a peer, which is a whole record, must not get into the log; NULL if it may."""
    cdef const char *reason
    cdef size_t attributes = record.attributes_length
    if record.flags & ~(FLAG_QOS | FLAG_RETAIN | FLAG_EXPIRES | FLAG_LIVE_ONLY | FLAG_DELAYED | FLAG_COMPRESSED):
        return b"flags that a peer must not set"
    if record.flags & FLAG_QOS == FLAG_QOS:
        return b"QoS 3"
    reason = topic_fault(<const unsigned char *>topic_of(record), record.topic_length)
    if reason == NULL:
        reason = text_fault(<const unsigned char *>client_id_of(record), record.client_id_length)
    if reason == NULL and record.flags & FLAG_DELAYED:
        reason = delay_fault(<const unsigned char *>attributes_of(record), &attributes, latest_due_ms)
    if reason == NULL:
        reason = attributes_fault(<const unsigned char *>attributes_of(record), attributes, may_count)
    if reason == NULL:
        reason = properties_fault(<const unsigned char *>properties_of(record), record.properties_length)
    if reason == NULL and record.flags & FLAG_COMPRESSED:
        reason = compressed_fault(<const unsigned char *>payload_of(record), record.payload_length, most_plain_bytes)
    return reason


cdef list check_messages(const char *data, size_t size, uint64_t latest_due_ms, uint64_t most_plain_bytes, bint may_count):
    """Look at what messages say, in aligned whole records without batches. Returns the other records as tuples.

    Raises ValueError, naming the position and the fault, at what must not get into the log.
    """
    cdef size_t at = 0
    cdef const RecordHeader *record
    cdef const char *reason
    others = []
    while at < size:
        record = <const RecordHeader *>(data + at)
        if record.type == TYPE_MESSAGE:
            reason = message_fault(record, latest_due_ms, most_plain_bytes, may_count)
            if reason != NULL:
                raise ValueError(f"record at byte {at}: {reason.decode()}")
        else:
            others.append(as_tuple(record))
        at += record.length
    return others
