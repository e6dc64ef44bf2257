cimport cython
from libc.stdint cimport uint32_t, uint64_t

from store.records._records cimport RecordHeader

@cython.final
cdef class Tenant:
    cdef readonly object names          # store.namespaces.Namespace
    cdef readonly bytes prefix          # of topics, without what separates them
    cdef public uint32_t connections
    cdef readonly uint64_t received     # messages
    cdef readonly uint64_t received_bytes       # of their payloads
    cdef readonly uint64_t sent
    cdef readonly uint64_t sent_bytes
    cpdef void count_received(self, size_t size) noexcept
    cdef void gave(self, uint64_t count, uint64_t size) noexcept
    cdef size_t hidden(self, const RecordHeader *record) noexcept
