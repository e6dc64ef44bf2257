# The part of _mqtt.pyx that makes PUBLISH packets of ranges for one link.

cdef int deliver_to(Link link, list readers, list ranges, uint64_t safe, uint64_t stop) except -1:
    cdef Merge merge
    cdef const RecordHeader *record
    cdef Py_ssize_t first
    cdef int outcome, qos
    if len(readers) == 1:
        return deliver_alone(link, <Reader>readers[0], <Records>ranges[0], safe, stop)
    merge = Merge(readers, ranges, stop)
    while not merge.exhausted():
        record = merge.next()
        qos = min(<int>(record.flags & FLAG_QOS), merge.qos)
        if merge.wanted and not (qos == 0 and record.log_offset < merge.skip_qos0_before):
            first = merge.found_in[0]
            outcome = put_next(link, record, qos, merge.retain_as_published, merge.ids, merge.id_count, merge.lost, safe,
                               <Records>ranges[first], merge.at[first])
            if outcome != 0:
                return outcome
        elif merge.lost:
            link.misses(merge.lost)
        merge.advance()
    return DONE


cdef int deliver_alone(Link link, Reader reader, Records records, uint64_t safe, uint64_t stop) except -1:
    """As deliver_to(), for one reader, whose range needs no merging."""
    cdef Py_ssize_t at = reader.position - records.first
    cdef int id_count = 1 if reader.subscription_id else 0
    cdef const RecordHeader *record
    cdef uint64_t lost
    cdef int outcome, qos
    while at < records.count and records.items[at].log_offset < stop:
        record = records.items[at]
        lost = lost_in_front(record)    # in a page of history more than the first one may say so
        qos = min(<int>(record.flags & FLAG_QOS), reader.qos)
        if wants(reader, record) and not (qos == 0 and record.log_offset < reader.skip_qos0_before):
            outcome = put_next(link, record, qos, reader.retain_as_published, &reader.subscription_id, id_count, lost, safe,
                               records, at)
            if outcome != 0:
                return outcome
        elif lost:
            link.misses(lost)
        at += 1
        reader.position += 1
        reader.reached = record.log_offset + 1
    return DONE


cdef inline int put_next(Link link, const RecordHeader *record, int qos, bint retain_as_published, const uint32_t *ids, int id_count,
                         uint64_t lost, uint64_t safe, Records records, Py_ssize_t i) except -1:
    """Put a message, which is record i of a range, unless it does not fit. An outcome of deliver(); DONE: the next one may follow."""
    cdef bint retain = retain_as_published and record.flags & FLAG_RETAIN
    if qos == 2:
        return NEEDS_SESSION if record.log_offset < safe else NEEDS_MORE
    if qos == 1 and link.inflight.full():
        link.inflight.blocked = True
        return NEEDS_MORE
    if lost:
        link.misses(lost)
    if fits(link, record, qos, id_count, ids, False, True) == 0:
        put_publish(link, record, qos, link.inflight.take(record.log_offset) if qos else 0, retain, ids, id_count, True,
                    None if record.payload_length < SHARED_BYTES else shared_payload(records, i))
    return 0


cdef int put_publish(Link link, const RecordHeader *record, int qos, uint16_t packet_id, bint retain, const uint32_t *ids, int id_count,
                     bint is_timed, Block payload) except -1:
    """Append a PUBLISH for a record. `payload`: its payload, to be sent from there."""
    cdef object told = telling(link, &record, qos, ids, id_count) if link.lost else None     # which is kept as long
    cdef bint named = True
    cdef uint16_t alias = 0
    cdef size_t size = most_publish_bytes(record, id_count), hidden = hidden_from(link, record)
    if link.alias_limit:
        alias = alias_of(link, record, publish_size(record, hidden, qos, link.version, ids, id_count), True, &named)
    if payload is not None:
        size -= record.payload_length
    link.out_size += write_publish(reserve(&link.out, link.out_size, &link.out_capacity, size), record, hidden, qos, packet_id,
                                   False, retain, link.version, ids, id_count, link.turn.now_ms, alias, named, payload is None)
    if payload is not None:
        link.share(payload)
    link.turn.sent[qos] += 1
    link.turn.packets_out += 1
    link.turn.sent_payload_bytes += record.payload_length
    if hidden:
        link.tenant.gave(1, record.payload_length)
    if is_timed and record.timestamp_ms >= link.opened_ms:
        link.turn.delivered_after(record.timestamp_ms, 1)
    return link.mark_dirty()


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
