# The part of _wire.pyx that makes PUBLISH packets of ranges for one link.

cdef int deliver_to(Link link, list readers, list ranges, uint64_t safe, uint64_t stop) except -1:
    cdef Merge merge = Merge(readers, ranges, stop)
    cdef const RecordHeader *record
    cdef bint retain
    cdef int qos
    while not merge.exhausted():
        record = merge.next()
        qos = min(<int>(record.flags & FLAG_QOS), merge.qos)
        if merge.wanted and not (qos == 0 and record.log_offset < merge.skip_qos0_before):
            if qos == 2:
                return NEEDS_SESSION if record.log_offset < safe else NEEDS_MORE
            if qos == 1 and link.inflight.full():
                link.inflight.blocked = True
                return NEEDS_MORE
            if merge.lost:
                link.misses(merge.lost)
            retain = merge.retain_as_published and record.flags & FLAG_RETAIN
            if fits(link, record, qos, merge.id_count, merge.ids, False, True) == 0:
                link.put_publish(record, qos, link.inflight.take(record.log_offset) if qos else 0, retain, merge.ids,
                                 merge.id_count, True, None if record.payload_length < SHARED_BYTES else merge.payload())
        elif merge.lost:
            link.misses(merge.lost)
        merge.advance()
    return DONE


def stands_at_qos2(list readers not None, list ranges not None, uint64_t stop):
    """Whether the next message of some readers' ranges goes out at QoS 2."""
    cdef Merge merge = Merge(readers, ranges, stop)
    cdef int qos
    if merge.exhausted():
        return False
    qos = merge.next().flags & FLAG_QOS
    return min(qos, merge.qos) == 2


def next_at_qos2(list readers not None, list ranges not None, Py_ssize_t most, uint64_t stop):
    """What deliver() stopped at, and what comes behind that as long as it goes out at QoS 2, at most so many messages: of
    each (log_offset, retain, subscription identifiers, its range, its place there).

    The readers move past them. There may be thousands of readers, so they are merged once for all of these.
    """
    cdef Merge merge = Merge(readers, ranges, stop)
    cdef const RecordHeader *record
    cdef list found = []
    while len(found) < most and not merge.exhausted():
        record = merge.next()
        if min(<int>(record.flags & FLAG_QOS), merge.qos) != 2:
            break
        found.append((record.log_offset, bool(merge.retain_as_published and record.flags & FLAG_RETAIN),
                      tuple([merge.ids[i] for i in range(merge.id_count)]),
                      ranges[merge.found_in[0]], merge.at[merge.found_in[0]]))
        if merge.lost:
            (<Reader>readers[0]).link.misses(merge.lost)
        merge.advance()
    return found
