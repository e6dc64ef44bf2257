# Byte-level parts of _mqtt.pyx: variable byte integers, topic names, MQTT 5 properties, growing buffers, PUBLISH, merging.


cdef char *reserve(char **buffer, size_t size, size_t *capacity, size_t extra) except NULL:
    """Room for `extra` bytes behind the first `size`."""
    cdef size_t wanted
    cdef char *moved
    if size + extra > capacity[0]:
        wanted = max(size + extra, min(capacity[0] * 2, size + extra + (1 << 20)), 64)
        moved = <char *>realloc(buffer[0], wanted)
        if moved == NULL:
            raise MemoryError
        buffer[0] = moved
        capacity[0] = wanted
    return buffer[0] + size


cdef int append(char **buffer, size_t *size, size_t *capacity, const char *data, size_t extra) except -1:
    memcpy(reserve(buffer, size[0], capacity, extra), data, extra)
    size[0] += extra
    return 0


cdef int read_varint(const char *data, size_t size, uint32_t *value) noexcept nogil:
    """Bytes taken; 0 if there are not enough of them, -1 if it is malformed (MQTT 5, 1.5.5)."""
    cdef uint32_t result = 0
    cdef int i
    cdef uint8_t byte
    for i in range(4):
        if <size_t>i >= size:
            return 0
        byte = <uint8_t>data[i]
        result |= <uint32_t>(byte & 127) << (7 * i)
        if not byte & 128:
            if i and byte == 0:
                return -1
            value[0] = result
            return i + 1
    return -1


cdef int varint_size(size_t value) noexcept nogil:
    return 1 if value < 128 else 2 if value < 16384 else 3 if value < 2097152 else 4


cdef char *write_varint(char *at, size_t value) noexcept nogil:
    while value >= 128:
        at[0] = <char>(value & 127 | 128)
        at += 1
        value >>= 7
    at[0] = <char>value
    return at + 1


cdef bint valid_topic(const char *topic, size_t size, int levels) except -1:
    """Whether it is a topic name a client may publish to; what is not ASCII is checked as UTF-8.

    `levels`: with how many its first one counts.
    """
    cdef size_t i
    cdef uint8_t byte
    cdef bint ascii = True
    for i in range(size):
        byte = <uint8_t>topic[i]
        if byte < 0x20 or byte == 0x7F or byte == c"+" or byte == c"#":
            return False
        if byte == c"/":
            levels += 1
        ascii = ascii and byte < 128
    if levels > MOST_TOPIC_LEVELS:
        return False
    return ascii or valid_utf8(topic, size)


cdef bint valid_topic_text(const char *text, size_t size) noexcept nogil:
    """Whether plain text names a topic, and not one of some namespace."""
    cdef size_t i
    cdef int levels = 1
    for i in range(size):
        levels += text[i] == c"/"
    return (0 < size and levels <= MOST_TOPIC_LEVELS and not (size >= 4 and memcmp(text, b"$ns:", 4) == 0)
            and memchr(text, c"+", size) == NULL and memchr(text, c"#", size) == NULL)


