# The part of _mqtt.pyx that keeps what came in and is no whole packet so far, or waits for a CONNACK.

cdef enum:
    LARGE_BYTES = 1 << 16       # a buffer of more is made smaller once little is in it
    WAITING_BYTES = 1 << 16     # so much is read of a link while it waits


cdef int keep(Link link, const char *data, size_t size) except -1:
    append(&link.partial, &link.partial_size, &link.partial_capacity, data, size)
    count_kept(link)
    if link.waiting and link.partial_size >= min(link.max_packet_in, WAITING_BYTES):
        link.on_full()
    return 0


cdef int count_kept(Link link) except -1:
    """Have the turn know what packets that are not whole take up."""
    cdef uint32_t kept = <uint32_t>link.partial_capacity + link.below_bytes
    cdef bint is_open = link.session is not None
    if kept != link.counted_bytes or (kept and is_open != link.counted_open):
        link.turn.count_kept(link, is_open, kept)
    return 0


cdef int feed_partial(Link link, const char *data, size_t size) except -1:
    """More bytes for a packet that is not whole yet."""
    cdef size_t used
    keep(link, data, size)
    link.splitting = True
    try:
        used = link.split(link.partial, link.partial_size)
    finally:
        link.splitting = False
    link.partial_size -= used
    if link.closing or not link.partial_size:
        forget_kept(link)
    elif used:
        memmove(link.partial, link.partial + used, link.partial_size)
        shrink(link)
    return 0


cdef int shrink(Link link) except -1:
    """Give back what a large packet took."""
    cdef char *moved
    if link.partial_capacity > LARGE_BYTES and link.partial_size < link.partial_capacity // 4:
        moved = <char *>realloc(link.partial, link.partial_size)
        if moved != NULL:
            link.partial = moved
            link.partial_capacity = link.partial_size
            count_kept(link)
    return 0


cdef int forget_kept(Link link) except -1:
    """Free what is kept of a packet that is not whole, unless it is just being read: then that is done after it."""
    if not link.splitting:
        free(link.partial)
        link.partial = NULL
        link.partial_size = link.partial_capacity = 0
        if link.closing:
            link.below_bytes = 0
        count_kept(link)
    return 0


cdef int note_version(Link link, const char *body, size_t size) except -1:
    """The version in which the sender of a CONNECT is to be answered, so far as that is there."""
    if size >= 7 and memcmp(body, b"\0\4MQTT", 6) == 0 and <uint8_t>body[6] in (4, 0x84, 5):
        link.version = <uint8_t>body[6] & 0x7F
    return 0
