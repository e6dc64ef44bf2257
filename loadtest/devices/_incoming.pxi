# Input of the devices of a swarm, and their answers. Included in `_swarm.pyx`.


cdef void readable(Swarm swarm, Device *device) noexcept nogil:
    cdef size_t kept, used
    cdef ssize_t got
    cdef uint8_t *grown
    cdef bint is_all
    cdef size_t room = RECEIVE_BYTES if device.layer == NULL else LAYER_ROOM
    while True:
        kept = device.rest_size
        if kept:
            memcpy(swarm.received, device.rest, kept)
        if device.layer == NULL:
            room = RECEIVE_BYTES - kept
        got = c_recv(device.fd, swarm.received + kept, room, 0)
        if got < 0 and errno == EINTR:
            continue
        if got < 0 and errno == EAGAIN:
            break
        if got <= 0:
            swarm._lose(device)
            return
        swarm.groups[device.group].counters.bytes_in += got
        is_all = <size_t>got < room
        if device.layer != NULL:
            got = receive_through_layer(swarm, device, kept, got)
            if device.phase == LOST:
                return
        used = take(swarm, device, swarm.received, kept + got)
        if device.phase == LOST:
            return
        device.rest_size = kept + got - used
        if device.rest_size >= RECEIVE_BYTES:
            swarm.is_faulty = True
            swarm._lose(device)
            return
        if device.rest_size:
            grown = <uint8_t *>realloc(device.rest, device.rest_size)
            device.rest = grown
            memcpy(device.rest, swarm.received + used, device.rest_size)
        elif device.rest != NULL:
            free(device.rest)
            device.rest = NULL
        if is_all:
            break
    if swarm.groups[device.group].is_publishing and swarm.groups[device.group].topic_count:
        swarm._pump(device)
    elif device.out_end or device.wire_end:
        swarm._flush(device)


cdef size_t take(Swarm swarm, Device *device, uint8_t *data, size_t size) noexcept nogil:
    """Deal with the packets that are whole; how many bytes these were."""
    cdef size_t at = 0, i, left
    cdef int shift
    cdef uint64_t now = now_ns()
    while at + 2 <= size:
        left, shift, i = 0, 0, at + 1
        while True:
            if i == size:
                return at
            left |= <size_t>(data[i] & 127) << shift
            shift += 7
            i += 1
            if not data[i - 1] & 128:
                break
            if shift == 28:
                swarm.is_faulty = True
                swarm._lose(device)
                return at
        if i + left > size:
            return at
        packet(swarm, device, data[at], data + i, left, now)
        if device.phase == LOST:
            return at
        at = i + left
    return at


cdef void packet(Swarm swarm, Device *device, uint8_t head, const uint8_t *body, size_t size, uint64_t now) noexcept nogil:
    cdef int kind = head >> 4
    cdef uint8_t answer[4]
    cdef Group *group = &swarm.groups[device.group]
    if kind == 3:
        delivered(swarm, device, group, head, body, size, now)
    elif size < 2:
        if kind == 14:  # DISCONNECT
            swarm._lose(device)
        elif kind != 13:
            swarm.is_faulty = True
    elif kind == 4 or kind == 7:  # PUBACK, PUBCOMP
        acknowledged(swarm, device, group, size > 2 and body[2] >= 0x80, now)
    elif kind == 5:  # PUBREC
        if size > 2 and body[2] >= 0x80:
            acknowledged(swarm, device, group, True, now)
        else:
            answer[0], answer[1], answer[2], answer[3] = 0x62, 2, body[0], body[1]
            swarm._say(device, answer, 4)
    elif kind == 6:  # PUBREL
        answer[0], answer[1], answer[2], answer[3] = 0x70, 2, body[0], body[1]
        swarm._say(device, answer, 4)
    elif kind == 2:  # CONNACK
        if body[1]:
            swarm.refusal = swarm.refusal or body[1]
            swarm._lose(device)
        elif device.greeting_size > device.connect_size:
            device.phase = SUBSCRIBING
            swarm._say(device, device.greeting + device.connect_size, device.greeting_size - device.connect_size)
        else:
            becomes_ready(swarm, device)
    elif kind == 9:  # SUBACK
        if body[size - 1] >= 0x80:
            swarm.refusal = swarm.refusal or body[size - 1]
            swarm._lose(device)
        elif device.phase == SUBSCRIBING:
            becomes_ready(swarm, device)
    elif kind == 14:
        swarm._lose(device)


cdef void becomes_ready(Swarm swarm, Device *device) noexcept nogil:
    device.phase = READY
    free(device.greeting)
    device.greeting = NULL
    swarm.opening -= 1
    swarm.ready += 1


cdef void acknowledged(Swarm swarm, Device *device, Group *group, bint refused, uint64_t now) noexcept nogil:
    if device.acked >= device.sent:
        swarm.is_faulty = True
        return
    count_latency(group.acknowledging, device.due_ns[device.acked % group.window], now)
    device.acked += 1
    if refused:
        group.counters.refused += 1
    else:
        group.counters.acked += 1


cdef void delivered(
    Swarm swarm, Device *device, Group *group, uint8_t head, const uint8_t *body, size_t size, uint64_t now
) noexcept nogil:
    cdef int qos = head >> 1 & 3
    cdef size_t at, properties = 0
    cdef int shift = 0
    cdef uint64_t due
    cdef uint8_t answer[4]
    if size < 2:
        swarm.is_faulty = True
        return
    at = 2 + (body[0] << 8 | body[1])
    if qos:
        if at + 2 > size:
            swarm.is_faulty = True
            return
        answer[0], answer[1], answer[2], answer[3] = 0x40 if qos == 1 else 0x50, 2, body[at], body[at + 1]
        swarm._say(device, answer, 4)
        at += 2
    if device.version == 5:
        while at < size:
            properties |= <size_t>(body[at] & 127) << shift
            shift += 7
            at += 1
            if not body[at - 1] & 128 or shift == 28:
                break
        at += properties
    group.counters.delivered += 1
    group.counters.retained += head & 1
    group.counters.repeated += head >> 3 & 1
    if at + 16 <= size:
        memcpy(&due, body + at, 8)
        count_latency(group.delivery, due, now)
