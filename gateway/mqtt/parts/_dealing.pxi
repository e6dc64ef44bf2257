# The part of _mqtt.pyx that sends the messages of a shared subscription, and takes their PUBACKs.

cdef bint settle_dealt(Link link, uint16_t packet_id) except -1:
    """Take a PUBACK for what the session keeps. False: it is no DealtMessage at QoS 1, and the session's own business.

    It asks for a turn only if a consumer waits for the store to know: otherwise the next turn, or the next tick, tells it.
    """
    cdef object kept = link.inflight.kept[packet_id]
    cdef DealtMessage dealt
    if type(kept) is not DealtMessage or (<DealtMessage>kept).qos != 1:
        return False
    dealt = <DealtMessage>kept
    del link.inflight.kept[packet_id]
    dealt.share.settled(dealt)
    link.turn.acknowledged += 1
    if dealt.share.prompt or link.inflight.blocked:
        link.mark_ready()
    elif not link.is_ready:
        link.is_ready = True
        link.turn.ready.append(link)
    return True


def deal(Link link not None, DealtShare share not None, Records records not None, Py_ssize_t start, Py_ssize_t stop,
         uint64_t serial, uint64_t queue_offset, int most_qos, bint retain_as_published, tuple subscription_ids not None):
    """Send messages of a group that go out at QoS 0 and 1, up to one at QoS 2, or one that the window has no room for.

    `queue_offset`: of the first. Returns where that is. Those at QoS 1 are in flight then, the others done with.
    """
    cdef const RecordHeader *record
    cdef uint32_t number = subscription_ids[0] if subscription_ids else 0
    cdef int qos, id_count = len(subscription_ids)
    cdef uint16_t packet_id
    cdef DealtMessage dealt
    while start < stop:
        record = records.items[start]
        qos = min(<int>(record.flags & FLAG_QOS), most_qos)
        if qos == 2:
            break
        if qos and link.inflight.full():
            link.inflight.blocked = True
            break
        packet_id = 0
        cross(link, records, start)
        if fits(link, record, qos, id_count, &number, False, True) != 0:
            share.say_done(serial, queue_offset)
        else:
            if qos:
                dealt = DealtMessage(share, serial, queue_offset, record.log_offset, 1)
                packet_id = link.inflight.hold(dealt)
                share.in_flight[queue_offset] = dealt
            else:
                share.say_done(serial, queue_offset)
            put_publish(link, record, qos, packet_id, retain_as_published and record.flags & FLAG_RETAIN, &number, id_count, True,
                        None)
        start += 1
        queue_offset += 1
    return start
