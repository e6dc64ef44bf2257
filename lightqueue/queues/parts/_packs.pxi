# Part of _queues.pyx: how entries lie in RocksDB. Where messages come in a row, an entry takes 2 or 3 bytes instead of 20.

cdef enum:
    MOST_ITEM_BYTES = 10 + 5 + 8    # of one entry: two numbers of 7 bits a byte, and the hash of a tag


cdef bytes packed(const Entry *entries, size_t count):
    """The form in RocksDB of entries in ascending order, PACK_ENTRIES at most (docs/formats.md)."""
    cdef unsigned char to[8 + PACK_ENTRIES * MOST_ITEM_BYTES]
    cdef size_t at = 8, i
    cdef uint64_t expected = entries[0].log_offset
    memcpy(to, &expected, 8)
    for i in range(count):
        if entries[i].log_offset < expected or (entries[i].log_offset | entries[i].size) & 7:
            raise ValueError(f"records overlap at log_offset {entries[i].log_offset}")
        at = put_number(to, at, (entries[i].log_offset - expected) >> 3 << 1 | (entries[i].tag_hash != 0))
        at = put_number(to, at, entries[i].size >> 3)
        if entries[i].tag_hash:
            memcpy(to + at, &entries[i].tag_hash, 8)
            at += 8
        expected = entries[i].log_offset + entries[i].size
    return PyBytes_FromStringAndSize(<char *>to, at)


def unpacked(const unsigned char[::1] data not None):
    """The entries of what packed() made, ENTRY_BYTES each: a pack. ValueError if that is not what it is."""
    cdef Entry entries[PACK_ENTRIES]
    cdef size_t at = 8, count = 0, end = data.shape[0]
    cdef uint64_t expected, gap, size
    if end > 8:
        memcpy(&expected, &data[0], 8)
        while at < end and count < PACK_ENTRIES and take_number(&data[0], &at, end, &gap) \
                and take_number(&data[0], &at, end, &size) and (not gap & 1 or at + 8 <= end):
            entries[count] = Entry(expected + (gap >> 1 << 3), <uint32_t>(size << 3), 0)
            if gap & 1:
                memcpy(&entries[count].tag_hash, &data[at], 8)
                at += 8
            expected = entries[count].log_offset + entries[count].size
            count += 1
    if at != end or not count:
        raise ValueError(f"not a pack of entries: {end} bytes, {count} entries up to byte {at}")
    return PyBytes_FromStringAndSize(<char *>entries, count * sizeof(Entry))


cdef inline size_t put_number(unsigned char *to, size_t at, uint64_t number) noexcept nogil:
    while number > 127:
        to[at] = <unsigned char>(number | 128)
        number >>= 7
        at += 1
    to[at] = <unsigned char>number
    return at + 1


cdef inline bint take_number(const unsigned char *data, size_t *at, size_t end, uint64_t *number) noexcept nogil:
    """False if the data ends first, or it is none of 64 bits."""
    cdef uint64_t found = 0
    cdef int shift = 0
    while at[0] < end and shift < 64:
        found |= <uint64_t>(data[at[0]] & 127) << shift
        at[0] += 1
        if data[at[0] - 1] < 128:
            number[0] = found
            return True
        shift += 7
    return False
