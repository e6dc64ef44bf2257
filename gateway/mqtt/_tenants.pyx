"""Compiled leaf: namespaces at a gateway. Their prefixes stand before topics in the log (store/namespaces.py)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcmp

from store.records._records cimport RecordHeader, topic_of


cdef class Tenant:
    """A namespace at this gateway: how it is called, and what its clients did here."""

    def __init__(self, names not None):
        self.names = names
        self.prefix = names.prefix.encode()

    cpdef void count_received(self, size_t size) noexcept:
        """A message of this payload came in another way than a plain PUBLISH."""
        self.received += 1
        self.received_bytes += size

    def count_sent(self, size_t size):
        """A message of this payload was not made from a record."""
        self.gave(1, size)

    cdef void gave(self, uint64_t count, uint64_t size) noexcept:
        self.sent += count
        self.sent_bytes += size

    cdef size_t hidden(self, const RecordHeader *record) noexcept:
        """Bytes in front of a record's topic that clients do not see; 0: it is not of this namespace."""
        cdef const char *topic = topic_of(record)
        cdef size_t size = PyBytes_GET_SIZE(self.prefix)
        if record.topic_length <= size or memcmp(topic, PyBytes_AS_STRING(self.prefix), size) != 0:
            return 0
        return size + 1 if topic[size] == c"/" else size if topic[size] == c"$" else 0
