# The part of _mqtt.pyx that is a place in a queue, from which a subscription is delivered.

from lightqueue.queues._queues import LIVE

cdef int KIND_LIVE = LIVE


@cython.final
cdef class Reader:
    """A subscription's place in a queue."""

    cdef readonly Queue queue
    cdef public uint64_t position       # queue_offset of the next entry to look at
    cdef public uint64_t reached        # log_offset; everything before it has been looked at
    cdef uint64_t known_at              # queue_offset of a message whose log_offset is `reached`; none before there is one
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
        self.known_at = <uint64_t>-1
        self.session = session
        self.topic_filter = topic_filter

    cdef uint64_t behind(self) noexcept:
        return self.queue.next_offset - min(self.position, self.queue.next_offset)

    cdef bint is_known(self) noexcept:
        """Whether its next message is the one at log_offset `reached`."""
        return self.known_at == self.position

    def stand_at(self, uint64_t position, uint64_t reached):
        """Go on there: in a queue that counts anew, or behind what is read elsewhere."""
        self.position, self.reached, self.known_at = position, reached, <uint64_t>-1

    @property
    def lag(self):
        """Entries between here and the queue's end, as far as that is known: what was read may be ahead of its event."""
        return self.behind()


cdef inline bint wants(Reader reader, const RecordHeader *record) noexcept:
    """Whether a message is for its subscription."""
    if record.log_offset < reader.since or (reader.only_live and not record.flags & FLAG_LIVE_ONLY):
        return False
    return not (reader.no_local and same_client(reader.link, record))


def taking_from(list readers not None):
    """The furthest of some readers' positions; None: the queue has no more, or no client that stands there takes anything.

    What is read for no client could push out what others read.
    """
    cdef Reader reader
    cdef uint64_t position = 0
    for reader in readers:
        position = max(position, reader.position)
    if position >= (<Reader>readers[0]).queue.next_offset:
        return None
    for reader in readers:
        if reader.position == position and reader.link is not None and not reader.link.paused:
            return position
    return None


def lag_behind(list queues not None, dict lagging not None, set behind not None):
    """Note those queues that have more for one reader alone, which is merged with its session's others: `lagging` has
    these by session, `behind` the sessions. Returns the other queues that have readers."""
    cdef Queue queue
    cdef Reader reader
    cdef object last = None     # session
    cdef set readers = None     # those of the last session
    cdef list rest = []
    for queue in queues:
        if not queue.readers:
            continue
        reader = <Reader?>queue.readers[0]
        if len(queue.readers) > 1 or reader.alone:
            rest.append(queue)
        elif reader.behind() and reader.link is not None:
            if reader.session is not last:
                last = reader.session
                readers = lagging.get(last)
                if readers is None:
                    readers = lagging[last] = set()
                behind.add(last)
            readers.add(reader)
    return rest


def readers_of(queues):
    """All readers of some queues."""
    cdef Queue queue
    return [reader for queue in queues if queue.readers is not None for reader in queue.readers]


def fell_behind(readers, dict lagging not None, set behind not None):
    """Note those readers that have more to read: `lagging` has them by session, `behind` the sessions."""
    cdef Reader reader
    for reader in readers:
        if reader.link is not None and reader.behind():
            of_session = lagging.get(reader.session)
            if of_session is None:
                lagging[reader.session] = {reader}
            else:
                (<set?>of_session).add(reader)
            behind.add(reader.session)


def with_more(readers not None):
    """Those of some readers whose queues have more."""
    cdef Reader reader
    return [reader for reader in readers if reader.behind()]


def nearest(list readers not None, Py_ssize_t most):
    """(some of a session's readers, log_offset): those that have come least far, and the first that the others may be at.

    So many of them, or more if all of these are at one message: what goes out of it depends on all that match it. Of a few
    of thousands it is cheap to learn what comes next, and nothing of the others comes before that log_offset.
    """
    cdef uint64_t stop = <uint64_t>-1, lowest = <uint64_t>-1
    cdef Py_ssize_t i, size = 0, total = len(readers)
    cdef bint all_known = True
    cdef Reader reader
    cdef Py_ssize_t *heap = <Py_ssize_t *>malloc((most + 1) * sizeof(Py_ssize_t))   # the one that has come furthest first
    if heap == NULL:
        raise MemoryError
    try:
        for i in range(total):
            reader = <Reader?>readers[i]
            if size < most:
                rise(readers, heap, size, i)
                size += 1
            elif further(<Reader>readers[heap[0]], reader):
                stop = min(stop, (<Reader>readers[heap[0]]).reached)
                sink(readers, heap, size, i)
            else:
                stop = min(stop, reader.reached)
        for i in range(size):
            reader = <Reader>readers[heap[i]]
            lowest = min(lowest, reader.reached)
            all_known = all_known and reader.is_known()
        if stop > lowest or not all_known:
            return [readers[heap[i]] for i in range(size)], stop
    finally:
        free(heap)
    stop = <uint64_t>-1
    found = []
    for reader in readers:
        if reader.reached == lowest:
            found.append(reader)
        else:
            stop = min(stop, reader.reached)
    return found, stop


cdef bint further(Reader a, Reader b) noexcept:
    """Whether one has come further than another; a reader whose next message is not known comes before one that is at it."""
    return a.reached > b.reached or (a.reached == b.reached and a.is_known() and not b.is_known())


cdef void rise(list readers, Py_ssize_t *heap, Py_ssize_t place, Py_ssize_t i) noexcept:
    """Put one more into the heap, of which `place` is the end."""
    while place and further(<Reader>readers[i], <Reader>readers[heap[(place - 1) // 2]]):
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = i


cdef void sink(list readers, Py_ssize_t *heap, Py_ssize_t size, Py_ssize_t i) noexcept:
    """Put one into the heap in place of the first."""
    cdef Py_ssize_t place = 0, child = 1
    while child < size:
        if child + 1 < size and further(<Reader>readers[heap[child + 1]], <Reader>readers[heap[child]]):
            child += 1
        if not further(<Reader>readers[heap[child]], <Reader>readers[i]):
            break
        heap[place] = heap[child]
        place, child = child, 2 * child + 1
    heap[place] = i


def places_of(list readers not None, uint64_t most_lag):
    """(queues, positions, messages that were dropped): where some readers go on. With QoS 0 those that are further behind
    than `most_lag` go on at the newest message."""
    cdef Reader reader
    cdef uint64_t dropped = 0
    queues, positions = [], []
    for reader in readers:
        if reader.qos == 0 and reader.behind() > most_lag:
            dropped += reader.behind() - 1
            reader.position = reader.queue.next_offset - 1
        queues.append(reader.queue)
        positions.append(reader.position)
    return queues, positions, dropped


def stand_at(list readers not None, list ranges not None, set moved not None):
    """Each reader goes on where its range begins, if that is later, and has reached what it reads next. `moved` gets those
    of their queues that are LIVE.

    Whether a range has compressed payloads.
    """
    cdef Reader reader
    cdef Records records
    cdef Py_ssize_t i
    cdef uint8_t flags = 0
    for i in range(len(readers)):
        reader, records = <Reader?>readers[i], <Records?>ranges[i]
        reader.position = max(reader.position, records.first)
        if reader.position < records.next:
            reader.reached = max(reader.reached, records.items[reader.position - records.first].log_offset)
            reader.known_at = reader.position
        flags |= records.flags
        if reader.queue.kind == KIND_LIVE:
            moved.add(reader.queue)
    return bool(flags & FLAG_COMPRESSED)
