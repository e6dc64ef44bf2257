from libc.stdint cimport uint32_t, uint64_t

cdef packed struct Entry:       # 20 bytes, little-endian (docs/formats.md); fewer in RocksDB: _packs.pxi
    uint64_t log_offset
    uint32_t size
    uint64_t tag_hash

cdef class Queue:
    cdef readonly bytes name
    cdef readonly int kind
    cdef readonly uint64_t id               # 0 until its first entry
    cdef readonly uint64_t next_offset      # queue_offset the next entry will get
    cdef readonly uint64_t last_log_offset  # of the newest entry; what stands at or below it adds nothing
    cdef public list readers                # those that get the entries that arrive here; None: no reader
    cdef public int watchers
    cdef public int holders                 # durable sessions; of a first level, its topics in memory as well
    cdef public bint spills                 # LIVE only: entries past the tail's bound go to RocksDB, not away
    cdef public uint64_t floor              # entries before this queue_offset are no longer wanted by its watchers
    cdef bint touched
    cdef uint64_t dirty_since               # no entry that RocksDB does not have is older; 0: it has all
    cdef Entry *tail
    cdef uint64_t tail_first                # queue_offset of tail[0]
    cdef uint32_t tail_count
    cdef uint32_t tail_capacity
    cdef void discard(self, uint32_t n) noexcept
    cdef int push(self, uint64_t log_offset, uint32_t size, uint64_t tag_hash) except -1
    cdef object place(self, uint64_t log_offset)

cdef class Topic:
    cdef readonly bytes name
    cdef readonly Queue own
    cdef readonly Queue level
    cdef readonly list filters
    cdef uint64_t generation
