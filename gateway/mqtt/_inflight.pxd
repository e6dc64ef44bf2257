from libc.stdint cimport uint16_t, uint32_t, uint64_t

cdef struct Slot:
    uint64_t log_offset
    bint done

cdef class Inflight:
    cdef public uint32_t window             # most messages unacknowledged at a time (receive maximum)
    cdef public bint blocked                # the window was full when there was more to send
    cdef dict kept                          # packet_id -> what the session keeps of it (QoS 2, retained); None: nothing
    cdef readonly uint32_t unacked          # in the ring, not counting `held`
    cdef uint32_t head_id                   # packet_id of slots[head]
    cdef uint32_t span                      # slots from the head on that are in use, done or not
    cdef uint32_t head
    cdef uint32_t capacity
    cdef Slot *slots
    cdef Slot *slot(self, uint32_t i) noexcept
    cdef bint full(self) noexcept
    cdef int grow(self) except -1
    cdef int next_id(self) except -1
    cdef int append(self, uint64_t log_offset, bint done) except -1
    cdef void shrink(self) noexcept
    cdef uint16_t take(self, uint64_t log_offset) except? 0
    cdef bint acknowledge(self, uint16_t packet_id) noexcept
    cdef bint keeps(self, uint16_t packet_id) except -1
