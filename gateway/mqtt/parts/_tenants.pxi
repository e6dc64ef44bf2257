# The part of _mqtt.pyx that is namespaces: what stands in front of their topics in the log (store/namespaces.py), and is
# taken away on the way out.

cdef enum:
    MOST_TOPIC_BYTES = 65535


@cython.final
cdef class Tenant:
    """A namespace at this gateway: how it is called, and what its clients did here."""

    cdef readonly object names          # store.namespaces.Namespace
    cdef readonly bytes prefix          # of topics, without what separates them
    cdef public uint32_t connections
    cdef readonly uint64_t received     # messages
    cdef readonly uint64_t received_bytes       # of their payloads
    cdef readonly uint64_t sent
    cdef readonly uint64_t sent_bytes

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


cdef inline size_t hidden_from(Link link, const RecordHeader *record) noexcept:
    return 0 if link.tenant is None else link.tenant.hidden(record)


cdef bint in_log(Turn turn, Tenant tenant, Part *topic) except -1:
    """Have a topic name be what it is in the log, until the next call. False: it would be too long, or needs the full codec."""
    cdef size_t size = PyBytes_GET_SIZE(tenant.prefix)
    if topic.size == 0 or topic.data[0] == c"$" or size + 1 + topic.size > MOST_TOPIC_BYTES:
        return False
    if turn.named == NULL:
        turn.named = <char *>malloc(MOST_TOPIC_BYTES)
        if turn.named == NULL:
            raise MemoryError
        turn.prefixed = None
    if turn.prefixed is not tenant.prefix:
        memcpy(turn.named, PyBytes_AS_STRING(tenant.prefix), size)
        turn.named[size] = c"/"
        turn.prefixed = tenant.prefix
    memcpy(turn.named + size + 1, topic.data, topic.size)
    topic[0] = Part(turn.named, size + 1 + topic.size)
    return True


cdef inline bint topic_ok(Link link, Part *topic) except -1:
    """Whether messages may go there; `topic` is then as in the log. What begins with $ is the full codec's business."""
    cdef Part given = topic[0]
    if given.size == 0 or given.data[0] == c"$":
        return False
    if link.tenant is not None and not in_log(link.turn, link.tenant, topic):
        return False
    if link.turn.topic_known(topic.data, topic.size):
        return True
    if not valid_topic(given.data, given.size, 1 if link.tenant is None else 2):
        return False
    link.turn.remember_topic(topic.data, topic.size)
    return True
