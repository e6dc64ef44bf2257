# The part of _mqtt.pyx for what a link takes in besides single packets.

cdef size_t take_pubacks(Link link, const char *data, size_t size) except? 0:
    """Take PUBACKs of what is in flight, as many as follow one another: a client sends them in runs. Returns the bytes
    that they took; the first packet that is anything else is for packet()."""
    cdef size_t at = 0
    cdef Inflight inflight = link.inflight
    if link.session is None:
        return 0
    while (at + 4 <= size and data[at] == 0x40 and data[at + 1] == 2
           and inflight.acknowledge(<uint8_t>data[at + 2] << 8 | <uint8_t>data[at + 3])):
        at += 4
    if at:
        link.turn.packets_in += at // 4
        link.turn.acknowledged += at // 4
        if link.durable or inflight.blocked:
            link.mark_ready()
    return at


cdef int note_crowding(Link link) except -1:
    """It published to many: what it sends next waits until these were sent that (gateway/clients/connections.py)."""
    if not link.crowding:
        link.crowding = True
        link.turn.crowding.append(link)
    return 0
