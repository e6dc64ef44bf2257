# The part of _wire.pyx that is a place in a queue, from which a subscription is delivered.

cdef class Reader:
    """A subscription's place in a queue."""

    cdef readonly Queue queue
    cdef public uint64_t position       # queue_offset of the next entry to look at
    cdef public uint64_t reached        # log_offset; everything before it has been looked at
    cdef public uint64_t since          # log_offset; what is older is not for this subscription
    cdef public uint64_t skip_qos0_before   # log_offset; QoS 0 messages before it are not delivered (offline then)
    cdef public int qos
    cdef public bint no_local
    cdef public bint retain_as_published
    cdef public uint32_t subscription_id
    cdef public bint alone              # its session has no other reader
    cdef public bint only_live          # live-only messages alone: the subscription has another reader for the rest
    cdef public Link link               # None while the session is offline
    cdef readonly object session
    cdef readonly str topic_filter

    def __init__(self, Queue queue not None, session, str topic_filter not None):
        self.queue = queue
        self.session = session
        self.topic_filter = topic_filter

    @property
    def lag(self):
        """Entries between here and the queue's end, as far as that is known: what was read may be ahead of its event."""
        return self.queue.next_offset - min(self.position, self.queue.next_offset)