cdef bint valid_utf8(const char *text, size_t size) except -1:
    try:
        PyUnicode_DecodeUTF8(text, size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef bint plain_text(const char *text, size_t size) noexcept nogil:
    """Whether it is UTF-8 without control characters of ASCII."""
    cdef size_t at = 0, step
    while at < size:
        if 0x20 <= <uint8_t>text[at] <= 0x7E:
            at += 1
            continue
        step = utf8_size(<const uint8_t *>text + at, size - at)
        if not step:
            return False
        at += step
    return True


cdef inline size_t utf8_size(const uint8_t *at, size_t room) noexcept nogil:
    """Bytes of the character there, of those that take several; 0 if there is none (RFC 3629, section 4)."""
    cdef uint8_t least = 0x80, most = 0xBF
    cdef size_t size = 2 if 0xC2 <= at[0] <= 0xDF else 3 if at[0] & 0xF0 == 0xE0 else 4 if 0xF0 <= at[0] <= 0xF4 else 0
    if not size or size > room:
        return 0
    if at[0] == 0xE0:
        least = 0xA0                # not what fits in fewer bytes
    elif at[0] == 0xED:
        most = 0x9F                 # no surrogates
    elif at[0] == 0xF0:
        least = 0x90
    elif at[0] == 0xF4:
        most = 0x8F                 # nothing above U+10FFFF
    if not least <= at[1] <= most:
        return 0
    if size > 2 and at[2] & 0xC0 != 0x80 or size > 3 and at[3] & 0xC0 != 0x80:
        return 0
    return size


cdef inline uint32_t big_endian_32(const char *at) noexcept nogil:
    return (<uint32_t><uint8_t>at[0] << 24 | <uint32_t><uint8_t>at[1] << 16
            | <uint32_t><uint8_t>at[2] << 8 | <uint8_t>at[3])


cdef inline Py_ssize_t plain_value_bytes(uint8_t code, const char *value, size_t room) noexcept nogil:
    """Bytes of a PUBLISH property's value, for one that is taken in here as it is; -1 for any other."""
    cdef int form = code & FORM_BITS
    cdef Py_ssize_t first, size = value_bytes(code, value, room)
    if size < 0 or not code & STORED_BIT:
        return -1
    if form == TWO_TEXTS:
        first = length_prefixed(value)
        return size if plain_text(value + 2, first - 2) and plain_text(value + first + 2, size - first - 2) else -1
    if form == TEXT:
        return size if plain_text(value + 2, size - 2) else -1
    if form == TOPIC:
        return size if plain_text(value + 2, size - 2) and valid_topic_text(value + 2, size - 2) else -1
    return -1 if form == ZERO_OR_ONE and <uint8_t>value[0] > 1 else size


cdef bint is_receipt(const char *pair, size_t size) noexcept nogil:
    """Whether a user property asks where the message is stored; see gateway/delivery/receipts.py."""
    return size > 18 and pair[0] == 0 and pair[1] == 16 and memcmp(pair + 2, b"penstock-receipt", 16) == 0


cdef bint plain_properties(const char *data, size_t size, uint32_t most_repeated, Part *properties, uint8_t *flags,
                           size_t *body_at) noexcept nogil:
    """Check a PUBLISH's properties and step over them. False: they need the full codec (or are wrong).

    `most_repeated`: the full codec refuses more properties of one kind than this.
    """
    cdef uint32_t length
    cdef uint64_t seen = 0
    cdef size_t at = 0
    cdef uint8_t identifier, code
    cdef Py_ssize_t value
    cdef int length_bytes = read_varint(data, size, &length)
    if length_bytes <= 0 or length_bytes + length > size:
        return False
    data += length_bytes
    while at < length:
        identifier = <uint8_t>data[at]
        code = property_codes[identifier]
        value = plain_value_bytes(code, data + at + 1, length - at - 1)
        if value < 0:
            return False
        if code & REPEATS_BIT:
            if identifier == USER_PROPERTY and is_receipt(data + at + 1, value) or not most_repeated:
                return False
            most_repeated -= 1
        else:
            if seen >> identifier & 1:
                return False
            seen |= <uint64_t>1 << identifier
        at += 1 + value
    if seen >> MESSAGE_EXPIRY_INTERVAL & 1:
        flags[0] |= FLAG_EXPIRES
    properties[0] = Part(data, length)
    body_at[0] += length_bytes + length
    return True


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


cdef inline size_t most_publish_bytes(const RecordHeader *record, int id_count) noexcept nogil:
    """No PUBLISH of a record takes more: its header is longer than what a packet has besides topic, properties and payload."""
    return record.length + 5 * <size_t>id_count


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


@cython.final
cdef class Merge:
    """Several readers' ranges as one sequence by log_offset; a message found in several is one, with the highest QoS.

    A heap of those that have more, each by what comes next of it: many queues may have one message each.
    """

    cdef list readers
    cdef list ranges
    cdef Py_ssize_t *at         # of each reader: its place in its range
    cdef int *heap
    cdef int heaped
    cdef int *found_in          # those whose ranges have the current message
    cdef int found_count
    cdef uint64_t stop          # log_offset; what is at or after it is not looked at
    cdef bint unknown           # what comes next of some reader is not in its range
    cdef uint64_t current
    cdef uint64_t lost          # messages in front of the current one, for the subscription that lost most
    cdef int qos
    cdef bint wanted
    cdef bint retain_as_published
    cdef uint64_t skip_qos0_before
    cdef uint32_t *ids
    cdef int id_count

    def __cinit__(self, list readers, list ranges, uint64_t stop):
        cdef Py_ssize_t n = len(readers)
        self.readers = readers
        self.ranges = ranges
        self.stop = stop
        self.at = <Py_ssize_t *>malloc(n * (sizeof(Py_ssize_t) + 2 * sizeof(int) + sizeof(uint32_t)))
        if self.at == NULL:
            raise MemoryError
        self.heap = <int *>(self.at + n)
        self.found_in = self.heap + n
        self.ids = <uint32_t *>(self.found_in + n)
        for i in range(n):
            self.at[i] = (<Reader>readers[i]).position - (<Records>ranges[i]).first
            self.put(<int>i)

    def __dealloc__(self):
        free(self.at)

    cdef bint exhausted(self) noexcept:
        """Whether all ranges are used up as far as they are looked at, or one whose reader has more."""
        return self.unknown or not self.heaped or self.next_offset(self.heap[0]) >= self.stop

    cdef uint64_t next_offset(self, int i) noexcept:
        return (<Records>self.ranges[i]).items[self.at[i]].log_offset

    cdef bint before(self, int i, int j) noexcept:
        cdef uint64_t a = self.next_offset(i), b = self.next_offset(j)
        return a < b or (a == b and i < j)

    cdef void put(self, int i) noexcept:
        """A reader's range has more, or is used up."""
        cdef Reader reader = <Reader>self.readers[i]
        cdef int place = self.heaped, parent
        if self.at[i] >= (<Records>self.ranges[i]).count:
            self.unknown = self.unknown or reader.position < reader.queue.next_offset
            return
        self.heaped += 1
        while place:
            parent = (place - 1) // 2
            if not self.before(i, self.heap[parent]):
                break
            self.heap[place] = self.heap[parent]
            place = parent
        self.heap[place] = i

    cdef int take(self) noexcept:
        cdef int first = self.heap[0], moved, place = 0, child = 1
        self.heaped -= 1
        moved = self.heap[self.heaped]
        while child < self.heaped:
            if child + 1 < self.heaped and self.before(self.heap[child + 1], self.heap[child]):
                child += 1
            if not self.before(self.heap[child], moved):
                break
            self.heap[place] = self.heap[child]
            place = child
            child = 2 * place + 1
        self.heap[place] = moved
        return first

    cdef const RecordHeader *next(self) noexcept:
        """The record with the lowest log_offset, and what the subscriptions that it matches say together.

        To be called if the ranges are not exhausted, and again after advance().
        """
        cdef int first = self.heap[0], i
        cdef const RecordHeader *found = (<Records>self.ranges[first]).items[self.at[first]]
        self.current = found.log_offset
        self.qos = -1
        self.wanted = self.retain_as_published = False
        self.id_count = self.found_count = 0
        self.lost = 0
        while self.heaped and self.next_offset(self.heap[0]) == self.current:
            i = self.take()
            self.found_in[self.found_count] = i
            self.found_count += 1
            self.consider(<Reader>self.readers[i], found)
            if not self.at[i]:
                self.lost = max(self.lost, lost_in_front((<Records>self.ranges[i]).items[0]))
        return found

    cdef void consider(self, Reader reader, const RecordHeader *record) noexcept:
        if not wants(reader, record):
            return
        self.skip_qos0_before = min(self.skip_qos0_before, reader.skip_qos0_before) if self.wanted else reader.skip_qos0_before
        self.wanted = True
        self.qos = max(self.qos, reader.qos)
        self.retain_as_published = self.retain_as_published or reader.retain_as_published
        if reader.subscription_id:
            self.ids[self.id_count] = reader.subscription_id
            self.id_count += 1

    cdef void advance(self) noexcept:
        """The readers that have the current message move past it."""
        cdef int k, i
        for k in range(self.found_count):
            i = self.found_in[k]
            self.at[i] += 1
            (<Reader>self.readers[i]).position += 1
            (<Reader>self.readers[i]).reached = self.current + 1
            self.put(i)


cdef inline int utf8_of(str text, Part *found) except -1:
    """Its own bytes if it is ASCII; otherwise those that it keeps from now on."""
    cdef Py_ssize_t size
    if PyUnicode_IS_COMPACT_ASCII(text):
        found[0] = Part(<const char *>PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text))
        return 0
    found.data = PyUnicode_AsUTF8AndSize(text, &size)
    found.size = size
    return 0


cdef bint same_client(Link link, const RecordHeader *record) except -1:
    cdef Part client_id
    utf8_of(link.client_id, &client_id)
    return (client_id.size == record.client_id_length
            and memcmp(client_id.data, client_id_of(record), record.client_id_length) == 0)
