# The part of _mqtt.pyx that tells a client of messages that are lost: they stood in a damaged part of the log.

def cross(Link link not None, Records records not None, Py_ssize_t i):
    """A session comes to record i of a range: count what is lost in front of it."""
    cdef uint64_t lost = lost_in_front(records.items[i])
    if lost:
        link.misses(lost)


cdef object telling(Link link, const RecordHeader **record, int qos, const uint32_t *ids, int id_count):
    """Put a copy in the record's place that tells of what was lost, as a user property; to be kept as long as it is used.

    None: it stays as it is, since the client knows no properties, or takes no packet that is so large.
    """
    cdef bytes number, data
    cdef const RecordHeader *made
    if link.version != 5:
        link.lost = 0
        return None
    number = str(link.lost).encode()
    data = widened(record[0], b"", b"\x26\x00\x0dpenstock-lost\x00" + bytes((len(number),)) + number)
    made = <const RecordHeader *>PyBytes_AS_STRING(data)
    if publish_size(made, hidden_from(link, made), qos, 5, ids, id_count) > link.max_packet_out:
        return None
    link.lost = 0
    record[0] = made
    return data
