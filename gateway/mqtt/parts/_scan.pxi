# The part of _mqtt.pyx that scans bytes as they come in: variable byte integers, topic names, MQTT 5 properties; growing buffers.

from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8


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


cdef inline int utf8_of(str text, Part *found) except -1:
    """Its own bytes if it is ASCII; otherwise those that it keeps from now on."""
    cdef Py_ssize_t size
    if PyUnicode_IS_COMPACT_ASCII(text):
        found[0] = Part(<const char *>PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text))
        return 0
    found.data = PyUnicode_AsUTF8AndSize(text, &size)
    found.size = size
    return 0
