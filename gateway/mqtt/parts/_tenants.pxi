# The part of _mqtt.pyx that puts a namespace in front of a client's topics, and takes it away on the way out.

cdef enum:
    MOST_TOPIC_BYTES = 65535


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
