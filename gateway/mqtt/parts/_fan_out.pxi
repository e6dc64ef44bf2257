# The part of _mqtt.pyx that looks at many connections at a time (delivering one range to all of them, keep alive), and
# what decides how a message goes to one of them.


def fan_out(list readers not None, Records records not None, uint64_t safe):
    """Deliver one range to every reader that stands at its start and has no other; returns the others, for pulling, and
    those for which no time is left.

    Those that take it at QoS 0 share one encoding; large payloads are shared by themselves, also with readers of other queues.
    """
    cdef Reader reader
    cdef Turn turn = None
    if not records.count or lost_in_front(records.items[0]):
        return those_behind(readers)
    if len(readers) > CROWD:
        for reader in readers:
            if reader.link is not None:
                turn = reader.link.turn
                break
    if turn is None:
        return fan_out_to(readers, records, safe)
    turn.to_crowd = True
    try:
        return fan_out_to(readers, records, safe)
    finally:
        turn.to_crowd = False


cdef list fan_out_to(list readers, Records records, uint64_t safe):
    cdef Reader reader
    cdef Link link
    cdef Turn turn = None
    cdef uint64_t payload_bytes = 0, shared = 0, until_ns = now_ns() + FAN_OUT_NS
    cdef uint32_t largest = 0
    cdef Block block
    cdef Py_ssize_t i
    cdef bint is_late = False
    for i in range(records.count):
        payload_bytes += records.items[i].payload_length
        largest = max(largest, records.items[i].payload_length)
    rest = []
    for reader in readers:
        link = reader.link
        if reader.position != records.first or not reader.alone or link is None or link.paused or link.behind or link.is_full():
            rest.append(reader)
        elif (shares(reader, link) and largest < SHARED_BYTES and not records.flags & (FLAG_EXPIRES | FLAG_COMPRESSED)
                and reader.since <= records.items[0].log_offset and not link.lost):
            block = shared_block(records, reader, link)
            link.share(block)
            link.turn.sent[0] += records.count
            link.turn.packets_out += records.count
            link.turn.sent_payload_bytes += payload_bytes
            if link.tenant is not None:
                link.tenant.gave(records.count, payload_bytes)
            if records.items[0].timestamp_ms >= link.opened_ms:
                turn = link.turn
                shared += 1
            reader.position = records.next
            reader.reached = records.items[records.count - 1].log_offset + 1
            if reader.position < reader.queue.next_offset:      # the range was not all of it
                rest.append(reader)
        elif is_late:
            rest.append(reader)
        else:
            if link.deliver([reader], [records], safe) != DONE or reader.position < reader.queue.next_offset:
                rest.append(reader)
            is_late = now_ns() >= until_ns
    if shared:
        turn.delivered_range(records, shared)
    return rest


cdef inline bint shares(Reader reader, Link link) noexcept:
    """Whether it can be sent what others are sent, byte for byte."""
    return reader.qos == 0 and not reader.no_local and link.max_packet_out == 0xFFFFFFFF and not link.alias_limit


cdef Weight weight_of(Py_ssize_t queues, list read) except *:
    """Of a message that goes to so many queues; `read`: those that have readers.

    A reader that has others in its session is not counted: those are merged later, for a bounded time. Of many queues one
    in a few is looked at, and stands for those: 5,000 that are not at hand take a millisecond to look at.
    """
    cdef Queue queue
    cdef Reader reader
    cdef uint64_t alone = 0, sharing = 0, entries_ns
    cdef Py_ssize_t i, step = 1 + len(read) // WEIGHED_QUEUES
    queues -= 2
    entries_ns = QUEUE_NS * min(queues, NEAR_QUEUES) + FAR_QUEUE_NS * max(0, queues - NEAR_QUEUES)
    for i in range(0, len(read), step):
        queue = read[i]
        for reader in queue.readers:
            if reader.alone and reader.link is not None:
                alone += step
                sharing += step * shares(reader, reader.link)
    return Weight(<uint32_t>(MESSAGE_NS + entries_ns + OWN_NS * (alone - sharing)), <uint32_t>(OWN_NS * sharing), alone > CROWD)


cdef list those_behind(list readers):
    cdef Reader reader
    return [reader for reader in readers if reader.position < reader.queue.next_offset]


cdef Block shared_payload(Records records, Py_ssize_t i):
    """The payload of one record, in bytes that all who are sent it share: those of the record, or a copy in its range."""
    cdef const char *at = payload_of(records.items[i])
    cdef size_t size = records.items[i].payload_length
    cdef bytes data = records.blocks.get(i)
    if data is None:
        data = records.blocks[i] = PyBytes_FromStringAndSize(at, size)
    if not PyBytes_AS_STRING(data) <= at < PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data):
        at = PyBytes_AS_STRING(data)
    return block_of(data, at, size)


cdef Block shared_block(Records records, Reader reader, Link link):
    cdef object variant = (link.version, reader.subscription_id, reader.retain_as_published, link.tenant)
    cdef Block shared = records.blocks.get(variant)
    cdef bytes block
    cdef size_t size = 0, at = 0
    cdef Py_ssize_t i
    cdef bint retain
    cdef int id_count = 1 if reader.subscription_id else 0
    if shared is not None:
        return shared
    for i in range(records.count):
        size += publish_size(records.items[i], hidden_from(link, records.items[i]), 0, link.version, &reader.subscription_id, id_count)
    block = PyBytes_FromStringAndSize(NULL, size)
    for i in range(records.count):
        retain = reader.retain_as_published and records.items[i].flags & FLAG_RETAIN
        at += write_publish(PyBytes_AS_STRING(block) + at, records.items[i], hidden_from(link, records.items[i]), 0, 0, False,
                            retain, link.version, &reader.subscription_id, id_count, link.turn.now_ms)
    shared = records.blocks[variant] = block_of(block, NULL, size)
    return shared


