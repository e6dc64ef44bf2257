# The part of _mqtt.pyx that is the messages of a shared subscription: handed to one session, sent, acknowledged.

cdef class Deliveries:
    """What a session was handed of one group, and what is to be told of it. Its acknowledgements are merged as they come."""

    cdef readonly dict in_flight        # queue_offset -> Delivery
    cdef public bint prompt             # what is acknowledged is told in a turn of its own; if not, it waits for one
    cdef list said
    cdef uint64_t serial, first, number # the last of what was said, which may go on

    def __cinit__(self, *args, **kwargs):
        self.in_flight = {}
        self.said = []

    cdef int say_done(self, uint64_t serial, uint64_t queue_offset) except -1:
        if self.number and serial == self.serial and queue_offset == self.first + self.number:
            self.number += 1
            return 0
        if self.number:
            self.said.append((self.serial, self.first, self.number))
        self.serial, self.first, self.number = serial, queue_offset, 1
        return 0

    cdef int settled(self, Delivery delivery) except -1:
        """The client has it."""
        delivery.is_settled = True
        self.in_flight.pop(delivery.queue_offset, None)
        self.say_done(delivery.serial, delivery.queue_offset)
        return 0

    def done(self, uint64_t serial, uint64_t queue_offset):
        """One that was not in flight is done with."""
        self.say_done(serial, queue_offset)

    def carry(self, Delivery delivery not None):
        """Another way than deal() put it in flight."""
        self.in_flight[delivery.queue_offset] = delivery

    def take_acks(self):
        """(serial, queue_offset of the first, number) of what is done with and not told so far."""
        if self.number:
            self.said.append((self.serial, self.first, self.number))
            self.number = 0
        said, self.said = self.said, []
        return said


cdef class Delivery:
    """A message of a group that was handed to a session, and is in flight; in place of a HeldMessage."""

    cdef readonly Deliveries share
    cdef public uint64_t serial
    cdef readonly uint64_t queue_offset
    cdef readonly uint64_t log_offset
    cdef readonly int qos
    cdef public bint released
    cdef readonly bint is_settled
    is_shared = True

    def __init__(self, Deliveries share not None, uint64_t serial, uint64_t queue_offset, uint64_t log_offset, int qos):
        self.share = share
        self.serial = serial
        self.queue_offset = queue_offset
        self.log_offset = log_offset
        self.qos = qos

    def settle(self):
        """The client has it."""
        if not self.is_settled:
            self.share.settled(self)
            self.share.was_settled(self)


cdef bint settle_delivery(Link link, uint16_t packet_id) except -1:
    """Take a PUBACK for what the session keeps. False: it is no Delivery at QoS 1, and the session's own business.

    Unless somebody waits for it, no turn is asked for: what is done with is told with the next one, or the next tick.
    """
    cdef object kept = link.inflight.kept[packet_id]
    cdef Delivery delivery
    if type(kept) is not Delivery or (<Delivery>kept).qos != 1:
        return False
    delivery = <Delivery>kept
    del link.inflight.kept[packet_id]
    delivery.share.settled(delivery)
    link.turn.acknowledged += 1
    if delivery.share.prompt or link.inflight.blocked:
        link.mark_ready()
    elif not link.is_ready:
        link.is_ready = True
        link.turn.ready.append(link)
    return True


def deal(Link link not None, Deliveries share not None, Records records not None, Py_ssize_t start, Py_ssize_t stop,
         uint64_t serial, uint64_t queue_offset, int most_qos, bint retain_as_published, tuple subscription_ids not None):
    """Send messages of a group that go out at QoS 0 and 1, up to one at QoS 2, or one that the window has no room for.

    `queue_offset`: of the first. Returns where that is. Those at QoS 1 are in flight then, the others done with.
    """
    cdef const RecordHeader *record
    cdef uint32_t number = subscription_ids[0] if subscription_ids else 0
    cdef int qos, id_count = len(subscription_ids)
    cdef uint16_t packet_id
    cdef Delivery delivery
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
                delivery = Delivery(share, serial, queue_offset, record.log_offset, 1)
                packet_id = link.inflight.hold(delivery)
                share.in_flight[queue_offset] = delivery
            else:
                share.say_done(serial, queue_offset)
            put_publish(link, record, qos, packet_id, retain_as_published and record.flags & FLAG_RETAIN, &number, id_count, True,
                        None)
        start += 1
        queue_offset += 1
    return start
