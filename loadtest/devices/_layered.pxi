# Devices over TLS or WebSocket: their bytes go through a Python object, a buffer at a time. Included in `_swarm.pyx`.


cdef bint put_on_wire(Device *device, bytes data) except False:
    """To what waits to be sent."""
    cdef size_t size = len(data)
    if not size:
        return True
    cdef uint8_t *grown = <uint8_t *>realloc(device.wire, device.wire_end + size)
    if grown == NULL:
        raise MemoryError
    device.wire = grown
    memcpy(device.wire + device.wire_end, <const char *>data, size)
    device.wire_end += size
    return True


cdef void layer_fails(Swarm swarm, Device *device, str fault):
    swarm.layer_fault = swarm.layer_fault or fault
    swarm._lose(device)


cdef void open_layer(Swarm swarm, Device *device) noexcept with gil:
    try:
        put_on_wire(device, (<object>device.layer).opening())
    except (LoadTestError, OSError, MemoryError) as error:
        layer_fails(swarm, device, str(error))
        return
    flush_through_layer(swarm, device)


cdef bint make_room_to_receive(Swarm swarm, size_t size) except False:
    """A layer gives a whole frame at once, which may be larger than what was read."""
    if size > swarm.received_size:
        grown = <uint8_t *>realloc(swarm.received, size)
        if grown == NULL:
            raise MemoryError
        swarm.received, swarm.received_size = grown, size
    return True


cdef ssize_t receive_through_layer(Swarm swarm, Device *device, size_t kept, ssize_t got) noexcept with gil:
    """What came lies after `kept` bytes of swarm.received, and what it means is put in its place; its size."""
    cdef bytes plain, answer
    layer = <object>device.layer
    try:
        plain, answer = layer.receive(swarm.received[kept : kept + got])
        put_on_wire(device, answer)
        make_room_to_receive(swarm, kept + len(plain))
        memcpy(swarm.received + kept, <const char *>plain, len(plain))
        if device.phase == OPENING and layer.is_open:
            device.phase = GREETING
            swarm._say(device, device.greeting, device.connect_size)
    except (LoadTestError, OSError, MemoryError) as error:
        layer_fails(swarm, device, str(error))
        return 0
    return len(plain)


cdef bint give_to_layer(Swarm swarm, Device *device) noexcept with gil:
    """Send the bytes that the device has; returns whether it went well."""
    cdef bytes data = device.out[device.out_begin : device.out_end]
    try:
        put_on_wire(device, (<object>device.layer).send(data))
    except (LoadTestError, OSError, MemoryError) as error:
        layer_fails(swarm, device, str(error))
        return False
    device.out_begin = device.out_end = 0
    return True


cdef void flush_through_layer(Swarm swarm, Device *device) noexcept nogil:
    cdef ssize_t sent
    while True:
        while device.wire_begin < device.wire_end:
            sent = c_send(device.fd, device.wire + device.wire_begin, device.wire_end - device.wire_begin, MSG_NOSIGNAL)
            if sent < 0 and errno == EINTR:
                continue
            if sent < 0:
                break
            swarm.groups[device.group].counters.bytes_out += sent
            device.wire_begin += sent
        if device.wire_begin < device.wire_end:
            if errno != EAGAIN:
                swarm._lose(device)
                return
            break
        device.wire_begin = device.wire_end = 0
        free(device.wire)
        device.wire = NULL
        if device.out_begin == device.out_end or device.phase == OPENING:
            break
        if not give_to_layer(swarm, device):
            return
    swarm._want_write(device, device.wire_end > 0 or device.is_waiting)