def send_listed(Link link not None, listed not None, dict found not None, bint as_they_are, int64_t most_bytes):
    """Encode what follows of a list (gateway.sessions.session.RetainedBatch) of retained messages; returns some count of their bytes.

    `found`: log_offset → (its range, its place there), or None if it is gone. Ends early where one is not in `found`, where the
    window is full (then `inflight` is blocked), before a compressed one unless they go `as_they_are`, or behind so many bytes.
    """
    cdef list log_offsets = listed.log_offsets
    cdef Py_ssize_t at = listed.sent, count = len(log_offsets)
    cdef tuple ids = listed.subscription_ids
    cdef uint32_t number = ids[0] if ids else 0
    cdef int qos, most_qos = listed.qos, id_count = len(ids)
    cdef int64_t used = 0
    cdef const RecordHeader *record
    while at < count and used < most_bytes:
        place = found.get(log_offsets[at], link)
        if place is link:
            break
        if place is not None:
            record = (<Records?>place[0]).items[<Py_ssize_t>place[1]]
            qos = min(<int>(record.flags & FLAG_QOS), most_qos)
            if record.flags & FLAG_COMPRESSED and not as_they_are:
                break
            if qos and link.inflight.full():
                link.inflight.blocked = True
                break
            used += record.length
            if fits(link, record, qos, id_count, &number, False, False) == 0:
                put_publish(link, record, qos, link.inflight.take(record.log_offset) if qos else 0, True, &number, id_count, False, None)
        at += 1
    listed.sent = at
    return used


cdef inline int fits(Link link, const RecordHeader *record, int qos, int id_count, const uint32_t *ids, bint again, bint is_new) noexcept:
    """0 if a record can be sent to a link; otherwise it is counted as expired, too large or unreadable, or of another namespace.

    `again`: a QoS 2 message that was sent once does not expire any more (MQTT 5, 4.3.3). `is_new`: it is no retained one for a
    new subscription.
    """
    cdef size_t hidden = hidden_from(link, record)
    if link.tenant is not None and not hidden:
        return 4
    if record.flags & FLAG_EXPIRES and not (again and qos == 2) and is_over(link, record, is_new):
        link.turn.expired += 1
        return 1
    if record.flags & FLAG_COMPRESSED:
        link.turn.unreadable += 1
        return 3
    if (most_publish_bytes(record, id_count) > link.max_packet_out
            and publish_size(record, hidden, qos, link.version, ids, id_count) > link.max_packet_out):
        link.turn.too_large += 1
        return 2
    return 0


cdef bint is_over(Link link, const RecordHeader *record, bint is_new) noexcept:
    """Whether a message's expiry interval has passed.

    One of 0 s is for those who are there: clients that were connected when it was stored, within AT_ONCE_MS.
    """
    cdef uint64_t now_ms = link.turn.now_ms
    if remaining_expiry_s(record, now_ms):
        return False
    return not (is_new and expires_at_once(record) and record.timestamp_ms >= link.opened_ms
                and now_ms < record.timestamp_ms + AT_ONCE_MS)


cdef uint16_t alias_of(Link link, const RecordHeader *record, size_t size, bint may_set, bint *named) except? 0:
    """The topic alias that goes with a record, 0 for none; `named`: the client does not know it yet.

    The first topics of a connection have one each, and keep it. `may_set`: it may get one now, since the packet
    goes out before all that are made after it.
    """
    if record.topic_length - hidden_from(link, record) <= ALIAS_BYTES or record.topic_length > REMEMBERED_TOPIC_BYTES:
        return 0                        # it would save nothing, or take much memory
    if link.aliases_out is None:
        link.aliases_out = {}
    topic = PyBytes_FromStringAndSize(topic_of(record), record.topic_length)
    known = link.aliases_out.get(topic)
    if known is not None:
        named[0] = False
        return known
    if not may_set or <uint32_t>len(link.aliases_out) >= link.alias_limit or size + ALIAS_BYTES + 2 > link.max_packet_out:
        return 0
    link.aliases_out[topic] = len(link.aliases_out) + 1
    return link.aliases_out[topic]


def overdue(sessions, Turn turn not None):
    """The links of sessions whose client has been silent for longer than it may; the sessions that can take no more now.

    Counts what is in flight on the way.
    """
    cdef Link link
    cdef uint64_t inflight = 0
    late = []
    stuck = []
    for session in sessions:
        link = session.link
        if link is not None:
            inflight += len(link.inflight)
            if link.inflight.blocked or link.paused or link.behind:
                stuck.append(session)
            if link.keep_alive_s and turn.now_s - link.last_seen_s > link.keep_alive_s:
                late.append(link)
    turn.inflight = inflight
    return late, stuck


def unsent(sessions):
    """What the readers of sessions have not looked at so far: messages, once for each reader."""
    cdef Reader reader
    cdef uint64_t found = 0
    for session in sessions:
        for reader in session.readers.values():
            found += reader.lag
    return found
