"""Compiled leaf: what a client's socket did not take, and blocks of bytes that several clients are sent."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from gateway.mqtt._system cimport MSG_DONTWAIT, MSG_NOSIGNAL, send


cdef class Block:
    """Bytes that several clients are sent; `data` owns them."""


cdef Block block_of(bytes data, const char *at, size_t size):
    """`at`: where it begins in `data`, NULL for the beginning."""
    cdef Block block = Block.__new__(Block)
    block.data, block.at, block.size = data, PyBytes_AS_STRING(data) if at == NULL else at, size
    return block


cdef class Held:
    """Bytes to be sent, in order. Large blocks are kept by reference, so that clients that got the same share one copy."""

    def __cinit__(self):
        self.chunks = []

    cdef int add(self, const char *data, size_t size) except -1:
        """Keep a copy."""
        cdef bytearray last
        cdef Py_ssize_t at, count = len(self.chunks)
        if count and isinstance(self.chunks[count - 1], bytearray):
            last = self.chunks[count - 1]
        else:
            last = bytearray()
            self.chunks.append(last)
        at = PyByteArray_GET_SIZE(last)
        PyByteArray_Resize(last, at + size)
        memcpy(PyByteArray_AS_STRING(last) + at, data, size)
        self.size += size
        return 0

    cdef int hold(self, Block block, size_t sent) except -1:
        """Keep a block of which `sent` bytes were sent already; that may be some only if nothing is held."""
        if not self.chunks:
            self.start = sent
        self.chunks.append(block)
        self.size += block.size - sent
        self.copy_rest()
        return 0

    cdef ssize_t send_to(self, int fd) except? -2:
        """Send as much as the socket takes. Returns how much that was, or -1 with errno."""
        cdef ssize_t sent, total = 0
        cdef const char *data
        cdef size_t size
        while self.chunks:
            chunk = self.chunks[0]
            if isinstance(chunk, bytearray):
                data, size = PyByteArray_AS_STRING(<bytearray>chunk), PyByteArray_GET_SIZE(<bytearray>chunk)
            else:
                data, size = (<Block>chunk).at + self.start, (<Block>chunk).size - self.start
            sent = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent < 0:
                return total if total else -1
            total += sent
            self.size -= sent
            if <size_t>sent == size:
                del self.chunks[0]
                self.start = 0
                continue
            if isinstance(chunk, bytearray):
                del chunk[:sent]
            else:
                self.start += sent
                self.copy_rest()
            break
        return total

    cdef bytes copy(self):
        """All of it."""
        cdef list parts = []
        cdef size_t start = self.start
        for chunk in self.chunks:
            if isinstance(chunk, bytearray):
                parts.append(bytes(chunk))
            else:
                parts.append(PyBytes_FromStringAndSize((<Block>chunk).at + start, (<Block>chunk).size - start))
            start = 0
        return b"".join(parts)

    cdef int copy_rest(self) except -1:
        """Let go of a Block of which less than half is left, so that no more is kept than twice what counts."""
        cdef Block block
        if isinstance(self.chunks[0], Block):
            block = self.chunks[0]
            if self.start * 2 > block.size:
                self.chunks[0] = PyByteArray_FromStringAndSize(block.at + self.start, block.size - self.start)
                self.start = 0
        return 0
