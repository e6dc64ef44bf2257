# The part of _mqtt.pyx that merges the ranges of several subscriptions.

cdef bint same_client(Link link, const RecordHeader *record) except -1:
    cdef Part client_id
    utf8_of(link.client_id, &client_id)
    return (client_id.size == record.client_id_length
            and memcmp(client_id.data, client_id_of(record), record.client_id_length) == 0)


@cython.final
cdef class Merge:
    """Several readers' ranges as one sequence by log_offset; a message found in several is one, with the highest QoS.

    A heap of those that have more, each by what comes next of it: many queues may have one message each.
    """

    cdef list readers
    cdef list ranges
    cdef Py_ssize_t *at         # of each reader: its place in its range
    cdef int *heap
    cdef int heaped
    cdef int *found_in          # those whose ranges have the current message
    cdef int found_count
    cdef uint64_t stop          # log_offset; what is at or after it is not looked at
    cdef bint unknown           # what comes next of some reader is not in its range
    cdef uint64_t current
    cdef uint64_t lost          # messages in front of the current one, for the subscription that lost most
    cdef int qos
    cdef bint wanted
    cdef bint retain_as_published
    cdef uint64_t skip_qos0_before
    cdef uint32_t *ids
    cdef int id_count

    def __cinit__(self, list readers, list ranges, uint64_t stop):
        cdef Py_ssize_t n = len(readers)
        self.readers = readers
        self.ranges = ranges
        self.stop = stop
        self.at = <Py_ssize_t *>malloc(n * (sizeof(Py_ssize_t) + 2 * sizeof(int) + sizeof(uint32_t)))
        if self.at == NULL:
            raise MemoryError
        self.heap = <int *>(self.at + n)
        self.found_in = self.heap + n
        self.ids = <uint32_t *>(self.found_in + n)
        for i in range(n):
            self.at[i] = (<Reader>readers[i]).position - (<Records>ranges[i]).first
            self.put(<int>i)

    def __dealloc__(self):
        free(self.at)

    cdef bint exhausted(self) noexcept:
        """Whether all ranges are used up as far as they are looked at, or one whose reader has more."""
        return self.unknown or not self.heaped or self.next_offset(self.heap[0]) >= self.stop

    cdef uint64_t next_offset(self, int i) noexcept:
        return (<Records>self.ranges[i]).items[self.at[i]].log_offset

    cdef bint before(self, int i, int j) noexcept:
        cdef uint64_t a = self.next_offset(i), b = self.next_offset(j)
        return a < b or (a == b and i < j)

    cdef void put(self, int i) noexcept:
        """A reader's range has more, or is used up."""
        cdef Reader reader = <Reader>self.readers[i]
        cdef int place = self.heaped, parent
        if self.at[i] >= (<Records>self.ranges[i]).count:
            self.unknown = self.unknown or reader.position < reader.queue.next_offset
            return
        self.heaped += 1
        while place:
            parent = (place - 1) // 2
            if not self.before(i, self.heap[parent]):
                break
            self.heap[place] = self.heap[parent]
            place = parent
        self.heap[place] = i

    cdef int take(self) noexcept:
        cdef int first = self.heap[0], moved, place = 0, child = 1
        self.heaped -= 1
        moved = self.heap[self.heaped]
        while child < self.heaped:
            if child + 1 < self.heaped and self.before(self.heap[child + 1], self.heap[child]):
                child += 1
            if not self.before(self.heap[child], moved):
                break
            self.heap[place] = self.heap[child]
            place = child
            child = 2 * place + 1
        self.heap[place] = moved
        return first

    cdef const RecordHeader *next(self) noexcept:
        """The record with the lowest log_offset, and what the subscriptions that it matches say together.

        To be called if the ranges are not exhausted, and again after advance().
        """
        cdef int first = self.heap[0], i
        cdef const RecordHeader *found = (<Records>self.ranges[first]).items[self.at[first]]
        self.current = found.log_offset
        self.qos = -1
        self.wanted = self.retain_as_published = False
        self.id_count = self.found_count = 0
        self.lost = 0
        while self.heaped and self.next_offset(self.heap[0]) == self.current:
            i = self.take()
            self.found_in[self.found_count] = i
            self.found_count += 1
            self.consider(<Reader>self.readers[i], found)
            if not self.at[i]:
                self.lost = max(self.lost, lost_in_front((<Records>self.ranges[i]).items[0]))
        return found

    cdef void consider(self, Reader reader, const RecordHeader *record) noexcept:
        if not wants(reader, record):
            return
        self.skip_qos0_before = min(self.skip_qos0_before, reader.skip_qos0_before) if self.wanted else reader.skip_qos0_before
        self.wanted = True
        self.qos = max(self.qos, reader.qos)
        self.retain_as_published = self.retain_as_published or reader.retain_as_published
        if reader.subscription_id:
            self.ids[self.id_count] = reader.subscription_id
            self.id_count += 1

    cdef void advance(self) noexcept:
        """The readers that have the current message move past it."""
        cdef int k, i
        for k in range(self.found_count):
            i = self.found_in[k]
            self.at[i] += 1
            (<Reader>self.readers[i]).position += 1
            (<Reader>self.readers[i]).reached = self.current + 1
            self.put(i)
