"""Compiled leaf: which packet identifiers are in flight towards one client.

QoS 1 deliveries from queues live in a ring, oldest first: identifiers are given in sequence, so the one acknowledged
is found by subtraction. What needs more (QoS 2, retained) is kept by the session in `held`; its identifiers are
skipped here. Identifiers run from 1 to 65,535 and then start again.
"""

from libc.stdlib cimport free, realloc

cdef enum:
    IDS = 65535
    DUMPED_BYTES = 10


cdef class Inflight:
    def __init__(self, uint32_t window):
        self.window = window
        self.head_id = 1

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return self.unacked + (len(self.kept) if self.kept is not None else 0)

    cdef Slot *slot(self, uint32_t i) noexcept:
        return &self.slots[(self.head + i) & (self.capacity - 1)]

    cdef bint full(self) noexcept:
        return self.unacked + (<uint32_t>len(self.kept) if self.kept is not None else 0) >= self.window or self.span >= IDS - 1

    cdef int grow(self) except -1:
        cdef uint32_t i, wanted = self.capacity * 2 if self.capacity else 16
        cdef Slot *moved = <Slot *>realloc(NULL, wanted * sizeof(Slot))
        if moved == NULL:
            raise MemoryError
        for i in range(self.span):
            moved[i] = self.slot(i)[0]
        free(self.slots)
        self.slots = moved
        self.capacity = wanted
        self.head = 0
        return 0

    cdef int next_id(self) except -1:
        """The next free identifier; those that `held` has are passed over."""
        cdef uint32_t packet_id
        while True:
            packet_id = (self.head_id - 1 + self.span) % IDS + 1
            if not self.kept or packet_id not in self.kept:
                return packet_id
            self.append(0, True)

    cdef int append(self, uint64_t log_offset, bint done) except -1:
        if self.span == self.capacity:
            self.grow()
        self.slot(self.span)[0] = Slot(log_offset, done)
        self.span += 1
        self.shrink()
        return 0

    cdef uint16_t take(self, uint64_t log_offset) except? 0:
        """Put a message in flight; not to be called when full()."""
        cdef uint16_t packet_id = self.next_id()
        self.append(log_offset, False)
        self.unacked += 1
        return packet_id

    cdef bint acknowledge(self, uint16_t packet_id) noexcept:
        """False if that identifier is not in flight here."""
        cdef uint32_t i = (packet_id + IDS - self.head_id) % IDS
        if packet_id == 0 or i >= self.span or self.slot(i).done:
            return False
        self.slot(i).done = True
        self.unacked -= 1
        self.shrink()
        return True

    cdef bint keeps(self, uint16_t packet_id) except -1:
        """Whether the session keeps what has this identifier."""
        return self.kept is not None and packet_id in self.kept

    cdef void shrink(self) noexcept:
        while self.span and self.slot(0).done:
            self.head = (self.head + 1) & (self.capacity - 1)
            self.head_id = self.head_id % IDS + 1
            self.span -= 1
        if not self.span and self.capacity > 256:
            free(self.slots)
            self.slots = NULL
            self.capacity = 0

    # --- for the session

    @property
    def held(self):
        """packet_id → what the session put in flight itself and keeps."""
        return self.kept if self.kept is not None else {}

    def hold(self, item):
        """Put something in flight that the session itself keeps. Returns its packet_id."""
        packet_id = self.next_id()
        self.append(0, True)
        self.restore(packet_id, item)
        return packet_id

    def restore(self, uint16_t packet_id, item):
        """Something in flight from before a restart, under the identifier it had."""
        if self.kept is None:
            self.kept = {}
        self.kept[packet_id] = item

    def put(self, uint64_t log_offset):
        """A message from a queue, as Link puts it in flight by itself. Returns its packet_id."""
        return self.take(log_offset)

    def is_full(self):
        return self.full()

    def room(self):
        """So many messages may be put in flight one after another; 0: it is full()."""
        cdef long long kept = len(self.kept) if self.kept is not None else 0     # identifiers that may be passed over
        if self.full():
            return 0
        return max(1, min(<long long>self.window - self.unacked - kept, <long long>IDS - 1 - self.span - kept))

    def ack(self, uint16_t packet_id):
        """A PUBACK. False if that identifier is not in flight."""
        return self.acknowledge(packet_id)

    def oldest(self):
        """log_offset of the oldest message in the ring that is unacknowledged, or None."""
        return self.slot(0).log_offset if self.span else None

    def unacknowledged(self):
        """(packet_id, log_offset) of what the ring has in flight, oldest first."""
        return [((self.head_id - 1 + i) % IDS + 1, self.slot(i).log_offset)
                for i in range(self.span) if not self.slot(i).done]

    def dump(self):
        """What unacknowledged() says, as bytes: packet_id 2, log_offset 8, little-endian, oldest first."""
        return b"".join([packet_id.to_bytes(2, "little") + log_offset.to_bytes(8, "little")
                         for packet_id, log_offset in self.unacknowledged()])

    def load(self, bytes dumped not None, uint64_t since):
        """Put into an empty ring what dump() gave, but for log_offsets before `since`."""
        cdef uint16_t packet_id
        cdef uint64_t log_offset
        for at in range(0, len(dumped), DUMPED_BYTES):
            packet_id = int.from_bytes(dumped[at:at + 2], "little")
            log_offset = int.from_bytes(dumped[at + 2:at + DUMPED_BYTES], "little")
            if log_offset < since:
                continue
            if not self.span:
                self.head_id = packet_id
            while (self.head_id - 1 + self.span) % IDS + 1 != packet_id:
                self.append(0, True)
            self.append(log_offset, False)
            self.unacked += 1
