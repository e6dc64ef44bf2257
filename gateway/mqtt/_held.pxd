cdef class Block:
    cdef bytes data
    cdef const char *at
    cdef size_t size

cdef Block block_of(bytes data, const char *at, size_t size)

cdef class Held:
    cdef list chunks            # Blocks, and bytearrays with copies
    cdef size_t start           # how much of the first chunk was sent, where that is a Block
    cdef readonly size_t size
    cdef int add(self, const char *data, size_t size) except -1
    cdef int hold(self, Block block, size_t sent) except -1
    cdef ssize_t send_to(self, int fd) except? -2
    cdef bytes copy(self)
    cdef int copy_rest(self) except -1
