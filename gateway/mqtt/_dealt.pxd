from libc.stdint cimport uint64_t

cdef class DealtShare:
    cdef readonly dict in_flight        # queue_offset -> DealtMessage
    cdef public bint prompt             # what is acknowledged is told in a turn of its own; if not, it waits for one
    cdef list said
    cdef uint64_t serial, first, number # the last of what was said, which may go on
    cdef int say_done(self, uint64_t serial, uint64_t queue_offset) except -1
    cdef int settled(self, DealtMessage dealt) except -1

cdef class DealtMessage:
    cdef readonly DealtShare share
    cdef public uint64_t serial
    cdef readonly uint64_t queue_offset
    cdef readonly uint64_t log_offset
    cdef readonly int qos
    cdef public bint released
    cdef readonly bint is_settled
