# The part of _wire.pyx that makes PUBLISH packets of ranges for one link.

cdef int deliver_to(Link link, list readers, list ranges, uint64_t safe) except -1:
    cdef Merge merge = Merge(readers, ranges)
    cdef const RecordHeader *record
    cdef Block payload
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
            retain = merge.retain_as_published and record.flags & FLAG_RETAIN
            if fits(link, record, qos, merge.id_count, merge.ids) == 0:
                payload = merge.payload() if record.payload_length >= SHARED_BYTES else None
                link.put_publish(record, qos, link.inflight.take(record.log_offset) if qos else 0, retain, merge.ids,
                                 merge.id_count, True, payload)
        merge.advance()
    return DONE
