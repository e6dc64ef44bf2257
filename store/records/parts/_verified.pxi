# Looking through bytes of the log that may be damaged.


def verify(const unsigned char[::1] data not None, uint64_t log_offset, size_t limit=<size_t>-1):
    """Walk the records of `data`, which starts at `log_offset`, until `limit` bytes are passed (one record at least).

    Returns (bytes that are valid records, timestamp_ms of the last one, what is wrong after them or None).
    """
    cdef size_t at = 0, size = data.shape[0]
    cdef uint64_t last_ms = 0
    cdef const char *base = <const char *>&data[0] if size else NULL
    cdef const char *reason = NULL
    with nogil:
        while at < size and (not at or at < limit):
            reason = fault(base + at, size - at, log_offset + at)
            if reason != NULL:
                break
            last_ms = (<const RecordHeader *>(base + at)).timestamp_ms
            at += (<const RecordHeader *>(base + at)).length
    return at, last_ms, None if reason == NULL else reason.decode()


def find_record(const unsigned char[::1] data not None, uint64_t log_offset, size_t start, uint64_t end):
    """Where in `data`, which starts at `log_offset`, from `start` on there first seems to stand a record; -1: nowhere.

    It bears its own log_offset and could end by log_offset `end`; its checksum is not looked at.
    """
    cdef size_t at = (start + 7) & ~<size_t>7, size = data.shape[0]
    cdef const char *base = <const char *>&data[0] if size else NULL
    cdef const RecordHeader *header
    with nogil:
        while at + HEADER_BYTES <= size:
            header = <const RecordHeader *>(base + at)
            if (header.log_offset == log_offset + at and header.length >= HEADER_BYTES and not header.length & 7
                    and log_offset + at + header.length <= end and padded(content_bytes(header)) == header.length):
                break
            at += 8
    return at if at + HEADER_BYTES <= size else -1


def written_bytes(const unsigned char[::1] data not None):
    """Bytes up to the last one that is not zero."""
    return content_end(<const char *>&data[0], data.shape[0]) if data.shape[0] else 0


def census(const unsigned char[::1] data not None):
    """How many records of each type verified bytes hold, batches opened (and not counted themselves)."""
    cdef uint64_t counts[256]
    cdef size_t at = 0
    cdef const RecordHeader *record
    memset(counts, 0, sizeof(counts))
    while at < <size_t>data.shape[0]:
        record = <const RecordHeader *>&data[at]
        if record.type == TYPE_BATCH:
            at += HEADER_BYTES
            continue
        counts[record.type] += 1
        at += record.length
    return {type: counts[type] for type in range(256) if counts[type]}


cdef size_t content_end(const char *data, size_t size) noexcept nogil:
    """Bytes up to the last one that is not zero."""
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, data + size - 8, 8)
        if word:
            break
        size -= 8
    while size and not data[size - 1]:
        size -= 1
    return size
